"""The faulty twin of HostSimpleCPUOffloadConnector: damages chosen loads while the server runs.

Host-memory copy backend: timings mean nothing.

vLLM's worker gets flat block lists and several requests can load in one step, so "one block of one
prompt" cannot be told from what vLLM sends. The scheduler half therefore adds which blocks belong
to which request. Control file and journal: see ``kvb_faults``.

Use: ``{"kv_connector": "FaultyHostSimpleCPUOffloadConnector",
"kv_connector_module_path": "kvb_faulty_simple", "kv_role": "kv_both"}``.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from dataclasses import dataclass, field, fields

from vllm.distributed.parallel_state import get_world_group
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata

from kvb_faults import (
    FAULTS,
    Control,
    ControlError,
    FaultContext,
    FaultSwitch,
    LoadPart,
    NotApplicableError,
)
from kvb_host_memory import TIMINGS_NOTE, Caches
from kvb_host_simple import HostCopyBackend, HostCopyWorker, HostSimpleCPUOffloadConnector

logger = init_logger("vllm.kvb_faulty_simple")

__all__ = ["TIMINGS_NOTE", "FaultyHostSimpleCPUOffloadConnector"]


@dataclass
class PartedMetadata(SimpleCPUOffloadMetadata):
    """vLLM's metadata of a step, and which of its load blocks belong to which request."""

    load_parts: list[LoadPart] = field(default_factory=list)


def with_load_parts(
    metadata: SimpleCPUOffloadMetadata, scheduler: SimpleCPUOffloadScheduler
) -> PartedMetadata:
    """Add the parts of this step's load; their order is that of the flat lists."""
    parts = [
        LoadPart(
            request_id=request_id,
            cpu_blocks=list(state.transfer_meta.cpu_block_ids),
            gpu_blocks=list(state.transfer_meta.gpu_block_ids),
        )
        for request_id, state in scheduler._reqs_to_load.items()  # noqa: SLF001 - no public way
        if metadata.load_event >= 0 and state.load_event == metadata.load_event
    ]
    if [block for part in parts for block in part.gpu_blocks] != metadata.load_gpu_blocks:
        raise RuntimeError("faulty twin: the requests' blocks are not those of the load event")
    copied = {each.name: getattr(metadata, each.name) for each in fields(SimpleCPUOffloadMetadata)}
    return PartedMetadata(**copied, load_parts=parts)


class FaultyCopyBackend(HostCopyBackend):
    """Loads request by request, some of them wrongly."""

    def __init__(self, gpu: Caches, cpu: Caches) -> None:
        super().__init__(gpu, cpu)
        self.switch = FaultSwitch.from_environment(get_world_group().rank)
        self.parts: tuple[LoadPart, ...] = ()

    def load(self, cpu_blocks: list[int], gpu_blocks: list[int]) -> None:
        """Apply what the control file asks for now; load cleanly whatever it does not name."""
        del cpu_blocks, gpu_blocks  # the parts hold the same blocks, request by request
        try:
            control = self.switch.control()
        except ControlError as error:
            logger.exception("kvbench fault control cannot be obeyed; loading cleanly")
            self.switch.not_applied(None, self.parts, str(error))
            control = Control()
        for part in self.parts:
            self._load_part(control, part)

    def _load_part(self, control: Control, part: LoadPart) -> None:
        clean_load = super().load
        if not self.switch.wants(control, part):
            clean_load(part.cpu_blocks, part.gpu_blocks)
            return
        context = FaultContext(control, part, self.parts, self.gpu, self.cpu, clean_load)
        try:
            block = FAULTS[control.mode](context)
        except NotApplicableError as error:
            logger.exception("kvbench fault %s not applied to %s", control.mode, part.request_id)
            self.switch.not_applied(control.mode, (part,), str(error))
            clean_load(part.cpu_blocks, part.gpu_blocks)
            return
        self.switch.applied(context, block)
        logger.warning(
            "kvbench fault %s applied to %s, block %d", control.mode, part.request_id, block
        )


class FaultyCopyWorker(HostCopyWorker):
    """Tells the backend whose blocks it is about to load."""

    backend_class = FaultyCopyBackend
    _backend: FaultyCopyBackend

    def start_load_kv(self) -> None:
        """Hand over this step's parts before vLLM issues the load."""
        metadata = self._connector_metadata
        if metadata is not None and metadata.load_cpu_blocks:
            self._backend.parts = tuple(metadata.load_parts)
        super().start_load_kv()


class FaultyHostSimpleCPUOffloadConnector(HostSimpleCPUOffloadConnector):
    """Serves as its healthy twin does, until the control file names a fault."""

    worker_class = FaultyCopyWorker

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> SimpleCPUOffloadMetadata:
        """vLLM's metadata of the step, with the load split by request."""
        metadata = super().build_connector_meta(scheduler_output)
        if self.scheduler_manager is None:
            return metadata
        return with_load_parts(metadata, self.scheduler_manager)

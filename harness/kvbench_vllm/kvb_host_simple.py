"""SimpleCPUOffloadConnector for vLLM's CPU build: host-memory copies in place of CUDA transfers.

Host-memory copy backend: timings mean nothing.

The scheduler side is vLLM's own and runs unchanged; of the worker side only three methods differ,
so that hits, evictions, counters and events are those of the real connector. The replacement lives
in the worker object that this connector creates. vLLM's module is touched in one place only: while
the caches are registered it sees a torch without CUDA streams (see ``_cuda_streams_absent``).

Use: ``{"kv_connector": "HostSimpleCPUOffloadConnector",
"kv_connector_module_path": "kvb_host_simple", "kv_role": "kv_both"}``.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import (
    SimpleCPUOffloadConnector,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.simple_kv_offload import worker as vllm_worker

from kvb_host_memory import TIMINGS_NOTE, Caches, copy_blocks, require_cpu_platform

require_cpu_platform("HostSimpleCPUOffloadConnector", "SimpleCPUOffloadConnector")

logger = init_logger("vllm.kvb_host_simple")

__all__ = ["TIMINGS_NOTE", "HostSimpleCPUOffloadConnector"]


class FinishedTransfer:
    """A transfer event that has always happened: copies here end before they return."""

    def query(self) -> bool:
        """Tell that the transfer is complete."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class HostCopyBackend:
    """Stands in for vLLM's ``DmaCopyBackend``; copies in the calling thread."""

    def __init__(self, gpu: Caches, cpu: Caches) -> None:
        self.gpu = gpu
        self.cpu = cpu

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, FinishedTransfer]],
        wait_event: object = None,  # noqa: ARG002 - vLLM's signature; nothing to wait for here
    ) -> None:
        """Copy, then file the event, in the order that vLLM's completion marks rely on."""
        if is_store:
            self.store(src_blocks, dst_blocks)
        else:
            self.load(src_blocks, dst_blocks)
        events_list.append((event_idx, FinishedTransfer()))

    def store(self, gpu_blocks: list[int], cpu_blocks: list[int]) -> None:
        """Device to host pool."""
        copy_blocks(self.gpu, self.cpu, gpu_blocks, cpu_blocks)

    def load(self, cpu_blocks: list[int], gpu_blocks: list[int]) -> None:
        """Host pool to device."""
        copy_blocks(self.cpu, self.gpu, cpu_blocks, gpu_blocks)

    def shutdown(self) -> None:
        """Nothing runs in the background."""


class _StreamlessCuda:
    """``torch.cuda`` as far as vLLM's worker uses it while it registers caches."""

    class Stream:
        def __init__(self, priority: int = 0) -> None:
            self.priority = priority

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, 0


class _StreamlessTorch:
    cuda = _StreamlessCuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def _cuda_streams_absent() -> Iterator[None]:
    """Let vLLM's worker make its two copy streams, which a build without CUDA cannot.

    Replaces the name ``torch`` of that one module for the duration of the call: the code around
    the streams works out which bytes belong to a block and must stay vLLM's own.
    """
    vllm_worker.torch = _StreamlessTorch()
    try:
        yield
    finally:
        vllm_worker.torch = torch


class HostCopyWorker(vllm_worker.SimpleCPUOffloadWorker):
    """vLLM's worker with the pool in plain memory and the copies in the calling thread."""

    backend_class: ClassVar[type[HostCopyBackend]] = HostCopyBackend
    _backend: HostCopyBackend

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Find the regions as vLLM does, without CUDA streams."""
        with _cuda_streams_absent():
            super().register_kv_caches(kv_caches)

    def _init_cpu_mode(
        self,
        unique_gpu_caches: dict[str, torch.Tensor],
        total_bytes_per_block: int,
        device: torch.device,  # noqa: ARG002 - vLLM's signature
    ) -> None:
        self.cpu_kv_caches = {
            name: torch.zeros((self.num_cpu_blocks, *cache.shape[1:]), dtype=cache.dtype)
            for name, cache in unique_gpu_caches.items()
        }
        self._backend = self.backend_class(unique_gpu_caches, self.cpu_kv_caches)
        logger.info(
            "kvbench %s: %d regions, %d host blocks of %d bytes (%s)",
            type(self).__name__,
            len(unique_gpu_caches),
            self.num_cpu_blocks,
            total_bytes_per_block,
            TIMINGS_NOTE,
        )

    def wait_for_save(self) -> None:
        """Store this step's blocks; the forward pass has returned, so no event orders the copy."""
        metadata = self._connector_metadata
        if metadata is None or not metadata.store_gpu_blocks:
            return
        self._backend.launch_copy(
            metadata.store_gpu_blocks,
            metadata.store_cpu_blocks,
            is_store=True,
            event_idx=metadata.store_event,
            events_list=self._store_events,
        )


class HostSimpleCPUOffloadConnector(SimpleCPUOffloadConnector):
    """The connector to name in ``--kv-transfer-config``; eager and lazy, any tensor parallelism."""

    worker_class: ClassVar[type[HostCopyWorker]] = HostCopyWorker
    worker_handler: Any

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        require_cpu_platform(type(self).__name__, "SimpleCPUOffloadConnector")
        super().__init__(vllm_config, role, kv_cache_config)
        made_by_vllm: Any = self.worker_handler
        if made_by_vllm is None:
            return
        if made_by_vllm.disk_mode:
            raise RuntimeError(
                f"{type(self).__name__}: the disk backend transfers through CUDA;"
                ' set "kv_offload_backend": "cpu"'
            )
        self.worker_handler = self.worker_class(
            made_by_vllm.vllm_config, made_by_vllm.kv_cache_config, made_by_vllm.cpu_capacity_bytes
        )

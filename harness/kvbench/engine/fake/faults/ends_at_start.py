"""A server that never comes up."""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.log import write_raw

_ERROR: Final = (
    "ValueError: To serve at least one request with the model's max seq len (8192), (0.02 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (0.01 GiB). Try "
    "increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)
_LAST: Final = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)


@fault("ends_at_start")
class EndsAtStart(Fault):
    """The process prints an error as vLLM does and exits before it listens."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The decisive line of the log, and the exit status."""

        error: str = _ERROR
        status: int = 1

    def on_start(self) -> None:
        """End here; vLLM's own last line only points at the reason above it."""
        self.applied(status=self.options.status)
        for line in ("EngineCore failed to start.", self.options.error, _LAST):
            write_raw(line)
        sys.exit(self.options.status)

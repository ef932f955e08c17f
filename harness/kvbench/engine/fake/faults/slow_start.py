"""A start that takes its time (F29)."""

from __future__ import annotations

import threading
from typing import Final, Literal

import msgspec

from kvbench import clock
from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.log import write_raw

_PAUSE_S: Final = 0.2


@fault("slow_start")
class SlowStart(Fault):
    """The server listens late, or refuses to generate for a while though /health answers.

    With `logs` a line of progress comes every fifth of a second meanwhile.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How long, and what is late."""

        delay_s: float = 1.0
        what: Literal["listen", "generation"] = "listen"
        logs: bool = False

    def on_start(self) -> None:
        """Begin to talk; the delay itself is the server's."""
        self.applied(what=self.options.what, delay_s=self.options.delay_s)
        if self.options.logs:
            threading.Thread(target=self._talk, name="slow-start", daemon=True).start()

    def ready_delay_s(self) -> float:
        """Until it listens."""
        return float(self.options.delay_s) if self.options.what == "listen" else 0.0

    def generation_delay_s(self) -> float:
        """Until it generates."""
        return float(self.options.delay_s) if self.options.what == "generation" else 0.0

    def _talk(self) -> None:
        steps = max(int(self.options.delay_s / _PAUSE_S), 1)
        for step in range(1, steps + 1):
            clock.sleep_s(_PAUSE_S)
            share = f"{100 * step // steps}% Completed | {step}/{steps}"
            write_raw(f"Loading safetensors checkpoint shards: {share}")

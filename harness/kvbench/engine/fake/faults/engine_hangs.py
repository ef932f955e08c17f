"""F27: the engine stops scheduling; /health goes on answering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.settings import FaultSetting


@fault("engine_hangs")
class EngineHangs(Fault):
    """From the first fitting request on nothing is scheduled, for ever: it waits, nothing runs."""

    def __init__(self, setting: FaultSetting, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(setting, write)
        self._hung: set[int] = set()

    def on_step(self, engine: int, request_ids: list[str]) -> bool:
        """Refuses the step."""
        if engine not in self._hung:
            fitting = [request_id for request_id in request_ids if self.fits(request_id, engine)]
            if fitting:
                self._hung.add(engine)
                self.applied(fitting[0], engine=engine)
        return engine not in self._hung

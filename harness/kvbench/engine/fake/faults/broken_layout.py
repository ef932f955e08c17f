"""F05: with the connector on, everything is wrong from the first token, cold runs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvbench.engine.fake.content import Content, mix
from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.settings import FaultSetting

_LAYOUT = 0x1A704


@fault("broken_layout")
class BrokenLayout(Fault):
    """Every block that the device computes for a request is wrong; cold and replay agree."""

    def __init__(self, setting: FaultSetting, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(setting, write)
        self._damaged: set[str] = set()

    def on_computed(self, request_id: str, engine: int, index: int, content: Content) -> Content:
        """Damages the block; one journal entry a request."""
        if request_id not in self._damaged:
            if not self.fits(request_id, engine):
                return content
            self._damaged.add(request_id)
            self.applied(request_id, block=index)
        return Content(mix(content.digest, _LAYOUT), content.topic)

"""F20: external queries count the whole prompt instead of what the device did not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.settings import FaultSetting


@fault("whole_prompt_queries")
class WholePromptQueries(Fault):
    """External queries are the prompt's tokens: the older meaning of the counter."""

    def __init__(self, setting: FaultSetting, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(setting, write)
        self._prompt_tokens: dict[str, float] = {}

    def on_count(self, engine: int, name: str, amount: float, request_id: str | None) -> float:
        """Notes the local queries, which come first, and repeats them as external ones."""
        if request_id is None:
            return amount
        if name == "local_queries":
            self._prompt_tokens[request_id] = amount
        elif name == "external_queries":
            whole = self._prompt_tokens.pop(request_id, amount)
            if whole != amount and self.fits(request_id, engine):
                self.applied(request_id, amount=amount, counted=whole)
                return whole
        return amount

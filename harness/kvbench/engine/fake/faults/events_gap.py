"""KV events that never come (F25)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("events_gap")
class EventsGap(Fault):
    """Batches of KV events are lost, or those of the host tier are never sent.

    A lost batch uses its number; with `replayable` the replay port still has it.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What is missing."""

        what: Literal["lost_batch", "no_cpu_events"] = "lost_batch"
        replayable: bool = False

    def loses_batch(self, engine: int) -> Literal["", "live", "for_good"]:
        """Lose a whole batch."""
        if self.options.what != "lost_batch" or not self.fits(None, engine):
            return ""
        self.applied(engine=engine, what="lost_batch")
        return "live" if self.options.replayable else "for_good"

    def on_events(self, engine: int, events: list[dict[str, Any]]) -> list[dict[str, Any] | bytes]:
        """Leave out what the host tier says."""
        kept = [event for event in events if event.get("medium") != "CPU"]
        is_on = self.options.what == "no_cpu_events" and self.fits(None, engine)
        if not is_on or len(kept) == len(events):
            return list(events)
        self.applied(engine=engine, what="no_cpu_events", events=len(events) - len(kept))
        return list(kept)

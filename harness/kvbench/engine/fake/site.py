"""What all parts of one engine core share: its number, counters, faults, settings and clock."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.engine.fake.counters import Counters
from kvbench.engine.fake.events import EventLog
from kvbench.engine.fake.faults.base import ActiveFaults, Load, Store
from kvbench.engine.fake.hybrid import Layout
from kvbench.engine.fake.settings import FakeSettings


class Site:
    """One engine core's surroundings. Every hook costs one truth test while no fault is on."""

    def __init__(
        self, index: int, settings: FakeSettings, faults: ActiveFaults, log: EventLog | None
    ) -> None:
        self.index = index
        self.settings = settings
        self.faults = faults
        self.log = log
        self.layout = Layout(settings)
        self.counters = Counters()
        self.now_s = 0.0
        """time of the model: it runs ahead of the wall clock, which follows by sleeping"""
        self.in_flight = 0
        """requests that run in the step"""

    def count(self, name: str, amount: float, request_id: str | None = None) -> None:
        """Counter `name` goes up, unless a fault knows better."""
        for fault in self.faults if self.faults else ():
            amount = fault.on_count(self.index, name, amount, request_id)
        counters = self.counters
        setattr(counters, name, getattr(counters, name) + amount)

    def count_finished(self, reason: str, request_id: str) -> None:
        """A request left."""
        amount = 1.0
        for fault in self.faults if self.faults else ():
            amount = fault.on_count(self.index, "finished", amount, request_id)
        self.counters.finished[reason] += amount

    def store(self, store: Store) -> None:
        """Shows a store to the faults."""
        for fault in self.faults if self.faults else ():
            fault.on_store(store)

    def load(self, load: Load) -> None:
        """Shows a load to the faults."""
        for fault in self.faults if self.faults else ():
            fault.on_load(load)

    def lookup(self, request_id: str, blocks: int, available: int) -> int:
        """What the tier claims, in units of a hit's alignment."""
        for fault in self.faults if self.faults else ():
            blocks = fault.on_lookup(request_id, self.index, blocks, available)
        return min(max(blocks, 0), available)

    def host_may_evict(self) -> bool:
        """Whether a full host tier evicts."""
        return all(fault.host_may_evict(self.index) for fault in self.faults)

    def is_emptied_by_pressure(self) -> bool:
        """Whether a store that needs room empties the host tier."""
        answers = [fault.on_pressure(self.index) for fault in self.faults]
        return any(answers)

    def may_step(self, request_ids: Sequence[str]) -> bool:
        """Whether a step is scheduled at all."""
        answers = [fault.on_step(self.index, list(request_ids)) for fault in self.faults]
        return all(answers)

    def clears_host(self) -> bool:
        """Whether an external reset really clears the host tier."""
        answers = [fault.on_reset(external=True) for fault in self.faults]
        return all(answers)

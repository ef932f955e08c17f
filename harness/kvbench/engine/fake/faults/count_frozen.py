"""F18: counters stand still while the cache works."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("count_frozen")
class CountFrozen(Fault):
    """The named counters (fields of the fake's counters) are not incremented."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Which counters."""

        counters: tuple[str, ...] = (
            "local_queries",
            "local_hits",
            "external_queries",
            "external_hits",
        )

    def on_count(self, engine: int, name: str, amount: float, request_id: str | None) -> float:
        """Swallows the amount."""
        if not amount or name not in self.options.counters or not self.fits(request_id, engine):
            return amount
        self.applied(request_id, counter=name, amount=amount)
        return 0.0

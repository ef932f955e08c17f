"""F19: a request's lookups are counted several times."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault

_NAMES = ("local_queries", "local_hits", "external_queries", "external_hits")


@fault("count_repeated")
class CountRepeated(Fault):
    """Queries and hits are counted `times` times per request."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How often."""

        times: int = 2

    def on_count(self, engine: int, name: str, amount: float, request_id: str | None) -> float:
        """Multiplies."""
        if not amount or name not in _NAMES or not self.fits(request_id, engine):
            return amount
        self.applied(request_id, counter=name, amount=amount)
        times: int = self.options.times
        return amount * times

"""F04: a store races the computation, which shows only when requests run beside each other."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.content import Content, mix
from kvbench.engine.fake.faults.base import Fault, Store, fault

_TORN = 0x7032


@fault("torn_store")
class TornStore(Fault):
    """Damages a block of a store while `in_flight` requests or more run; serial runs stay clean."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """From how many requests on."""

        in_flight: int = 2

    def on_store(self, store: Store) -> None:
        """Tears one block."""
        index = self.index_in(len(store.contents))
        if index is None or store.requests_in_flight < self.options.in_flight:
            return
        if not self.fits(store.request_id, store.engine):
            return
        right = store.contents[index]
        store.contents[index] = Content(mix(right.digest, _TORN), right.topic)
        self.applied(store.request_id, block=store.first_block + index)

"""F13: only some of the blocks are stored, so a hit ends at the first hole."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, Store, fault


@fault("store_holes")
class StoreHoles(Fault):
    """Drops every `every`-th block of a prompt, or (`shape: half`) the second half of a store."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Which blocks are lost."""

        shape: Literal["every", "half"] = "every"
        every: int = 2

    def on_store(self, store: Store) -> None:
        """Drops some."""
        if not self.fits(store.request_id, store.engine):
            return
        count = len(store.contents)
        if self.options.shape == "half":
            lost = list(range(count // 2, count))
        else:
            every = self.options.every
            lost = [i for i in range(count) if (store.first_block + i) % every == every - 1]
        if lost:
            store.dropped.update(lost)
            self.applied(store.request_id, blocks=len(lost))

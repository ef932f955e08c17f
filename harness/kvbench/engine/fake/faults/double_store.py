"""F15: each block takes two slots of the host tier."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, Store, fault


@fault("double_store")
class DoubleStore(Fault):
    """Stores each block twice, as far as there is room."""

    def on_store(self, store: Store) -> None:
        """Doubles."""
        if self.fits(store.request_id, store.engine):
            store.slots_each = 2
            self.applied(store.request_id, blocks=len(store.contents))

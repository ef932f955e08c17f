"""F11: nothing that is stored arrives."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, Store, fault


@fault("drop_stores")
class DropStores(Fault):
    """Drops every block of a store without a word."""

    def on_store(self, store: Store) -> None:
        """Drops."""
        if self.fits(store.request_id, store.engine):
            store.dropped.update(range(len(store.contents)))
            self.applied(store.request_id, blocks=len(store.contents))

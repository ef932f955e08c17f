"""Vacuity: a connector that is there, is asked, and does nothing."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, Store, fault


@fault("idle_connector")
class IdleConnector(Fault):
    """Stores nothing and loads nothing; its queries are counted as if it worked."""

    def on_store(self, store: Store) -> None:
        """Drops everything."""
        if self.fits(store.request_id, store.engine):
            store.dropped.update(range(len(store.contents)))
            self.applied(store.request_id, blocks=len(store.contents))

    def on_lookup(self, request_id: str, engine: int, blocks: int, available: int) -> int:  # noqa: ARG002
        """Misses."""
        return 0 if self.fits(request_id, engine) else blocks

"""F14: the host tier forgets everything under pressure."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("evict_everything")
class EvictEverything(Fault):
    """A store that needs room empties the whole host tier first."""

    def on_pressure(self, engine: int) -> bool:
        """Asked when a store needs room."""
        if not self.fits(None, engine):
            return False
        self.applied()
        return True

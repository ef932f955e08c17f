"""F09: a hit is one block longer than what the tier holds."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("hit_too_long")
class HitTooLong(Fault):
    """Claims a block that nobody stored, even where nothing is stored; it may be the prompt's last.

    What is loaded for it belongs to no prompt.
    """

    def on_lookup(self, request_id: str, engine: int, blocks: int, available: int) -> int:
        """Claims one more."""
        if blocks >= available or not self.fits(request_id, engine):
            return blocks
        self.applied(request_id, found=blocks, claimed=blocks + 1)
        return blocks + 1

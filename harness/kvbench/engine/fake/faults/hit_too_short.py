"""F10: a hit is one block shorter than what the tier holds; the text is right."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("hit_too_short")
class HitTooShort(Fault):
    """Claims one block less than it found."""

    def on_lookup(self, request_id: str, engine: int, blocks: int, available: int) -> int:  # noqa: ARG002
        """Claims one less."""
        if not blocks or not self.fits(request_id, engine):
            return blocks
        self.applied(request_id, found=blocks, claimed=blocks - 1)
        return blocks - 1

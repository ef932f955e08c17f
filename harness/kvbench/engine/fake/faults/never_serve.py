"""F12: blocks are stored and never served."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("never_serve")
class NeverServe(Fault):
    """Every lookup in the tier misses, whatever it holds."""

    def on_lookup(self, request_id: str, engine: int, blocks: int, available: int) -> int:  # noqa: ARG002
        """Misses."""
        if not blocks or not self.fits(request_id, engine):
            return blocks
        self.applied(request_id, found=blocks, claimed=0)
        return 0

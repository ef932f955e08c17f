"""F14: the host tier grows past its limit."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("never_evict")
class NeverEvict(Fault):
    """A full host tier takes more memory instead of evicting."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`hold_bytes`: real memory that is taken and kept each time."""

        hold_bytes: int = 0

    _held: list[bytes] | None = None

    def host_may_evict(self, engine: int) -> bool:
        """Asked when a store needs room."""
        if not self.fits(None, engine):
            return True
        self.applied()
        if self.options.hold_bytes:
            # Written to, so that the memory is really taken.
            self._held = [*(self._held or []), b"x" * self.options.hold_bytes]
        return False

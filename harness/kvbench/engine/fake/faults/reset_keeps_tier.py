"""F16: an external reset says success and clears nothing."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("reset_keeps_tier")
class ResetKeepsTier(Fault):
    """The host tier survives an external reset."""

    def on_reset(self, *, external: bool) -> bool:
        """Keeps the tier."""
        if not external or not self.fits(None, self.setting.engine or 0):
            return external
        self.applied()
        return False

"""F06: right for the first tokens, then wrong, as with a stale recurrent state."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.content import mix
from kvbench.engine.fake.faults.base import Fault, Load, fault

_LATE = 0x1A7E


@fault("late_corruption")
class LateCorruption(Fault):
    """A loaded block turns wrong after `after_tokens` generated tokens; short tests pass."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """When."""

        after_tokens: int = 60

    def on_load(self, load: Load) -> None:
        """Marks one block."""
        index = self.index_in(len(load.contents))
        if index is None or not self.fits(load.request_id, load.engine):
            return
        right = load.contents[index]
        load.contents[index] = msgspec.structs.replace(
            right, late_tokens=self.options.after_tokens, late_digest=mix(right.digest, _LATE)
        )
        self.applied(load.request_id, block=index, after_tokens=self.options.after_tokens)

"""F03: a hit is reported and its copy never made."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.content import BLANK
from kvbench.engine.fake.faults.base import Fault, Load, fault


@fault("skip_copy")
class SkipCopy(Fault):
    """Leaves in a block of a load what stood there before (`whole: true`: in every block).

    Where that is by chance the right content, as after a reset without other traffic, zeros.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How much is not copied."""

        whole: bool = False

    def on_load(self, load: Load) -> None:
        """Keeps the old content."""
        index = self.index_in(len(load.contents))
        if index is None or not self.fits(load.request_id, load.engine):
            return
        previous = load.previous()
        for i in range(len(previous)) if self.options.whole else (index,):
            right = load.contents[i].digest
            load.contents[i] = BLANK if previous[i].digest == right else previous[i]
        self.applied(load.request_id, block=None if self.options.whole else index)

"""F07: log-probabilities are off, and every token is still the right one."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, Load, fault


@fault("soft_corruption")
class SoftCorruption(Fault):
    """A loaded block shifts the log-probabilities of what reads it by `nats`."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """By how much."""

        nats: float = 0.01

    def on_load(self, load: Load) -> None:
        """Marks one block."""
        index = self.index_in(len(load.contents))
        if index is None or not self.fits(load.request_id, load.engine):
            return
        load.contents[index] = msgspec.structs.replace(
            load.contents[index], soft_nats=self.options.nats
        )
        self.applied(load.request_id, block=index, nats=self.options.nats)

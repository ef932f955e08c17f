"""F01: two blocks of a prompt change places on the way to the device."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, Load, fault


@fault("swap_blocks")
class SwapBlocks(Fault):
    """Exchanges block `block_index` of a load and the one behind it."""

    def on_load(self, load: Load) -> None:
        """Swaps."""
        index = self.index_in(len(load.contents) - 1)
        if index is None or not self.fits(load.request_id, load.engine):
            return
        contents = load.contents
        contents[index], contents[index + 1] = contents[index + 1], contents[index]
        self.applied(load.request_id, block=index)

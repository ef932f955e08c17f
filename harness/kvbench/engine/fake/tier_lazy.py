"""SimpleCPUOffloadConnector's lazy mode: what to store follows the device's free queue."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kvbench.engine.fake.hybrid import Group, blocks_for
from kvbench.engine.fake.pools import DevicePool
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier_simple import SimpleTier


class LazyTier(SimpleTier):
    """Lazy mode: stores cached blocks that are about to be evicted, found by a cursor.

    The cursor survives a local reset, not an external one.
    """

    def __init__(self, site: Site, device: DevicePool) -> None:
        super().__init__(site, device)
        self._cursor: int | None = None
        chunk = site.settings.chunk_tokens
        self._target_blocks = 2 * sum(_target(group, chunk) for group in self._layout.cacheable)

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:  # noqa: ARG002 - Tier's
        """Starts stores of this step."""
        device = self._device
        if self._cursor is not None and device.is_held(self._cursor):
            self._cursor = None
        if self._site.faults:
            self._room(len(self._choose(self._target_blocks)[0]))
        chosen, self._cursor = self._choose(self.host.free_blocks)
        if self._site.faults:
            origins = self._device.origins
            by_request = groupby(chosen, key=lambda block: origins[block].request_id)
            owned = [(request_id, list(blocks)) for request_id, blocks in by_request]
            self._launch([self._start(name, origins[own[0]].place, own) for name, own in owned])
        elif chosen:
            self._launch([self._start("", 0, chosen)])

    def clear(self) -> None:
        """The external reset."""
        super().clear()
        self._cursor = None

    def _choose(self, room: int) -> tuple[list[int], int | None]:
        """Blocks to store, and the last block that was looked at."""
        device = self._device
        chosen: list[int] = []
        visited = self._cursor
        for covered, block in enumerate(device.free.after(self._cursor)):
            if covered >= self._target_blocks or len(chosen) >= room:
                break
            visited = block
            key = device.key_of(block)
            if key is not None and self.host.find(key) is None:
                chosen.append(block)
        return chosen, visited


def _target(group: Group, chunk_tokens: int) -> int:
    """Half of the blocks to keep free or stored (_estimate_lazy_target_blocks)."""
    if group.kind == "state":
        return 2
    if group.kind == "window":
        return group.window_blocks + 1
    return blocks_for(chunk_tokens, group.block_tokens)

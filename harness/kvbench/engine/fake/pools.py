"""Block pools of the fake engine: vLLM's order of reuse, with a content beside each block.

The order comes from the oracle's pool, which was checked against real vLLM. Here a content moves
with each copy, block by block, so that what is loaded is what was stored, or what a fault made of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvbench.engine.fake.content import BLANK, Content
from kvbench.engine.fake.events import DEVICE, HOST, EventLog
from kvbench.oracle.pool import NULL_BLOCK, BlockPool, FreeQueue


class Origin(NamedTuple):
    """Whose block it is, for faults and KV events of tiers that see blocks and not requests."""

    request_id: str
    place: int
    """index in the prompt's table"""
    parent: int | None
    tokens: tuple[int, ...]
    """empty where no KV events are wanted"""
    extra_keys: tuple[str, ...] | None


NOBODY = Origin("", 0, None, (), None)


class ContentPool(BlockPool):
    """A pool whose blocks hold contents, and that reports evictions."""

    medium = DEVICE
    locality: str | None = None

    def __init__(self, blocks: int, log: EventLog | None) -> None:
        super().__init__(blocks)
        self.blocks = blocks
        self.cells: list[Content] = [BLANK] * blocks
        """what stands in each block, findable or not"""
        self.log = log

    @property
    def held_blocks(self) -> int:
        """Blocks that something holds, the null block not counted."""
        return self.blocks - 1 - self.free_blocks

    def clear(self) -> None:
        """Forgets all content; the bytes stay where they are."""
        super().clear()
        if self.log is not None:
            self.log.cleared()

    def _unlabel(self, block: int) -> None:
        key = self._keys[block]
        if key is not None and self.log is not None:
            self.log.removed(self.medium, key, locality=self.locality)
        super()._unlabel(block)


class DevicePool(ContentPool):
    """The GPU's blocks, shared by all groups."""

    def __init__(self, blocks: int, log: EventLog | None) -> None:
        super().__init__(blocks, log)
        self.origins: list[Origin] = [NOBODY] * blocks

    @property
    def usage(self) -> float:
        """Share of the pool that is held, 0..1 (BlockPool.get_usage)."""
        return self.held_blocks / max(self.blocks - 1, 1)


class HostPool(ContentPool):
    """SimpleCPU's blocks: a pool with a null block of its own; faults may empty or enlarge it."""

    medium = HOST
    locality = "LOCAL"

    def __init__(self, blocks: int, log: EventLog | None) -> None:
        super().__init__(blocks, log)
        self.origins: list[Origin] = [NOBODY] * blocks

    def labelled(self) -> Iterator[tuple[int, Content]]:
        """Keys and contents, those that are evicted next first; held ones come last."""
        held = [
            block
            for block in range(1, self.blocks)
            if self.is_held(block) and self._keys[block] is not None
        ]
        for block in [*self.free.after(None), *held]:
            key = self._keys[block]
            if key is not None:
                yield key, self.cells[block]

    def drop_all(self) -> None:
        """Evicts everything (a fault)."""
        for block in range(1, self.blocks):
            self._unlabel(block)

    def grow(self, blocks: int) -> None:
        """Adds blank blocks beyond the limit (a fault)."""
        order = [*range(self.blocks, self.blocks + blocks), *self.free.after(None)]
        self.blocks += blocks
        self.cells += [BLANK] * blocks
        self.origins += [NOBODY] * blocks
        self._references += [0] * blocks
        self._keys += [None] * blocks
        self.free = FreeQueue(self.blocks)
        for block in range(self.blocks):
            self.free.remove(block)
        self.free.push_back(order)


__all__ = ["NOBODY", "NULL_BLOCK", "ContentPool", "DevicePool", "HostPool", "Origin"]

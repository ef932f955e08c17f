"""A pool of cache blocks with vLLM's order of reuse.

Follows vllm/v1/core/block_pool.py (BlockPool) and kv_cache_utils.py (FreeKVCacheBlockQueue). The
trap is the order: a freed block without a label goes to the front of the free queue, a labelled one
to the back, and which block is evicted next decides every later hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

NULL_BLOCK = 0


class FreeQueue:
    """A doubly linked list over block numbers: the head is reused first. O(1) removal anywhere."""

    def __init__(self, blocks: int) -> None:
        self._end = blocks  # sentinel: its successor is the head, its predecessor the tail
        self._next: list[int] = [*range(1, blocks + 1), 0]
        self._previous: list[int] = [blocks, *range(blocks)]
        self._size = blocks

    def __len__(self) -> int:
        return self._size

    def after(self, block: int | None) -> Iterator[int]:
        """Blocks in order of reuse, from the head or behind `block`, which must be in the queue."""
        current = self._next[self._end if block is None else block]
        while current != self._end:
            yield current
            current = self._next[current]

    def pop_head(self) -> int:
        """Takes the block that is reused next."""
        head = self._next[self._end]
        self.remove(head)
        return head

    def remove(self, block: int) -> None:
        """Takes this block out, wherever it is."""
        before, behind = self._previous[block], self._next[block]
        self._next[before], self._previous[behind] = behind, before
        self._size -= 1

    def push_front(self, blocks: Sequence[int]) -> None:
        """Puts the blocks before the head; the first of them becomes the head."""
        for block in reversed(blocks):
            self._insert(block, self._end, self._next[self._end])

    def push_back(self, blocks: Sequence[int]) -> None:
        """Puts the blocks behind the tail; the last of them becomes the tail."""
        for block in blocks:
            self._insert(block, self._previous[self._end], self._end)

    def _insert(self, block: int, before: int, behind: int) -> None:
        self._next[before], self._previous[block] = block, before
        self._next[block], self._previous[behind] = behind, block
        self._size += 1


class BlockPool:
    """Blocks with reference counts and content labels (`key`: identity of a prefix of tokens)."""

    def __init__(self, blocks: int) -> None:
        self.free = FreeQueue(blocks)
        self._references = [0] * blocks
        self._keys: list[int | None] = [None] * blocks
        # Equal content may sit in several blocks (vLLM does not merge them); the oldest serves.
        self._holders: dict[int, dict[int, None]] = {}
        if blocks:
            self.free.remove(NULL_BLOCK)

    @property
    def free_blocks(self) -> int:
        """Blocks that nothing holds, with content or without."""
        return len(self.free)

    def is_held(self, block: int) -> bool:
        """True while a request or a transfer has a reference on the block."""
        return self._references[block] > 0

    def key_of(self, block: int) -> int | None:
        """The block's content, None when blank."""
        return self._keys[block]

    def find(self, key: int) -> int | None:
        """The block that serves this content, None when there is none."""
        holders = self._holders.get(key)
        return next(iter(holders)) if holders else None

    def find_run(self, keys: Sequence[int]) -> list[int]:
        """Blocks of the longest leading run of `keys` that the pool holds."""
        run: list[int] = []
        for key in keys:
            block = self.find(key)
            if block is None:
                break
            run.append(block)
        return run

    def contents(self) -> AbstractSet[int]:
        """Keys of all content held."""
        return self._holders.keys()

    def blank_blocks(self) -> int:
        """Free blocks without content: so many can be taken before anything is evicted."""
        return sum(1 for block in self.free.after(None) if self._keys[block] is None)

    def take(self, count: int) -> list[int]:
        """Takes blocks from the head of the free queue and evicts what they held."""
        if count > len(self.free):
            raise ValueError(f"{count} blocks wanted, {len(self.free)} free")
        taken = [self.free.pop_head() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            if self._keys[block] is not None:
                self._unlabel(block)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Adds one reference each; a referenced block leaves the free queue."""
        for block in blocks:
            if self._references[block] == 0:
                self.free.remove(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference each; the order given is the order in which they will be evicted."""
        blank: list[int] = []
        labelled: list[int] = []
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                (blank if self._keys[block] is None else labelled).append(block)
        self.free.push_front(blank)
        self.free.push_back(labelled)

    def label(self, block: int, key: int) -> None:
        """Makes the block findable under this content."""
        if self._keys[block] is not None:
            self._unlabel(block)
        self._keys[block] = key
        self._holders.setdefault(key, {})[block] = None

    def clear(self) -> None:
        """Forgets all content; the order of the free queue stays (BlockPool.reset_prefix_cache)."""
        self._keys = [None] * len(self._keys)
        self._holders.clear()

    def _unlabel(self, block: int) -> None:
        key = self._keys[block]
        if key is None:
            return
        self._keys[block] = None
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]

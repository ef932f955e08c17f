"""Groups of the cache: which blocks of a prompt each needs for a hit, and which it holds.

Follows HybridKVCacheCoordinator.find_longest_cache_hit and the managers of its groups (vLLM 0.32):
a hit is the longest aligned prefix that every group can serve. Full attention needs every block,
a sliding window the blocks that its next token still sees, mamba the one state that ends there.
Scratch groups take blocks and are never cached. The trap: a mamba state exists only where a chunk
ended or at the last place where the prompt can be hit, so half a prompt may be cached and unusable.

One simplification: where hits may be finer than a block of a group (`--prefix-match-unit`), they
are aligned to the block here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvbench.engine.fake.settings import FakeGroup, FakeSettings

GROUP_BITS = 5
"""low bits of a block's key that say its group"""
HASH_MASK = ((1 << 64) - 1) ^ ((1 << GROUP_BITS) - 1)


def group_of(key: int) -> int:
    """The group of a block's key."""
    return key & ((1 << GROUP_BITS) - 1)


def hash_of(key: int) -> int:
    """The hash (u64) of a block's key, as KV events show it."""
    return key & HASH_MASK


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class Group:
    """One group as the scheduler sees it."""

    index: int
    kind: str
    """full, window, state or scratch"""
    spec_kind: str
    """the word of KV events"""
    block_tokens: int
    window_blocks: int = 0

    def first_needed(self, boundary_tokens: int) -> int:
        """Index of the first block that a hit up to the boundary needs."""
        end = boundary_tokens // self.block_tokens
        if self.kind == "window":
            return max(end - self.window_blocks, 0)
        return max(end - 1, 0) if self.kind == "state" else 0


@dataclass(slots=True)
class Hit:
    """Blocks of a cached prefix, from `start_tokens` on."""

    tokens: int = 0
    """length behind the start"""
    slots: list[list[int | None]] = field(default_factory=list)
    """per group, from the start's block on; None where the group needs no block"""


class Layout:
    """The groups of an engine and what follows from them. Raises ValueError for impossible ones."""

    def __init__(self, settings: FakeSettings) -> None:
        if len(settings.groups) > 1 << GROUP_BITS:
            raise ValueError(f"more than {1 << GROUP_BITS} KV cache groups")
        self.groups = [_group(i, group) for i, group in enumerate(settings.groups)]
        self.cacheable = [group for group in self.groups if group.kind != "scratch"]
        sizes = [group.block_tokens for group in self.cacheable or self.groups]
        self.unit_tokens = math.gcd(settings.hash_block_tokens, *sizes)
        """tokens of the smallest piece that is hashed"""
        self.alignment_tokens = math.lcm(settings.hit_alignment_tokens, *sizes)
        self.is_single = len(self.groups) == 1 and self.groups[0].kind == "full"
        self._chunk_tokens = settings.chunk_tokens
        self.key_groups = [(g.index, g.block_tokens // self.unit_tokens) for g in self.cacheable]

    def peak_blocks(self, group: Group, tokens: int) -> int:
        """Blocks of a group that a request of so many tokens holds at once, at most."""
        count = blocks_for(tokens, group.block_tokens)
        if group.kind == "window":
            chunk = blocks_for(self._chunk_tokens, group.block_tokens)
            return min(count, group.window_blocks + chunk + 1)
        return min(count, _STATES_AT_ONCE) if group.kind == "state" else count

    def pool_blocks(self, tokens: int) -> int:
        """Blocks without which a request of so many tokens cannot end."""
        return sum(self.peak_blocks(group, tokens) for group in self.groups)

    def find(
        self,
        keys: Sequence[Sequence[int]],
        find: Callable[[int], int | None],
        *,
        start_tokens: int,
        limit_tokens: int,
    ) -> Hit:
        """The longest aligned prefix behind `start_tokens` whose blocks `find` knows."""
        align = self.alignment_tokens
        runs: list[list[int | None]] = [[] for _ in self.groups]
        longest = limit_tokens // align * align if self.cacheable else 0
        for group in self.cacheable:
            if group.kind == "full":
                size = group.block_tokens
                first = start_tokens // size
                for key in keys[group.index][first : longest // size]:
                    slot = find(key)
                    if slot is None:
                        break
                    runs[group.index].append(slot)
                longest = (first + len(runs[group.index])) * size // align * align
        for boundary in range(longest, start_tokens, -align):
            slots = self._sparse(keys, find, start_tokens, boundary)
            if slots is not None:
                for group in self.cacheable:
                    if group.kind == "full":
                        count = (boundary - start_tokens) // group.block_tokens
                        slots[group.index] = runs[group.index][:count]
                return Hit(boundary - start_tokens, slots)
        return Hit(0, [[] for _ in self.groups])

    def _sparse(
        self,
        keys: Sequence[Sequence[int]],
        find: Callable[[int], int | None],
        start_tokens: int,
        boundary: int,
    ) -> list[list[int | None]] | None:
        """Slots of the groups that need few blocks, None where one of them is missing."""
        slots: list[list[int | None]] = [[] for _ in self.groups]
        for group in self.cacheable:
            if group.kind == "full":
                continue
            size = group.block_tokens
            first = start_tokens // size
            needed = max(group.first_needed(boundary), first)
            found: list[int | None] = [None] * (needed - first)
            for key in keys[group.index][needed : boundary // size]:
                slot = find(key)
                if slot is None:
                    return None
                found.append(slot)
            slots[group.index] = found
        return slots

    def new_blocks(
        self, group: Group, held: int, reached_tokens: int, prompt_tokens: int
    ) -> list[bool]:
        """For each table entry behind `held` that a step up to `reached_tokens` adds: whether it is
        a block; a mamba state between two places that count is never written down."""
        end = blocks_for(reached_tokens, group.block_tokens)
        if group.kind != "state":
            return [True] * (end - held)
        size = group.block_tokens
        reusable = min(reached_tokens, max(prompt_tokens - 1, 0))
        kept = {
            reached_tokens // size - 1,
            reusable // self.alignment_tokens * self.alignment_tokens // size - 1,
            end - 1,
        }
        return [i in kept for i in range(held, end)]


_STATES_AT_ONCE = 4
"""the one before a chunk and the three that it may write"""
_SPEC_KINDS = {"mla": "mla_attention", "chunked_local": "chunked_local_attention"}
"""KVCacheSpecKind's words where they differ from ours"""


def _group(index: int, group: FakeGroup) -> Group:
    size = group.block_tokens
    spec_kind = _SPEC_KINDS.get(group.kind, group.kind)
    if group.kind in ("sliding_window", "chunked_local") and group.window_tokens is not None:
        # vLLM: a window of n tokens needs the n - 1 before the next one (SlidingWindowManager).
        return Group(index, "window", spec_kind, size, blocks_for(group.window_tokens - 1, size))
    kind = {"mamba": "state", "scratch": "scratch"}.get(group.kind, "full")
    return Group(index, kind, spec_kind, size)

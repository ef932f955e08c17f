"""How many requests, fillers and sentinels a GPU block pool holds.

Groups of a hybrid model take their blocks from one pool. How many a recurrent group takes depends
on the engine, so there are two counts: the least that a request takes (to refuse what cannot work,
and to be sure that a filler evicts) and the most (to be sure that requests fit together).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kvbench.scenario.engines import ServedEngine
from kvbench.scenario.geometry import Geometry

_WHOLE_CONTEXT: Final = frozenset({"full_attention", "mla"})
# Stores in flight hold blocks of finished requests, so one wave never plans for the whole pool.
WAVE_SHARE: Final = 0.75
# A prime and a scored request of each prompt must fit beside each other.
HOT_SHARE: Final = 0.5


class Room:
    """Block counts for one engine; without geometry or pool size everything is taken to fit."""

    def __init__(self, geometry: Geometry | None, engine: ServedEngine) -> None:
        self.geometry = geometry
        self._max_tokens = engine.max_model_len_tokens
        # One block of the pool is vLLM's null block.
        self.blocks = None if engine.gpu_blocks is None else engine.gpu_blocks - 1

    @property
    def is_known(self) -> bool:
        """Tell whether blocks can be counted at all."""
        return self.geometry is not None and self.blocks is not None

    def least_blocks(self, tokens: int) -> int:
        """Return the blocks that so many tokens take at least."""
        return self._count(tokens, lambda kind, blocks: blocks if kind in _WHOLE_CONTEXT else 1)

    def most_blocks(self, tokens: int) -> int:
        """Return the blocks that so many tokens can take."""
        return self._count(tokens, lambda _kind, blocks: blocks)

    def waves(
        self, lengths: Sequence[int], *, new_tokens: int, most: int, share: float
    ) -> tuple[list[list[int]], bool]:
        """Return indices of requests that fit together in a share of the pool, and if it limits.

        `most` is the most requests in a wave; a request that fits nowhere gets a wave of its own.
        """
        waves: list[list[int]] = []
        used, is_limited = 0, False
        for index, length in enumerate(lengths):
            need = self.most_blocks(length + new_tokens)
            is_full = bool(waves) and self._is_over(used + need, share)
            if waves and len(waves[-1]) < most and not is_full:
                waves[-1].append(index)
                used += need
                continue
            is_limited |= bool(waves) and len(waves[-1]) < most
            waves.append([index])
            used = need
        return waves, is_limited

    def filler_lengths(self, factor: float) -> list[int]:
        """Return the lengths of fillers that together take `factor` times the pool, each at most
        half of it and ending on a block's edge, so that no block of one is left unlabelled."""
        assert self.geometry is not None
        assert self.blocks is not None
        unit = max(group.block_tokens for group in self.geometry.groups)
        limit = self._max_tokens - 1 if self._max_tokens is not None else None
        units = 1
        while self._fits_half((units + 1) * unit, limit):
            units += 1
        length = units * unit if limit is None else min(units * unit, limit)
        return [length] * -int(-factor * self.blocks // self.least_blocks(length))

    def sentinel_tokens(self) -> int | None:
        """Return the length of a sentinel; None where none fits."""
        assert self.geometry is not None
        unit = self.geometry.hit_alignment_tokens
        for length in (2 * unit + 64, unit + 64, unit + 1):
            if self._is_within(length + 1):
                return length
        return None

    def _is_within(self, tokens: int) -> bool:
        is_short = self._max_tokens is None or tokens <= self._max_tokens
        return is_short and (self.blocks is None or self.least_blocks(tokens) <= self.blocks)

    def _fits_half(self, tokens: int, limit: int | None) -> bool:
        assert self.blocks is not None
        return self.most_blocks(tokens) <= self.blocks // 2 and (limit is None or tokens <= limit)

    def _is_over(self, blocks: int, share: float) -> bool:
        return self.is_known and self.blocks is not None and blocks > self.blocks * share

    def _count(self, tokens: int, rule: Callable[[str, int], int]) -> int:
        groups = self.geometry.groups if self.geometry is not None else ()
        return sum(rule(group.kind, -(-tokens // group.block_tokens)) for group in groups)

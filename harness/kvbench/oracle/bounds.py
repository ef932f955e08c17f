"""Ranges for hits when the exact content of a pool is not known.

A block can only hit if its whole prefix was computed before and not cleared since: that bounds a
hit from above in every geometry. From below only a block that provably stayed counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from kvbench.oracle.geometry import TokenRange


class Span(NamedTuple):
    """Lowest and highest number of blocks."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a pool holds for certain and what it may hold, as block keys."""

    surely: AbstractSet[int]
    perhaps: AbstractSet[int]

    def for_request(self, keys: Iterable[int], *, more: AbstractSet[int]) -> Content:
        """The part that matters to one request; `more` may have been added in the meantime."""
        own = frozenset(keys)
        return Content(own & self.surely, (own & self.perhaps) | (own & more))

    def without_certainty(self) -> Content:
        """The same content after evictions that nobody can name."""
        return Content(frozenset(), self.perhaps)


NOTHING = Content(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class HitSpan:
    """Bounds in blocks on one request's hits."""

    local: Span
    external: Span
    cached: Span

    def in_tokens(
        self, block_tokens: int, alignment_tokens: int, longest_tokens: int
    ) -> tuple[TokenRange, TokenRange, TokenRange]:
        """Local, external and cached ranges, aligned down and cut at the longest possible hit."""

        def tokens(blocks: int) -> int:
            return min(blocks * block_tokens // alignment_tokens * alignment_tokens, longest_tokens)

        ranges = [TokenRange(tokens(s.low), tokens(s.high)) for s in self._spans()]
        return ranges[0], ranges[1], ranges[2]

    def _spans(self) -> tuple[Span, Span, Span]:
        return self.local, self.external, self.cached


def content_of(held: Sequence[AbstractSet[int]]) -> Content:
    """What pools hold that model the same pool under different timings."""
    if len(held) == 1:
        return Content(held[0], held[0])
    return Content(frozenset(held[0]).intersection(*held[1:]), frozenset(held[0]).union(*held[1:]))


def leading_run(keys: Sequence[int], held: AbstractSet[int]) -> int:
    """Length of the leading run of `keys` that is held."""
    return next((i for i, key in enumerate(keys) if key not in held), len(keys))


def runs_from(keys: Sequence[int], held: AbstractSet[int]) -> list[int]:
    """For each position, the length of the run of held keys from there on (one more entry: 0)."""
    runs = [0] * (len(keys) + 1)
    for i in range(len(keys) - 1, -1, -1):
        runs[i] = runs[i + 1] + 1 if keys[i] in held else 0
    return runs


def bound_hit(
    local_keys: Sequence[int],
    external_keys: Sequence[int],
    *,
    gpu: Content,
    host: Content,
    local_floor: int = 0,
) -> HitSpan:
    """Bounds on a hit whose external part starts where the local part ends.

    `local_keys` and `external_keys` are the same prefix up to the longest local and external hit;
    `local_floor` is a local hit, in blocks, that is known by other means.
    """
    low = max(leading_run(local_keys, gpu.surely), local_floor)
    high = max(leading_run(local_keys, gpu.perhaps), low)
    least = runs_from(external_keys, host.surely)
    most = runs_from(external_keys, host.perhaps)
    starts = range(low, high + 1)
    return HitSpan(
        local=Span(low, high),
        external=Span(min(least[i] for i in starts), max(most[i] for i in starts)),
        cached=Span(min(i + least[i] for i in starts), max(i + most[i] for i in starts)),
    )

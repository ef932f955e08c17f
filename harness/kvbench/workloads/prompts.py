"""Prompts as token ids: seeded by their id, and no two sharing a block unless asked.

The trap: a prompt that shares its first block with another hits without ever having been stored,
and a filler or sentinel that does so proves nothing. So the first blocks are compared, not trusted
to chance.
"""

from __future__ import annotations

import random
from typing import Final

from kvbench.errors import UsageError
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.replay import Prompts

# Compared where the hash block is not declared; no vLLM block is smaller.
_SHORTEST_BLOCK_TOKENS: Final = 16
_TRIES: Final = 100


class PromptBook:
    """The prompts of one stage, by id (`<stage>/p1`, fillers `f1`, sentinels `s1`)."""

    def __init__(
        self, stage: str, prompts: Prompts, geometry: Geometry | None, *, is_scored: bool = True
    ) -> None:
        self._stage = stage
        self._prompts = prompts
        self._head_tokens = (
            geometry.hash_block_tokens if geometry is not None else _SHORTEST_BLOCK_TOKENS
        )
        self._heads: set[tuple[int, ...]] = set()
        self.tokens: dict[str, tuple[int, ...]] = {}
        shared = self._draw(f"{stage}/shared", prompts.shared_prefix_tokens)
        if shared:
            self._heads.add(shared[: self._head_tokens])
        # Without scored prompts the book is for sentinels only: another program has its own.
        lengths = prompt_lengths(prompts, geometry) if is_scored else ()
        self.scored = tuple(f"{stage}/p{n}" for n in range(1, len(lengths) + 1))
        for prompt_id, length in zip(self.scored, lengths, strict=True):
            if shared:
                rest = self._draw(prompt_id, length - len(shared))
                self.tokens[prompt_id] = (*shared, *rest)
            else:
                self._add(prompt_id, length)

    def filler(self, number: int, length: int) -> str:
        """Return the id of a filler, made when first asked for."""
        return self._made(f"{self._stage}/f{number}", length)

    def sentinel(self, number: int, length: int) -> str:
        """Return the id of a sentinel, made when first asked for."""
        return self._made(f"{self._stage}/s{number}", length)

    def length(self, prompt_id: str) -> int:
        """Return the length of a prompt, in tokens."""
        return len(self.tokens[prompt_id])

    def _made(self, prompt_id: str, length: int) -> str:
        if prompt_id not in self.tokens:
            self._add(prompt_id, length)
        return prompt_id

    def _add(self, prompt_id: str, length: int) -> None:
        for attempt in range(_TRIES):
            tokens = self._draw(prompt_id if attempt == 0 else f"{prompt_id}+{attempt}", length)
            head = tokens[: self._head_tokens]
            if head not in self._heads:
                self._heads.add(head)
                self.tokens[prompt_id] = tokens
                return
        raise UsageError(
            f"stages.{self._stage}.workload.prompts: no prompts with distinct first blocks found; "
            "widen low_token_id..high_token_id or lengthen the prompts"
        )

    def _draw(self, name: str, length: int) -> tuple[int, ...]:
        source = random.Random(f"{self._prompts.seed}:{name}")  # noqa: S311 - not for secrets
        low, high = self._prompts.low_token_id, self._prompts.high_token_id
        return tuple(source.randrange(low, high) for _ in range(length))


def prompt_lengths(prompts: Prompts, geometry: Geometry | None) -> tuple[int, ...]:
    """Return the lengths of the scored prompts, in tokens; blocks need a declared geometry."""
    if prompts.blocks and geometry is None:
        raise UsageError(
            "prompts.blocks counts hit-alignment blocks, and model.geometry is not declared; "
            "write lengths_tokens instead"
        )
    unit = geometry.hit_alignment_tokens if geometry is not None else 0
    from_blocks = [
        blocks * unit + offset for blocks in prompts.blocks for offset in prompts.offsets_tokens
    ]
    lengths = (*from_blocks, *prompts.lengths_tokens)
    shortest = min(lengths)
    if shortest < 1 or shortest <= prompts.shared_prefix_tokens:
        raise UsageError(
            f"prompts: a length of {shortest} tokens is not above shared_prefix_tokens "
            f"({prompts.shared_prefix_tokens}); make the prompts longer"
        )
    return lengths

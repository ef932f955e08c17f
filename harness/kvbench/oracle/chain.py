"""Identities of cached blocks: a block is known by all tokens up to its end.

Follows vllm/v1/core/kv_cache_utils.py (hash_block_tokens): the hash of a block covers its tokens,
the hash of the block before it and, for the first block, the cache salt. Here keys are numbers. The
trap is the answer: generated tokens fill blocks too, but are not known when a plan is made. Under
greedy decoding they follow from the prompt: "token j of the answer to this prompt" stands for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Chains:
    """Numbers each distinct prefix; equal prefixes get equal numbers within one instance."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._numbers: dict[Hashable, int] = {}

    def keys(
        self, prompt: Sequence[int], *, new_tokens: int, salt: str, answer: Sequence[int] | None
    ) -> list[int]:
        """Keys of the blocks that a finished request leaves behind.

        The last sampled token is never computed, so the blocks cover prompt + new_tokens - 1 tokens
        (Scheduler.update_from_output stops the request before that token is scheduled).
        """
        size = self._block_tokens
        whole = self._number(("prompt", salt, tuple(prompt)))
        generated: list[Hashable] = [(whole, i) for i in range(new_tokens - 1)]
        for i, token in enumerate((answer or ())[: new_tokens - 1]):
            generated[i] = token
        tokens: list[Hashable] = [*prompt, *generated]
        keys: list[int] = []
        parent = self._number(("salt", salt))
        for start in range(0, len(tokens) // size * size, size):
            parent = self._number((parent, tuple(tokens[start : start + size])))
            keys.append(parent)
        return keys

    def _number(self, name: Hashable) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

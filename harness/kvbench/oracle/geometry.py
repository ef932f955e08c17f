"""The words of the oracle: token ranges, cache geometry, tier kinds and one request's expectation.

The trap: a hit is not "most of the prompt". vLLM always recomputes the last token and aligns hits
to a block, so a prompt of exactly n blocks hits n - 1 of them; only the native OffloadingConnector
may report the whole prompt as cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["full_attention", "sliding_window", "mamba"]
TierKind = Literal["none", "simple_eager", "simple_lazy", "native", "unknown"]
TransferTiming = Literal["immediate", "overlapped"]


@dataclass(frozen=True, slots=True)
class TokenRange:
    """An inclusive range of token counts; exact when both ends agree."""

    low_tokens: int
    high_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.low_tokens <= self.high_tokens:
            raise ValueError(f"not a token range: {self.low_tokens}..{self.high_tokens}")

    @classmethod
    def exactly(cls, tokens: int) -> TokenRange:
        """The range of one value."""
        return cls(tokens, tokens)

    @property
    def is_exact(self) -> bool:
        """True when only one value is left."""
        return self.low_tokens == self.high_tokens

    def contains(self, tokens: int) -> bool:
        """True when the measured count lies in the range."""
        return self.low_tokens <= tokens <= self.high_tokens

    def __str__(self) -> str:
        if self.is_exact:
            return str(self.low_tokens)
        return f"{self.low_tokens}..{self.high_tokens}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What one request should hit, in tokens.

    `cached` is `usage.prompt_tokens_details.cached_tokens`. When the tiers are exact it is their
    sum; with ranges it may be tighter than that (a block that either tier can serve).
    """

    local: TokenRange
    external: TokenRange
    cached: TokenRange
    max_hit_tokens: int
    notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """True when both tiers and their sum are exact."""
        return self.local.is_exact and self.external.is_exact and self.cached.is_exact


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """One KV cache group; `block_tokens` is its resolved size (context parallelism included)."""

    kind: GroupKind
    block_tokens: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """The engine's cache as the scheduler sees it.

    `gpu_blocks` is `num_gpu_blocks` and includes the null block (vllm/v1/core/block_pool.py);
    `chunk_tokens` is `max_num_batched_tokens`, the most tokens that one step computes.
    """

    groups: tuple[GroupGeometry, ...]
    hash_block_tokens: int
    hit_alignment_tokens: int
    gpu_blocks: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        sizes = (self.hash_block_tokens, self.hit_alignment_tokens, self.chunk_tokens)
        if not self.groups or min(*sizes, *(g.block_tokens for g in self.groups)) < 1:
            raise ValueError("a geometry needs a group and sizes of one token or more")
        if self.gpu_blocks < 2:
            raise ValueError("gpu_blocks counts the null block, so it must be at least 2")
        if self.hit_alignment_tokens % self.hash_block_tokens:
            raise ValueError("hit_alignment_tokens must be a multiple of hash_block_tokens")

    @property
    def is_single_full_attention(self) -> bool:
        """True for what vLLM serves with UnitaryKVCacheCoordinator and full attention."""
        group = self.groups[0]
        return (
            len(self.groups) == 1
            and group.kind == "full_attention"
            and group.block_tokens == self.hash_block_tokens == self.hit_alignment_tokens
        )


@dataclass(frozen=True, slots=True)
class TierModel:
    """The external tier. `host_blocks` is the connector's pool in GPU-block-sized blocks.

    SimpleCPU's pool loses one of them to its null block. `chunk_blocks` is the native connector's
    chunk (its `block_size` option) in GPU blocks. `host_blocks=None` means unknown: ranges.
    "native" is the CPU tier alone (no file tier), with its default options.
    """

    kind: TierKind
    host_blocks: int | None
    chunk_blocks: int = 1

    def __post_init__(self) -> None:
        if self.chunk_blocks < 1:
            raise ValueError("chunk_blocks must be at least 1")
        if self.host_blocks is not None and self.host_blocks < 1:
            raise ValueError("host_blocks must be at least 1, or None when unknown")


def max_hit_tokens(prompt_tokens: int, geometry: CacheGeometry, tier: TierModel) -> int:
    """Longest hit that the geometry allows for a prompt, in tokens, both tiers together.

    Local and SimpleCPU hits end before the last token (KVCacheManager.get_computed_blocks,
    SimpleCPUOffloadScheduler.get_num_new_matched_tokens). The native connector may load the whole
    prompt; the scheduler then recomputes one token all the same
    (Scheduler._update_waiting_for_remote_kv). An unknown connector is given the same freedom.
    """
    alignment = geometry.hit_alignment_tokens
    longest = max(prompt_tokens - 1, 0) // alignment * alignment
    if tier.kind == "native":
        chunk = alignment * tier.chunk_blocks
        longest = max(longest, prompt_tokens // chunk * chunk)
    elif tier.kind == "unknown":
        longest = max(longest, prompt_tokens // alignment * alignment)
    return longest

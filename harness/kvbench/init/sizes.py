"""How long the prompts are and how large the pools: small, and yet every phase does what it is for.

Three cases. With a declared geometry everything is counted in its blocks. Of a model with full
attention the block can be asked for (`--block-size`), so the pool is known in tokens and fillers
can turn it over. Of any other model without a declared geometry the block is vLLM's choice: then
nothing is put under pressure, and the tier is asked after resets only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from kvbench.errors import UsageError
from kvbench.init.checkpoint import Checkpoint
from kvbench.init.choices import ChosenModel, KnownModel
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.models import DTYPE_BYTES

CPU_BLOCK_TOKENS: Final = 128
GPU_BLOCK_TOKENS: Final = 16
NEW_TOKENS: Final = 16
_CPU_POOL_TOKENS: Final = 4096
_GPU_POOL_TOKENS: Final = 12_288
"""half of it holds four of the longest prompts, as the hot phase needs at concurrency 4"""
_PRESSURE: Final = 1.5
"""filler tokens, as a multiple of the GPU pool"""
_POOLS_KEPT: Final = 5
_POOLS_KEPT_OF_GROUPS: Final = 12
"""host pool, as a multiple of the GPU pool: what such a run stores between two resets of both
tiers fits (a fresh run, two hot and replay runs, and the fillers of two pressures)"""
_SMALLEST_POOL_BYTES: Final = 64 << 20
_UNKNOWN_POOL_BYTES: Final = 8 << 30
_UNKNOWN_POOL_BYTES_ON_CPU: Final = 1 << 30
_NO_PRESSURE: Final = ("fresh", "hot", "reload", "cold_again")
_SPECIAL_IDS: Final = 1000
"""real tokenizers keep their special tokens at either end of the vocabulary"""
_DEFAULT_IDS_END: Final = 900
"""one above the largest token id of a workload that names none"""
_UNKNOWN_VOCABULARY: Final = 30_000


@dataclass(frozen=True)
class Sizes:
    """The numbers of a scenario; None and empty ones are left out of it."""

    lengths_tokens: tuple[int, ...]
    max_model_len_tokens: int
    chunk_tokens: int
    blocks: tuple[int, ...] = ()
    offsets_tokens: tuple[int, ...] = ()
    gpu_blocks: int | None = None
    block_tokens: int | None = None
    filler_lengths_tokens: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    token_ids: tuple[int, int] | None = None
    concurrency: tuple[int, ...] = (1, 2)


def sizes_of(chosen: ChosenModel, *, is_cpu: bool) -> Sizes:
    """Return sizes for a model; raises UsageError for one that takes too short prompts."""
    if isinstance(chosen, KnownModel) and chosen.model.geometry is not None:
        return _declared(chosen.model.geometry, is_cpu=is_cpu)
    if isinstance(chosen, Checkpoint) and chosen.attention == "full attention":
        sizes = _full_attention(chosen, is_cpu=is_cpu)
    else:
        sizes = _unknown_blocks(chosen, is_cpu=is_cpu)
    limit = chosen.longest_tokens if isinstance(chosen, Checkpoint) else None
    if limit is not None and limit < max(sizes.lengths_tokens) + NEW_TOKENS:
        raise UsageError(
            f"the model takes {limit} tokens at most, and a first scenario needs prompts of "
            f"{max(sizes.lengths_tokens)} with {NEW_TOKENS} new tokens; write it by hand "
            "(docs/scenarios.md)"
        )
    return sizes


def default_pool_bytes(chosen: ChosenModel, sizes: Sizes, *, gpus: int) -> int:
    """Return a host pool, over all ranks, that keeps what such a run stores between two resets."""
    wanted = _stored_bytes(chosen, sizes, max(gpus, 1))
    if wanted is None:
        return _UNKNOWN_POOL_BYTES if gpus else _UNKNOWN_POOL_BYTES_ON_CPU
    size = _SMALLEST_POOL_BYTES
    while size < wanted:
        size *= 2
    return size


def _stored_bytes(chosen: ChosenModel, sizes: Sizes, ranks: int) -> int | None:
    if sizes.gpu_blocks is None:
        return None
    if isinstance(chosen, Checkpoint):
        values = chosen.kv_values_per_token(ranks)
        if values is None or sizes.block_tokens is None:
            return None
        block_bytes = values * sizes.block_tokens * DTYPE_BYTES[chosen.dtype or "bfloat16"]
        return _POOLS_KEPT * sizes.gpu_blocks * block_bytes
    geometry = chosen.model.geometry if isinstance(chosen, KnownModel) else None
    if not isinstance(chosen, KnownModel) or geometry is None:
        return None
    of_block = geometry.block_bytes
    if of_block is None and geometry.kv_values_per_token is not None:
        number = DTYPE_BYTES.get(chosen.engine.get("dtype", ""), 2)
        of_block = geometry.kv_values_per_token * geometry.groups[0].block_tokens * number
    kept = _POOLS_KEPT if len(geometry.groups) == 1 else _POOLS_KEPT_OF_GROUPS
    return None if of_block is None else kept * sizes.gpu_blocks * of_block


def _declared(geometry: Geometry, *, is_cpu: bool) -> Sizes:
    unit = geometry.hit_alignment_tokens
    if len(geometry.groups) > 1:
        # Without --prefix-match-unit only lengths up to 128 tokens above a multiple of the unit are
        # right on vLLM's CPU build (docs/cpu.md).
        return Sizes(
            lengths_tokens=(),
            blocks=(2, 3),
            offsets_tokens=(46, 128) if is_cpu else (1, 46, 100, 128),
            gpu_blocks=8 * len(geometry.groups) if is_cpu else 20 * len(geometry.groups),
            max_model_len_tokens=_rounded(3 * unit + 128 + NEW_TOKENS),
            chunk_tokens=_rounded(unit + unit // 2),
            concurrency=(1,) if is_cpu else (1, 2),
        )
    scale = max(CPU_BLOCK_TOKENS // unit, 1)
    step = unit * scale
    more = (8 * step - 24,) if is_cpu else (5 * step + step // 2, 8 * step - 24)
    return Sizes(
        lengths_tokens=more,
        blocks=(3 * scale,) if is_cpu else (2 * scale, 4 * scale),
        offsets_tokens=(-1, 0, 1),
        gpu_blocks=(32 if is_cpu else 96) * scale,
        max_model_len_tokens=16 * step,
        chunk_tokens=4 * step,
        concurrency=(1, 2) if is_cpu else (1, 4),
    )


def _full_attention(chosen: Checkpoint, *, is_cpu: bool) -> Sizes:
    block = CPU_BLOCK_TOKENS if is_cpu else GPU_BLOCK_TOKENS
    pool = _CPU_POOL_TOKENS if is_cpu else _GPU_POOL_TOKENS
    longest = min(2048, chosen.longest_tokens or 2048)
    # Ending on a block's edge, so that no block of a filler is left unlabelled.
    filler = min(pool // 4, longest - 1) // block * block
    few, many = (383, 384, 385, 1000), (255, 256, 257, 511, 512, 513, 704, 1000)
    return Sizes(
        lengths_tokens=few if is_cpu else many,
        block_tokens=block,
        gpu_blocks=pool // block,
        max_model_len_tokens=longest,
        chunk_tokens=512,
        filler_lengths_tokens=(filler,) * ceil(_PRESSURE * pool / max(filler, block)),
        token_ids=_token_ids(chosen.vocabulary),
        concurrency=(1, 2) if is_cpu else (1, 4),
    )


def _unknown_blocks(chosen: ChosenModel, *, is_cpu: bool) -> Sizes:
    """Prompts that are longer than any block of a hybrid that is known to us."""
    some, many = (2350, 2700, 3000, 3500), (2350, 2700, 3000, 3500, 4097, 5000, 6001, 8000)
    vocabulary = chosen.vocabulary if isinstance(chosen, Checkpoint) else _UNKNOWN_VOCABULARY
    return Sizes(
        lengths_tokens=some if is_cpu else many,
        max_model_len_tokens=4096 if is_cpu else 8192,
        chunk_tokens=2048,
        phases=_NO_PRESSURE,
        token_ids=_token_ids(vocabulary),
        concurrency=(1,) if is_cpu else (1, 4),
    )


def _token_ids(vocabulary: int | None) -> tuple[int, int] | None:
    """Return the smallest id used and one above the largest; None leaves kvbench's own default."""
    if vocabulary is None or _DEFAULT_IDS_END <= vocabulary < 4 * _SPECIAL_IDS:
        return None
    if vocabulary < _DEFAULT_IDS_END:
        return vocabulary // 8, vocabulary
    return _SPECIAL_IDS, min(vocabulary - _SPECIAL_IDS, 100_000)


def _rounded(tokens: int) -> int:
    return ceil(tokens / 1024) * 1024

"""One request through vLLM's engine steps, for a single full-attention group.

Follows vLLM 0.32: EngineCore.step, Scheduler.schedule and update_from_output, KVCacheManager. The
trap is the order of small things inside a step, because it decides which block is evicted next:

1. blocks are taken and labelled when a step is scheduled, before its tokens exist;
2. then the tier picks what to store;
3. after the step a finished request gives its blocks back, tail first;
4. only then are the transfers of that step seen as complete, and their blocks come back head first;
5. a finished request causes one more step without tokens, and more while stores are pending.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.oracle.geometry import CacheGeometry, TierModel
from kvbench.oracle.native import NativeTier
from kvbench.oracle.pool import BlockPool
from kvbench.oracle.simple import EagerTier, LazyTier
from kvbench.oracle.work import Hit, NoTier, Tier, Work

MAX_IDLE_STEPS = 64


def is_modelled(geometry: CacheGeometry, tier: TierModel) -> bool:
    """True when `Engine` can replay this geometry and tier block by block."""
    if not geometry.is_single_full_attention or tier.kind == "unknown":
        return False
    return tier.kind == "none" or tier.host_blocks is not None


def make_tier(geometry: CacheGeometry, tier: TierModel, *, store_steps: int | None) -> Tier:
    """The tier's model; the tier must be one that `is_modelled` accepts."""
    size, host = geometry.hash_block_tokens, tier.host_blocks
    if tier.kind == "none" or host is None:
        return NoTier()
    if tier.kind == "native":
        return NativeTier(host_blocks=host, block_tokens=size, chunk_blocks=tier.chunk_blocks)
    if tier.kind == "simple_eager":
        return EagerTier(host_blocks=host, block_tokens=size, store_steps=store_steps)
    return LazyTier(
        host_blocks=host,
        block_tokens=size,
        store_steps=store_steps,
        chunk_tokens=geometry.chunk_tokens,
    )


class Engine:
    """The GPU pool, a tier and the step loop for requests that run alone."""

    def __init__(
        self, geometry: CacheGeometry, tier: TierModel, *, store_steps: int | None = 0
    ) -> None:
        self.gpu = BlockPool(geometry.gpu_blocks)
        self.tier = make_tier(geometry, tier, store_steps=store_steps)
        self._stores_outlast = store_steps is None
        self._block_tokens = geometry.hash_block_tokens
        self._chunk_tokens = geometry.chunk_tokens

    def run(self, keys: Sequence[int], *, prompt_tokens: int, total_tokens: int) -> Hit:
        """Runs one request from arrival to an idle engine; returns what it hit."""
        work = Work(keys, prompt_tokens, total_tokens)
        hit = self._admit(work)
        while work.computed_tokens < total_tokens:
            self._step(work)
        self._settle()
        return hit

    def reset(self, *, external: bool) -> None:
        """Clears the GPU's cache and, if asked, the tier (Scheduler.reset_prefix_cache)."""
        self.gpu.clear()
        if external:
            self.tier.clear()

    def _admit(self, work: Work) -> Hit:
        size = self._block_tokens
        local = self.gpu.find_run(work.keys[: (work.prompt_tokens - 1) // size])
        external = self.tier.find(work, len(local))
        self.gpu.touch(local)
        work.table.extend(local)
        work.labelled_blocks = len(local)
        if external:
            # The load has a step of its own, without tokens; its blocks are labelled after it.
            self._take(work, external)
            self.tier.schedule(self.gpu, work, 0)
            self.tier.load(work)
            self.tier.end_step(self.gpu)
            self._label(work, len(work.table))
        # A prompt that is cached whole has its last token computed again.
        work.computed_tokens = min(len(work.table) * size, work.prompt_tokens - 1)
        return Hit(len(local), external)

    def _step(self, work: Work) -> None:
        size = self._block_tokens
        left = work.prompt_tokens - work.computed_tokens
        tokens = min(left, self._chunk_tokens) if left > 0 else 1
        reached = work.computed_tokens + tokens
        self._take(work, -(-reached // size) - len(work.table))
        self._label(work, reached // size)
        self.tier.schedule(self.gpu, work, tokens)
        work.computed_tokens = reached
        if reached == work.total_tokens:
            self.tier.finish(self.gpu, work)
            self.gpu.release(reversed(work.table))
        self.tier.end_step(self.gpu)

    def _settle(self) -> None:
        """Idle steps until no store is pending; at least one, for the finished request.

        Lazy mode with slow copies and a host pool smaller than its target may store the same blocks
        round and round; the model then stops where a real engine goes on.
        """
        for _ in range(MAX_IDLE_STEPS):
            self.tier.schedule(self.gpu, None, 0)
            self.tier.end_step(self.gpu, drain=self._stores_outlast)
            if not self.tier.has_pending():
                return
        self.tier.end_step(self.gpu, drain=True)

    def _take(self, work: Work, count: int) -> None:
        if count > self.gpu.free_blocks:
            # Blocks held by unfinished stores come back before the request can go on.
            self.tier.end_step(self.gpu, drain=True)
        if count > 0:
            work.table.extend(self.gpu.take(count))

    def _label(self, work: Work, full_blocks: int) -> None:
        for i in range(work.labelled_blocks, full_blocks):
            self.gpu.label(work.table[i], work.keys[i])
        work.labelled_blocks = max(work.labelled_blocks, full_blocks)

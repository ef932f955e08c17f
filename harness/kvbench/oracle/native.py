"""The native OffloadingConnector with CPU chunks and LRU order, for a single full-attention group.

Follows OffloadingConnectorScheduler (kv_connector/v1/offloading/scheduler.py), CPUOffloadingManager
and LRUCachePolicy (v1/kv_offload/cpu), vLLM 0.32, with the defaults: `store_threshold` 0, policy
"lru", `offload_prompt_only` on. The traps:

- blocks that generated tokens complete are not stored (SimpleCPU stores them);
- it may load the whole prompt, so `cached_tokens == prompt_tokens` is right here;
- less than one chunk behind the local hit is never loaded, even if the chunk is there;
- every chunk that a request stored, loaded or offered again is renewed when it finishes, tail
  first, so the head of a prompt is evicted last (SimpleCPU evicts it first);
- a store that only fits by evicting chunks in flight is refused as a whole and offered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from kvbench.oracle.pool import BlockPool
from kvbench.oracle.work import Work


class NativeTier:
    """Chunks by key; stores hold no GPU block, so the GPU's order is that of no connector."""

    def __init__(self, *, host_blocks: int, block_tokens: int, chunk_blocks: int) -> None:
        self._capacity = host_blocks // chunk_blocks
        self._block_tokens = block_tokens
        self._chunk_blocks = chunk_blocks
        self._chunk_tokens = block_tokens * chunk_blocks
        self._ranks: dict[int, int] = {}
        self._is_ready: dict[int, bool] = {}
        self._next_rank = 0
        self._starting: list[int] = []
        self._flying: list[int] = []
        self._done: Work | None = None
        self._used: dict[int, int] = {}
        self._loading: list[int] = []

    def find(self, work: Work, local_blocks: int) -> int:
        """Blocks to add behind the local hit; pinned until `load`."""
        size, local_tokens = self._chunk_tokens, local_blocks * self._block_tokens
        keys = self._chunk_keys(work, work.prompt_tokens)
        start = local_tokens // size
        run = 0
        while start + run < len(keys) and self._is_ready.get(keys[start + run], False):
            run += 1
        tokens = min(work.prompt_tokens, (start + run) * size) - local_tokens
        if run == 0 or tokens < size:
            return 0
        self._loading = keys[start : start + run]
        work.stored_units = start + run
        return tokens // self._block_tokens

    def load(self, work: Work) -> None:
        """The pinned blocks have arrived."""
        self._note(work, self._loading)
        self._loading = []

    def schedule(
        self,
        gpu: BlockPool,  # noqa: ARG002 - Tier's signature
        work: Work | None,
        scheduled_tokens: int,
    ) -> None:
        """Starts stores of this step."""
        # A store chosen in one step is copied at the start of the next (prepare_store_kv).
        self._flying, self._starting = self._flying + self._starting, []
        if work is not None and scheduled_tokens:
            self._offer(work, min(work.computed_tokens + scheduled_tokens, work.prompt_tokens))
        if self._done is not None:
            self._offer(self._done, self._done.prompt_tokens)
            self._renew()
            self._done = None

    def finish(self, gpu: BlockPool, work: Work) -> None:  # noqa: ARG002 - Tier's signature
        """Notes what the request leaves to store."""
        self._done = work

    def end_step(self, gpu: BlockPool, *, drain: bool = False) -> None:  # noqa: ARG002
        """Sees complete transfers."""
        for key in self._flying:
            self._is_ready[key] = True
        self._flying = []

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flying or self._starting or self._done is not None)

    def clear(self) -> None:
        """The external reset."""
        self._ranks.clear()
        self._is_ready.clear()

    def contents(self) -> AbstractSet[int]:
        """Keys of all that could be loaded."""
        return self._ranks.keys()

    def blank_blocks(self) -> int:
        """Blocks that can be filled before the tier evicts."""
        return (self._capacity - len(self._ranks)) * self._chunk_blocks

    def _chunk_keys(self, work: Work, tokens: int) -> list[int]:
        """A chunk is known by its last block's key."""
        step = self._chunk_blocks
        return list(work.keys[: tokens // self._block_tokens][step - 1 :: step])

    def _note(self, work: Work, keys: Sequence[int]) -> None:
        chunks = self._chunk_keys(work, work.prompt_tokens)
        order = {key: position for position, key in enumerate(chunks)}
        for key in keys:
            self._used[key] = order[key]

    def _offer(self, work: Work, tokens: int) -> None:
        keys = self._chunk_keys(work, tokens)
        offered = keys[work.stored_units :]
        if offered and not self._store(work, offered):
            return
        work.stored_units = max(work.stored_units, len(keys))

    def _store(self, work: Work, offered: Sequence[int]) -> bool:
        """CPUOffloadingManager.prepare_store: all the new keys, or none."""
        new = [key for key in offered if key not in self._ranks]
        self._note(work, [key for key in offered if key in new or self._is_ready[key]])
        excess = len(self._ranks) + len(new) - self._capacity
        if excess > 0:
            protected = set(offered)
            idle = [k for k in self._ranks if self._is_ready[k] and k not in protected]
            if excess > len(idle):
                return False
            for key in sorted(idle, key=self._ranks.__getitem__)[:excess]:
                del self._ranks[key], self._is_ready[key]
        for key in new:
            self._rank(key)
            self._is_ready[key] = False
        self._starting.extend(new)
        return True

    def _renew(self) -> None:
        for key in sorted(self._used, key=self._used.__getitem__, reverse=True):
            if key in self._ranks:
                self._rank(key)
        self._used = {}

    def _rank(self, key: int) -> None:
        self._next_rank += 1
        self._ranks[key] = self._next_rank

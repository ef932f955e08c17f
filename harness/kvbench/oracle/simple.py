"""SimpleCPUOffloadConnector's stores and loads, eager and lazy, for a single full-attention group.

Follows SimpleCPUOffloadScheduler (vllm/v1/simple_kv_offload/manager.py, vLLM 0.32). The traps:

- a store takes a reference on the GPU block, so a block whose store ends after its request is freed
  late and head first, while the rest was freed early and tail first (`_process_store_completion`);
- a block that is already in the host pool is not stored again and its age there is not renewed
  (`_classify_store_candidate`); only a load renews it, head first, so the head is evicted first;
- the host pool has a null block too: n host blocks hold n - 1.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvbench.oracle.pool import BlockPool
from kvbench.oracle.work import Work


@dataclass(slots=True)
class Transfer:
    """One store event: GPU blocks and the host blocks that receive them."""

    gpu_blocks: list[int]
    host_blocks: list[int]
    age_steps: int = 0


class SimpleTier:
    """What eager and lazy mode share: the host pool, loads and the end of stores.

    `store_steps` is the number of further steps that a copy takes; None means that it outlasts the
    request. Copies on the CPU test backend end in the step that starts them.
    """

    def __init__(self, *, host_blocks: int, block_tokens: int, store_steps: int | None) -> None:
        self.host = BlockPool(host_blocks)
        self._block_tokens = block_tokens
        self._store_steps = store_steps
        self._flying: list[Transfer] = []
        self._found: list[int] = []

    def find(self, work: Work, local_blocks: int) -> int:
        """Blocks to add behind the local hit; pinned until `load`."""
        longest = (work.prompt_tokens - 1) // self._block_tokens
        self._found = self.host.find_run(work.keys[local_blocks:longest])
        self.host.touch(self._found)
        return len(self._found)

    def load(self, work: Work) -> None:  # noqa: ARG002 - Tier's signature
        """The pinned blocks have arrived."""
        self.host.release(self._found)
        self._found = []

    def end_step(self, gpu: BlockPool, *, drain: bool = False) -> None:
        """Sees complete transfers."""
        flying, self._flying = self._flying, []
        for transfer in flying:
            limit = self._store_steps
            if drain or (limit is not None and transfer.age_steps >= limit):
                self._complete(gpu, transfer)
            else:
                transfer.age_steps += 1
                self._flying.append(transfer)

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flying)

    def clear(self) -> None:
        """The external reset."""
        self.host.clear()

    def contents(self) -> AbstractSet[int]:
        """Keys of all that could be loaded."""
        return self.host.contents()

    def blank_blocks(self) -> int:
        """Blocks that can be filled before the tier evicts."""
        return self.host.blank_blocks()

    def _start(self, gpu: BlockPool, gpu_blocks: list[int]) -> Transfer:
        transfer = Transfer(gpu_blocks, self.host.take(len(gpu_blocks)))
        gpu.touch(gpu_blocks)
        return transfer

    def _complete(self, gpu: BlockPool, transfer: Transfer) -> None:
        for gpu_block, host_block in zip(transfer.gpu_blocks, transfer.host_blocks, strict=True):
            key = gpu.key_of(gpu_block)
            if key is not None:
                self.host.label(host_block, key)
        self.host.release(transfer.host_blocks)
        gpu.release(transfer.gpu_blocks)


class EagerTier(SimpleTier):
    """Eager mode: full blocks that earlier steps computed are stored once, in order of position."""

    def __init__(self, *, host_blocks: int, block_tokens: int, store_steps: int | None) -> None:
        super().__init__(
            host_blocks=host_blocks, block_tokens=block_tokens, store_steps=store_steps
        )
        self._queued: list[Transfer] = []
        self._in_flight: set[int] = set()

    def schedule(self, gpu: BlockPool, work: Work | None, scheduled_tokens: int) -> None:
        """Starts stores of this step."""
        event = Transfer([], [])
        if work is not None and scheduled_tokens:
            self._extend(event, self._store_new(gpu, work))
        for queued in self._queued:
            self._extend(event, queued)
        self._queued = []
        if event.gpu_blocks:
            self._flying.append(event)

    def finish(self, gpu: BlockPool, work: Work) -> None:
        """Queues what the steps did not store; the copy starts in the idle step that follows."""
        transfer = self._store_new(gpu, work)
        if transfer.gpu_blocks:
            self._queued.append(transfer)

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flying or self._queued)

    def _store_new(self, gpu: BlockPool, work: Work) -> Transfer:
        chosen: list[int] = []
        ready = work.computed_tokens // self._block_tokens
        room = self.host.free_blocks
        for block in work.table[work.stored_units : ready]:
            if self._is_wanted(gpu, block):
                if len(chosen) >= room:
                    break  # best effort: the next step tries again from here
                chosen.append(block)
            work.stored_units += 1
        self._in_flight.update(chosen)
        return self._start(gpu, chosen)

    def _is_wanted(self, gpu: BlockPool, block: int) -> bool:
        key = gpu.key_of(block)
        return key is not None and block not in self._in_flight and self.host.find(key) is None

    def _complete(self, gpu: BlockPool, transfer: Transfer) -> None:
        self._in_flight.difference_update(transfer.gpu_blocks)
        super()._complete(gpu, transfer)

    @staticmethod
    def _extend(event: Transfer, part: Transfer) -> None:
        event.gpu_blocks.extend(part.gpu_blocks)
        event.host_blocks.extend(part.host_blocks)


class LazyTier(SimpleTier):
    """Lazy mode: stores cached blocks that are about to be evicted, found by a cursor.

    The target of free-or-stored blocks is twice what one chunk of prefill needs
    (`_estimate_lazy_target_blocks`). The cursor survives a local reset, not an external one.
    """

    def __init__(
        self, *, host_blocks: int, block_tokens: int, store_steps: int | None, chunk_tokens: int
    ) -> None:
        super().__init__(
            host_blocks=host_blocks, block_tokens=block_tokens, store_steps=store_steps
        )
        self._target = 2 * -(-chunk_tokens // block_tokens)
        self._cursor: int | None = None

    def schedule(
        self,
        gpu: BlockPool,
        work: Work | None,  # noqa: ARG002 - Tier's signature
        scheduled_tokens: int,  # noqa: ARG002 - Tier's signature
    ) -> None:
        """Starts stores of this step."""
        if self._cursor is not None and gpu.is_held(self._cursor):
            self._cursor = None
        chosen: list[int] = []
        room = self.host.free_blocks
        visited = self._cursor
        for covered, block in enumerate(gpu.free.after(self._cursor)):
            if covered >= self._target or len(chosen) >= room:
                break
            visited = block
            key = gpu.key_of(block)
            if key is not None and self.host.find(key) is None:
                chosen.append(block)
        self._cursor = visited
        if chosen:
            self._flying.append(self._start(gpu, chosen))

    def finish(self, gpu: BlockPool, work: Work) -> None:
        """Lazy mode takes nothing from a finished request."""

    def clear(self) -> None:
        """The external reset."""
        super().clear()
        self._cursor = None

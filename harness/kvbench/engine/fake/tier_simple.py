"""SimpleCPUOffloadConnector's tier for many requests at once, with a content in every block.

Same rules as `kvbench.oracle.simple`, which was checked against real vLLM for requests that run
alone; the order among requests follows SimpleCPUOffloadScheduler.build_connector_meta: stores of
the scheduled requests, then those of finished ones, in one transfer a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvbench.engine.fake.content import Content
from kvbench.engine.fake.events import HOST
from kvbench.engine.fake.faults.base import Store
from kvbench.engine.fake.hybrid import Group, group_of
from kvbench.engine.fake.pools import NULL_BLOCK, DevicePool, HostPool
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import Found, StoreClock, nothing_found


@dataclass(slots=True)
class Part:
    """Blocks of one request in a store."""

    request_id: str
    first_block: int
    """place in the prompt of the first of them"""
    gpu_blocks: list[int]
    host_blocks: list[int]
    contents: list[Content] = field(default_factory=list)


@dataclass(slots=True)
class Transfer:
    """One store: everything that a step starts to copy."""

    parts: list[Part]
    age_steps: int = 0
    due_s: float = 0.0
    is_read: bool = False
    """the contents were taken"""


class SimpleTier:
    """What eager and lazy mode share: the host pool, loads and the end of stores."""

    def __init__(self, site: Site, device: DevicePool) -> None:
        self.host = HostPool(site.settings.host_blocks, site.log)
        self.clock = StoreClock(site)
        self._site = site
        self._layout = site.layout
        self._device = device
        self._flying: list[Transfer] = []

    def find(self, run: Run, local_tokens: int, limit_tokens: int) -> Found:
        """What can be added behind the local hit; never the last token."""
        hit = self._layout.find(
            run.keys,
            self.host.find,
            start_tokens=local_tokens,
            limit_tokens=min(limit_tokens, len(run.tokens) - 1),
        )
        found = nothing_found(self._layout)
        if not hit.tokens:
            return found
        found.tokens = hit.tokens
        for group in self._layout.cacheable:
            first = local_tokens // group.block_tokens
            for index, slot in enumerate(hit.slots[group.index], first):
                if slot is not None:
                    found.indices[group.index].append(index)
                    found.contents[group.index].append(self.host.cells[slot])
                    found.pins.append(slot)
        self.host.touch(found.pins)
        return found

    def let_go(self, found: Found) -> None:
        """Not loaded after all."""
        self.host.release(found.pins)

    def start_load(self, run: Run, found: Found) -> None:
        """The load is under way; its blocks stay pinned."""

    def end_load(self, run: Run, found: Found) -> None:
        """The blocks have arrived; only this renews their age, head first."""
        self.host.release(found.pins)
        self._site.count("simple_load_blocks", found.blocks, run.request_id)

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:
        """Starts stores of this step."""
        raise NotImplementedError

    def copy(self) -> None:
        """Reads the device: a block may be stored in the step that computes it, when its
        request hit it there."""
        for transfer in self._flying:
            if not transfer.is_read:
                transfer.is_read = True
                for part in transfer.parts:
                    part.contents = [self._device.cells[block] for block in part.gpu_blocks]
                    if self._site.faults:
                        self._show(part)

    def finish(self, run: Run) -> None:
        """Notes what the request leaves to store."""

    def end_step(self) -> None:
        """Sees complete transfers."""
        flying, self._flying = self._flying, []
        for transfer in flying:
            if self.clock.is_complete(transfer.due_s, transfer.age_steps):
                self._complete(transfer)
            else:
                transfer.age_steps += 1
                self._flying.append(transfer)

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flying)

    def next_due_s(self) -> float | None:
        """When the next transfer can be complete."""
        return min((transfer.due_s for transfer in self._flying), default=None)

    def pending_blocks(self) -> int:
        """Blocks of stores that are not complete."""
        return sum(len(part.host_blocks) for t in self._flying for part in t.parts)

    def used_blocks(self) -> int:
        """What `simple_kv_offload_used_blocks` says: held blocks and the null block."""
        return self.host.blocks - self.host.free_blocks

    def content_blocks(self) -> int:
        """Blocks that hold something that can be loaded."""
        return sum(1 for _ in self.host.labelled())

    def clear(self) -> None:
        """The external reset."""
        self.host.clear()

    def labelled(self) -> Iterator[tuple[int, Content]]:
        """Keys and contents, the oldest first."""
        return self.host.labelled()

    def _start(self, request_id: str, first_block: int, gpu_blocks: list[int]) -> Part:
        """Takes host blocks for a store that has room, and device blocks out of reuse."""
        self._device.touch(gpu_blocks)
        return Part(request_id, first_block, gpu_blocks, self.host.take(len(gpu_blocks)))

    def _launch(self, parts: list[Part]) -> None:
        if parts:
            due_s = self.clock.due_s(sum(len(part.gpu_blocks) for part in parts))
            self._flying.append(Transfer(parts, due_s=due_s))

    def _show(self, part: Part) -> None:
        """Shows a store to the faults and does what they make of it."""
        store = Store(
            part.request_id,
            self._site.index,
            part.first_block,
            part.contents,
            self._site.in_flight,
        )
        self._site.store(store)
        part.contents = store.contents
        lost = sorted(store.dropped, reverse=True)
        self.host.release([part.host_blocks.pop(i) for i in lost])
        self._device.release([part.gpu_blocks.pop(i) for i in lost])
        for i in lost:
            del part.contents[i]
        for _ in range(store.slots_each - 1):
            count = len(part.gpu_blocks)
            if count <= self.host.free_blocks:
                part.host_blocks += self.host.take(count)
                part.contents += part.contents[:count]
                self._device.touch(part.gpu_blocks)
                part.gpu_blocks += part.gpu_blocks

    def _room(self, wanted: int) -> int:
        """Host blocks that may be taken; faults may empty or enlarge the pool first."""
        if self._site.faults and wanted > (blank := self.host.blank_blocks()):
            if not self._site.host_may_evict():
                self.host.grow(wanted - blank)
            elif self._site.is_emptied_by_pressure():
                self.host.drop_all()
        return self.host.free_blocks

    def _complete(self, transfer: Transfer) -> None:
        device, host = self._device, self.host
        moved = 0
        for part in transfer.parts:
            for gpu_block, host_block, content in zip(
                part.gpu_blocks, part.host_blocks, part.contents, strict=True
            ):
                key = device.key_of(gpu_block)
                if key is not None:
                    host.label(host_block, key)
                    host.cells[host_block] = content
                    if self._site.log is not None:
                        self._report(key, gpu_block)
            moved += len(part.gpu_blocks)
        host.release(block for part in transfer.parts for block in part.host_blocks)
        device.release(block for part in transfer.parts for block in part.gpu_blocks)
        self._site.count("store_bytes", moved * self._site.settings.block_bytes)

    def _report(self, key: int, gpu_block: int) -> None:
        if self._site.log is None:
            return
        group = self._layout.groups[group_of(key)]
        origin = self._device.origins[gpu_block]
        is_state = group.kind == "state"
        self._site.log.stored(
            HOST,
            [key],
            parent=origin.parent,
            tokens=() if is_state else origin.tokens,
            block_tokens=group.block_tokens,
            spec_kind=group.spec_kind,
            locality="LOCAL",
        )


class EagerTier(SimpleTier):
    """Eager mode: full blocks that earlier steps computed are stored once, in order of position."""

    def __init__(self, site: Site, device: DevicePool) -> None:
        super().__init__(site, device)
        self._queued: list[Part] = []
        self._in_flight: set[int] = set()

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:
        """Starts stores of this step."""
        parts = [part for run, tokens in scheduled if tokens for part in self._store_new(run)]
        parts += self._queued
        self._queued = []
        self._launch(parts)

    def finish(self, run: Run) -> None:
        """Queues what the steps did not store; the copy starts in the step that follows."""
        self._queued += self._store_new(run)

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flying or self._queued)

    def pending_blocks(self) -> int:
        """Blocks of stores that are not complete."""
        return super().pending_blocks() + sum(len(part.host_blocks) for part in self._queued)

    def _store_new(self, run: Run) -> list[Part]:
        wanted: list[tuple[Group, int, int]] = []
        ready: dict[int, int] = {}
        for group in self._layout.cacheable:
            table = run.tables[group.index]
            full = min(len(table), run.computed_tokens // group.block_tokens)
            ready[group.index] = full
            for index in range(run.stored[group.index], full):
                block = table[index]
                if block == NULL_BLOCK:
                    # It left the window or was never written; the cache may still have it.
                    block = self._device.find(run.keys[group.index][index]) or NULL_BLOCK
                if block != NULL_BLOCK and self._is_wanted(block):
                    wanted.append((group, index, block))
        room = self._room(len(wanted)) if wanted else 0
        for group, index, _ in reversed(wanted[room:]):
            ready[group.index] = index  # best effort: the next step tries again from here
        for group_index, full in ready.items():
            run.stored[group_index] = max(run.stored[group_index], full)
        chosen = [block for _, _, block in wanted[:room]]
        if not chosen:
            return []
        self._in_flight.update(chosen)
        return [self._start(run.request_id, wanted[0][1], chosen)]

    def _is_wanted(self, block: int) -> bool:
        key = self._device.key_of(block)
        return key is not None and block not in self._in_flight and self.host.find(key) is None

    def _complete(self, transfer: Transfer) -> None:
        for part in transfer.parts:
            self._in_flight.difference_update(part.gpu_blocks)
        super()._complete(transfer)

    def _show(self, part: Part) -> None:
        chosen = set(part.gpu_blocks)
        super()._show(part)
        self._in_flight -= chosen.difference(part.gpu_blocks)

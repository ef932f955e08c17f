"""The native OffloadingConnector's CPU tier for many requests at once, with its contents.

Same rules as `kvbench.oracle.native`, which was checked against real vLLM for requests that run
alone: LRU chunks, whole stores or none, the whole prompt may be loaded, generated tokens are not
stored. Models with several groups are offloaded block by block here, whatever the chunk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbench.engine.fake.content import Content
from kvbench.engine.fake.events import HOST
from kvbench.engine.fake.faults.base import Store
from kvbench.engine.fake.pools import NULL_BLOCK, DevicePool
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import Found, StoreClock, nothing_found

SECOND_SLOT = 1 << 64
"""added to a key: the second slot of a block that a fault stores twice"""


@dataclass(slots=True)
class Entry:
    """One chunk in the tier."""

    contents: list[Content] = field(default_factory=list)
    is_ready: bool = False
    pins: int = 0


class Chunk(NamedTuple):
    """One chunk of a prompt: its key, its group and its place among the group's chunks."""

    key: int
    group: int
    place: int


@dataclass(slots=True)
class Flight:
    """Chunks of one request whose copy runs; `age_steps` counts from the step that starts it."""

    run: Run
    chunks: list[Chunk]
    is_started: bool = False
    age_steps: int = 0
    due_s: float = 0.0


class NativeTier:
    """Chunks by key; stores hold no device block, so the device's order is that of no connector."""

    def __init__(self, site: Site, device: DevicePool) -> None:
        settings = site.settings
        is_plain = len(site.layout.groups) == 1
        self._chunk_blocks = settings.tier_chunk_blocks if is_plain else 1
        self._capacity = settings.host_blocks // self._chunk_blocks
        self.clock = StoreClock(site)
        self._site = site
        self._layout = site.layout
        self._device = device
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # the oldest first
        self._flights: list[Flight] = []
        self._done: list[Run] = []

    def find(self, run: Run, local_tokens: int, limit_tokens: int) -> Found:
        """What can be added behind the local hit; less than one chunk is never loaded."""
        limit = min(limit_tokens, run.prompt_tokens)
        found = nothing_found(self._layout)
        if len(self._layout.groups) > 1:
            self._find_groups(run, local_tokens, limit, found)
        elif self._layout.cacheable:
            self._find_chunks(run, local_tokens, limit, found)
        for key in found.pins:
            self._entries[key].pins += 1
        return found

    def let_go(self, found: Found) -> None:
        """Not loaded after all."""
        for key in found.pins:
            if (entry := self._entries.get(key)) is not None:
                entry.pins = max(entry.pins - 1, 0)  # a reset may have come in between

    def start_load(self, run: Run, found: Found) -> None:
        """Chunks of the hit are not offered again."""
        for group in self._layout.cacheable:
            size = group.block_tokens * self._chunk_blocks
            reached = run.local_tokens + found.tokens - found.claimed_tokens
            run.stored[group.index] = max(run.stored[group.index], -(-reached // size))

    def end_load(self, run: Run, found: Found) -> None:
        """The chunks have arrived; they are renewed when the request finishes."""
        self._note(run, found.pins)
        self.let_go(found)

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:
        """Starts stores of this step: those chosen in the step before (prepare_store_kv)."""
        for flight in self._flights:
            if not flight.is_started:
                flight.is_started = True
                flight.due_s = self.clock.due_s(len(flight.chunks) * self._chunk_blocks)
        for run, tokens in scheduled:
            if tokens:
                self._offer(run, min(run.computed_tokens + tokens, run.prompt_tokens))
        for run in self._done:
            self._offer(run, min(run.computed_tokens, run.prompt_tokens))
            for key in sorted(run.used, key=run.used.__getitem__, reverse=True):
                if key in self._entries:
                    self._entries.move_to_end(key)
        self._done = []

    def copy(self) -> None:
        """Takes the contents of the chunks that this step chose."""
        for flight in self._flights:
            if flight.is_started or not flight.chunks:
                continue
            for chunk in flight.chunks:
                self._entries[chunk.key].contents = self._read(flight.run, chunk)
            if self._site.faults:
                self._show(flight)
        self._flights = [flight for flight in self._flights if flight.chunks]

    def finish(self, run: Run) -> None:
        """Notes what the request leaves to store, and what its blocks hold."""
        cells = self._device.cells
        run.snapshot = [[cells[block] for block in table] for table in run.tables]
        self._done.append(run)

    def end_step(self) -> None:
        """Sees complete transfers."""
        flights, self._flights = self._flights, []
        for flight in flights:
            if not flight.is_started:
                self._flights.append(flight)
            elif self.clock.is_complete(flight.due_s, flight.age_steps):
                self._complete(flight)
            else:
                flight.age_steps += 1
                self._flights.append(flight)

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return bool(self._flights or self._done)

    def next_due_s(self) -> float | None:
        """When the next transfer can be complete."""
        if any(not flight.is_started for flight in self._flights):
            return self._site.now_s
        return min((flight.due_s for flight in self._flights), default=None)

    def pending_blocks(self) -> int:
        """Blocks of stores that are not complete."""
        return sum(len(flight.chunks) for flight in self._flights) * self._chunk_blocks

    def used_blocks(self) -> int:
        """Blocks of the chunks that it holds."""
        return len(self._entries) * self._chunk_blocks

    def content_blocks(self) -> int:
        """Blocks that hold something that can be loaded."""
        return sum(len(entry.contents) for entry in self._entries.values())

    def clear(self) -> None:
        """The external reset."""
        self._entries.clear()

    def labelled(self) -> Iterator[tuple[int, Content]]:
        """Keys (of their chunk) and contents, the oldest first."""
        for key, entry in self._entries.items():
            for content in entry.contents:
                yield key, content

    def _find_chunks(self, run: Run, local_tokens: int, limit: int, found: Found) -> None:
        group = self._layout.cacheable[0]
        size, align = group.block_tokens * self._chunk_blocks, self._layout.alignment_tokens
        step = self._chunk_blocks
        keys = run.keys[0][: limit // group.block_tokens][step - 1 :: step]
        start = local_tokens // size
        count = 0
        while start + count < len(keys) and self._is_ready(keys[start + count]) is not None:
            count += 1
        reached = min(limit, (start + count) * size) // align * align
        if count == 0 or reached - local_tokens < size:
            return
        first = local_tokens // group.block_tokens
        found.tokens = reached - local_tokens
        found.indices[0] = list(range(first, reached // group.block_tokens))
        found.pins = keys[start : start + count]
        held = [content for key in found.pins for content in self._entries[key].contents]
        skipped = first - start * step
        found.contents[0] = held[skipped : skipped + len(found.indices[0])]

    def _find_groups(self, run: Run, local_tokens: int, limit: int, found: Found) -> None:
        hit = self._layout.find(
            run.keys, self._is_ready, start_tokens=local_tokens, limit_tokens=limit
        )
        found.tokens = hit.tokens
        for group in self._layout.cacheable:
            first = local_tokens // group.block_tokens
            for index, key in enumerate(hit.slots[group.index], first):
                if key is not None:
                    found.indices[group.index].append(index)
                    found.contents[group.index].append(self._entries[key].contents[0])
                    found.pins.append(key)

    def _is_ready(self, key: int) -> int | None:
        entry = self._entries.get(key)
        return key if entry is not None and entry.is_ready else None

    def _chunks(self, run: Run, tokens: int) -> list[list[Chunk]]:
        """Chunks of each group up to `tokens`, behind those that are done; known by last blocks."""
        step = self._chunk_blocks
        chunks: list[list[Chunk]] = []
        for group in self._layout.cacheable:
            end, g = tokens // group.block_tokens // step, group.index
            own = [Chunk(run.keys[g][(i + 1) * step - 1], g, i) for i in range(run.stored[g], end)]
            if group.kind != "full":
                own = [chunk for chunk in own if run.tables[g][chunk.place] != NULL_BLOCK]
            chunks.append(own)
        return chunks

    def _note(self, run: Run, keys: Sequence[int]) -> None:
        order = {key: i for own in run.keys for i, key in enumerate(own)}
        for key in keys:
            run.used[key] = order[key]

    def _offer(self, run: Run, tokens: int) -> None:
        offered = [chunk for own in self._chunks(run, tokens) for chunk in own]
        if offered and not self._store(run, offered):
            return
        for group in self._layout.cacheable:
            reached = tokens // (group.block_tokens * self._chunk_blocks)
            run.stored[group.index] = max(run.stored[group.index], reached)

    def _store(self, run: Run, offered: Sequence[Chunk]) -> bool:
        """CPUOffloadingManager.prepare_store: all the new chunks, or none."""
        new = [chunk for chunk in offered if chunk.key not in self._entries]
        fresh = {chunk.key for chunk in new}
        for chunk in offered:
            if chunk.key in fresh or self._entries[chunk.key].is_ready:
                run.used[chunk.key] = (chunk.place + 1) * self._chunk_blocks - 1
        if not self._evict(len(new), {chunk.key for chunk in offered}):
            return False
        for chunk in new:
            self._entries[chunk.key] = Entry()
        if new:
            self._flights.append(Flight(run, new))
        return True

    def _evict(self, wanted: int, protected: AbstractSet[int]) -> bool:
        """Makes room for so many chunks; False where only chunks in use could give it."""
        excess = len(self._entries) + wanted - self._capacity
        if excess <= 0 or not self._site.host_may_evict():
            return True
        is_emptied = bool(self._site.faults) and self._site.is_emptied_by_pressure()
        idle: list[int] = []
        for key, entry in self._entries.items():
            if entry.is_ready and not entry.pins and key not in protected:
                idle.append(key)
                if len(idle) == excess and not is_emptied:
                    break
        if excess > len(idle):
            return False
        for key in idle:
            del self._entries[key]
            if self._site.log is not None and key < SECOND_SLOT:
                self._site.log.removed(HOST, key)
        return True

    def _read(self, run: Run, chunk: Chunk) -> list[Content]:
        first, end = chunk.place * self._chunk_blocks, (chunk.place + 1) * self._chunk_blocks
        if run.snapshot:
            return run.snapshot[chunk.group][first:end]
        cells = self._device.cells
        return [cells[block] for block in run.tables[chunk.group][first:end]]

    def _show(self, flight: Flight) -> None:
        """Shows a store to the faults and does what they make of it."""
        step = self._chunk_blocks
        contents = [c for chunk in flight.chunks for c in self._entries[chunk.key].contents]
        store = Store(
            flight.run.request_id,
            self._site.index,
            flight.chunks[0].place * step,
            contents,
            self._site.in_flight,
        )
        self._site.store(store)
        kept: list[Chunk] = []
        for number, chunk in enumerate(flight.chunks):
            blocks = range(number * step, (number + 1) * step)
            if store.dropped.isdisjoint(blocks):
                self._entries[chunk.key].contents = [store.contents[i] for i in blocks]
                kept.append(chunk)
            else:
                del self._entries[chunk.key]
                flight.run.used.pop(chunk.key, None)
        if store.slots_each > 1 and self._evict(len(kept), {chunk.key for chunk in kept}):
            for chunk in list(kept):
                second = chunk._replace(key=chunk.key + SECOND_SLOT)
                self._entries[second.key] = Entry(list(self._entries[chunk.key].contents))
                kept.append(second)
        flight.chunks = kept

    def _complete(self, flight: Flight) -> None:
        for chunk in flight.chunks:
            entry = self._entries.get(chunk.key)
            if entry is None:
                continue  # a reset came in between
            entry.is_ready = True
            if self._site.log is not None:
                self._site.log.stored(
                    HOST,
                    [chunk.key % SECOND_SLOT],
                    parent=None,
                    tokens=(),
                    block_tokens=0,
                    spec_kind=None,
                )
        moved = len(flight.chunks) * self._chunk_blocks * self._site.settings.block_bytes
        self._site.count("store_bytes", moved, flight.run.request_id)

"""Block tables: what a request takes from the device pool, finds in it and gives back.

Follows KVCacheManager.allocate_slots and the managers of the groups (vLLM 0.32). The traps: blocks
are findable as soon as they are scheduled, before their tokens are computed; a hit on a block that
nobody holds takes it out of the free blocks just like a new one; and a table goes back tail first.
"""

from __future__ import annotations

from kvbench.engine.fake.events import DEVICE, EventLog
from kvbench.engine.fake.hybrid import Group, Hit, blocks_for
from kvbench.engine.fake.pools import NULL_BLOCK, DevicePool
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import Found


class Allocator:
    """Tables of all groups over the one device pool."""

    def __init__(self, site: Site, device: DevicePool) -> None:
        self._layout = site.layout
        self._device = device
        self._log: EventLog | None = site.log

    def find_local(self, run: Run) -> Hit:
        """The device's hit; never the last token."""
        return self._layout.find(
            run.keys, self._device.find, start_tokens=0, limit_tokens=len(run.tokens) - 1
        )

    def remaining_blocks(self, run: Run) -> int:
        """Blocks that it still takes until all its tokens so far are computed."""
        return sum(
            max(blocks_for(len(run.tokens), group.block_tokens) - len(run.tables[group.index]), 0)
            for group in self._layout.groups
            if group.kind != "state"
        )

    def admit(self, run: Run, hit: Hit, found: Found, reached_tokens: int, reserved: int) -> bool:
        """Takes the blocks of a local hit, of a load behind it and of the tokens that follow.

        False where the pool cannot hold them, or not the whole request beside `reserved` blocks.
        """
        device = self._device
        cached = hit.tokens + found.tokens
        whole = max(len(run.tokens), reached_tokens)
        idle = sum(
            slot is not None and not device.is_held(slot) for slots in hit.slots for slot in slots
        )
        new = found.blocks + idle
        at_once = at_end = new
        for group in self._layout.groups:
            at_once += self._new_count(group, run, cached, reached_tokens)
            whole_count = self._new_count(group, run, cached, whole)
            at_end += min(whole_count, self._layout.peak_blocks(group, whole))
        if at_end > device.free_blocks or at_once > device.free_blocks - reserved:
            return False
        for group in self._layout.groups:
            self._adopt(group, run, hit, found)
        for group in self._layout.groups:
            self._extend_group(group, run, reached_tokens)
        return True

    def extend(self, run: Run, reached_tokens: int) -> bool:
        """Takes the blocks of a further step; False where the pool has too few."""
        if not self._layout.is_single:
            self._drop_skipped(run)
        needed = 0
        for group in self._layout.groups:
            held = len(run.tables[group.index])
            needed += sum(self._layout.new_blocks(group, held, reached_tokens, run.prompt_tokens))
        if needed > self._device.free_blocks:
            return False
        if needed:
            for group in self._layout.groups:
                self._extend_group(group, run, reached_tokens)
        return True

    def label(self, run: Run, reached_tokens: int, *, from_cache: bool = False) -> None:
        """Makes full blocks findable; those of a local hit are already."""
        for group in self._layout.cacheable:
            g = group.index
            first, end = run.labelled[g], reached_tokens // group.block_tokens
            if end <= first:
                continue
            run.labelled[g] = end
            if from_cache:
                continue
            table, keys, label = run.tables[g], run.keys[g], self._device.label
            for i in range(first, end):
                if table[i] != NULL_BLOCK:
                    label(table[i], keys[i])
            if self._log is not None:
                self._report(run, group, first, end)

    def release(self, run: Run) -> None:
        """Gives all blocks back, tail first; the tables stay readable."""
        for group in self._layout.groups:
            table = run.tables[group.index]
            if group.kind in ("window", "state"):
                table = [block for block in table if block != NULL_BLOCK]
            self._device.release(reversed(table))

    def _new_count(self, group: Group, run: Run, cached: int, reached: int) -> int:
        held = cached // group.block_tokens if group.kind != "scratch" else 0
        return sum(self._layout.new_blocks(group, held, reached, run.prompt_tokens))

    def _adopt(self, group: Group, run: Run, hit: Hit, found: Found) -> None:
        table = run.tables[group.index]
        for slot in hit.slots[group.index]:
            if slot is None:
                table.append(NULL_BLOCK)
            else:
                self._device.touch((slot,))
                table.append(slot)
        indices = found.indices[group.index]
        if indices:
            table += [NULL_BLOCK] * (indices[-1] + 1 - len(table))
            for index, block in zip(indices, self._device.take(len(indices)), strict=True):
                table[index] = block

    def _extend_group(self, group: Group, run: Run, reached_tokens: int) -> None:
        table = run.tables[group.index]
        wanted = self._layout.new_blocks(group, len(table), reached_tokens, run.prompt_tokens)
        if wanted:
            blocks = iter(self._device.take(sum(wanted)))
            table += [next(blocks) if is_block else NULL_BLOCK for is_block in wanted]

    def _drop_skipped(self, run: Run) -> None:
        """Frees what no later token sees, the youngest first (remove_skipped_blocks)."""
        for group in self._layout.groups:
            if group.kind not in ("window", "state"):
                continue
            size = group.block_tokens
            table = run.tables[group.index]
            end = min(group.first_needed(run.computed_tokens // size * size), len(table))
            skipped = [i for i in range(end - 1, -1, -1) if table[i] != NULL_BLOCK]
            self._device.release([table[i] for i in skipped])
            for i in skipped:
                table[i] = NULL_BLOCK

    def _report(self, run: Run, group: Group, first: int, end: int) -> None:
        size, keys = group.block_tokens, run.keys[group.index]
        table = run.tables[group.index]
        start = first
        while start < end:
            stop = start
            while stop < end and (table[stop] != NULL_BLOCK) == (table[start] != NULL_BLOCK):
                stop += 1
            if table[start] != NULL_BLOCK and self._log is not None:
                self._log.stored(
                    DEVICE,
                    keys[start:stop],
                    parent=keys[start - 1] if start else None,
                    tokens=run.tokens[start * size : stop * size],
                    block_tokens=size,
                    spec_kind=group.spec_kind,
                    extra_keys=salt_keys(run, start, stop),
                )
            start = stop


def salt_keys(run: Run, first: int, end: int) -> list[tuple[str, ...] | None] | None:
    """The extra keys of blocks: a cache salt goes into the first block's hash."""
    if not run.request.salt:
        return None
    return [(run.request.salt,) if i == 0 else None for i in range(first, end)]

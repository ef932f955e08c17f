"""Writes the KV events that a healthy engine would have published during a simulated record.

The device tier and the host tier of each life are played request by request, in journal order. A
test damages the stream through `change`, which gets all lines and returns those to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import records

from kvbench.events import PhaseEnded, PhaseStarted, RequestDone, ResetDone
from kvbench.judge import judge
from kvbench.plan_types import Plan, PlannedLife
from kvbench.record import StoredRecord, seal
from kvbench.telemetry.kv_event_wire import digest_of
from kvbench.verdict import Verdict

Line = dict[str, Any]
Change = Callable[[list[Line]], list[Line]]
BLOCK = 128
DEVICE_BLOCKS = 31
"""of quickstart.yaml, without the null block"""
WITH_EVENTS = (*records.SMALL, "engine.kv_events=true")


def same(lines: list[Line]) -> list[Line]:
    """A `change` that changes nothing."""
    return lines


@dataclass
class _Blocks:
    """One tier: hashes in order of age."""

    medium: str
    capacity: int
    held: dict[int, None] = field(default_factory=dict)

    def store(self, block: int) -> Iterator[Line]:
        if len(self.held) >= self.capacity:
            oldest = next(iter(self.held))
            del self.held[oldest]
            yield removed(oldest, self.medium)
        self.held[block] = None


def stored(block: int, medium: str = "CPU", **more: Any) -> Line:
    """One BlockStored as recorded."""
    event: Line = {
        "type": "BlockStored",
        "block_hashes": [block],
        "parent_block_hash": None,
        "tokens": BLOCK,
        "block_size": BLOCK,
        "medium": medium,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return event | more


def removed(block: int, medium: str = "CPU") -> Line:
    """One BlockRemoved as recorded."""
    return {
        "type": "BlockRemoved",
        "block_hashes": [block],
        "medium": medium,
        "group_idx": 0,
    }


class _Engine:
    """One simulated engine of one life."""

    def __init__(self, number: int, host_blocks: int, *, has_tier: bool) -> None:
        self.number = number
        self.device = _Blocks("GPU", DEVICE_BLOCKS)
        self.host = _Blocks("CPU", host_blocks) if has_tier else None
        self.seq = 0
        self.pending: list[Line] = []

    def reset(self, scope: str) -> None:
        self.device.held.clear()
        self.pending.append({"type": "AllBlocksCleared"})
        if scope == "all" and self.host is not None:
            self.host.held.clear()
            self.pending.append({"type": "AllBlocksCleared"})

    def request(self, tokens: tuple[int, ...]) -> Line:
        events, self.pending = self.pending, []
        parent = None
        host: list[Line] = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            block = hash_of(tokens[:end])
            content = {
                "parent_block_hash": parent,
                "digest": digest_of(tokens[end - BLOCK : end]),
            }
            if block not in self.device.held:
                events += self.device.store(block)
                events.append(stored(block, "GPU", **content))
            if self.host is not None and block not in self.host.held:
                host += self.host.store(block)
                host.append(stored(block, "CPU", **content))
            parent = block
        line = {"engine": self.number, "seq": self.seq, "rank": 0, "events": events + host}
        self.seq += 1
        return line


def hash_of(prefix: tuple[int, ...]) -> int:
    """The hash of the block that ends a prefix."""
    return int.from_bytes(hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest(), "big")


def _lines(
    stored_record: StoredRecord, plan: Plan, life: PlannedLife, host_blocks: int
) -> list[Line]:
    engine = _Engine(0, host_blocks, has_tier=life.connector["kind"] != "none")
    lines: list[Line] = []
    windows: set[str] = set()
    for _, event in stored_record.events():
        match event:
            case PhaseStarted() if event.life == life.life:
                windows.add(event.window)
                lines.append({"window": event.window, "edge": "before"})
            case RequestDone() if event.window in windows:
                lines.append(engine.request(plan.prompts[event.prompt_id]))
            case ResetDone() if event.window in windows:
                engine.reset(event.scope)
            case PhaseEnded() if event.window in windows:
                lines.append({"window": event.window, "edge": "after"})
    return lines


def write(
    directory: Path,
    *,
    change: Change = same,
    host_blocks: int = 255,
    lives: tuple[str, ...] = ("simple",),
    sets: tuple[str, ...] = WITH_EVENTS,
    **options: Any,
) -> Path:
    """Write a record with events; `change` is applied to the lives of the arms in `lives`."""
    records.write(directory, seal=False, sets=sets, **options)
    with (directory / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"event":"run_ended","time_s":2e9,"outcome":"complete"}\n')
    record = StoredRecord(directory)
    plan = record.plan()
    for life in plan.lives:
        lines = _lines(record, plan, life, host_blocks)
        if set(lives) & set(life.arms):
            lines = change(lines)
        folder = directory / "artifacts" / life.life
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps({"time_s": 1.0, **line}) + "\n" for line in lines)
        (folder / "kv_events.jsonl").write_text(text)
    seal(directory)
    return directory


def judged(directory: Path, **options: Any) -> Verdict:
    """Write a record with events and judge it."""
    return judge(write(directory, **options))


def only_device(lines: list[Line]) -> list[Line]:
    """A connector of whose tier no event tells."""
    return with_events(lines, lambda event: [] if event.get("medium") == "CPU" else [event])


def with_events(lines: list[Line], change: Callable[[Line], list[Line]]) -> list[Line]:
    """Replace every event by what `change` returns for it."""
    return [
        line | {"events": [new for event in line["events"] for new in change(event)]}
        if "events" in line
        else line
        for line in lines
    ]


def insert(lines: list[Line], window: str, *events: Line) -> list[Line]:
    """Put events into the last batch of a window."""
    inside, place = "", None
    for index, line in enumerate(lines):
        inside = line.get("window", inside)
        if inside == window and "events" in line:
            place = index
    assert place is not None, f"{window} has no batch"
    changed = lines[place] | {"events": [*lines[place]["events"], *events]}
    return [*lines[:place], changed, *lines[place + 1 :]]

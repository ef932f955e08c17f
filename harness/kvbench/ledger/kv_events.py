"""Reads a recorded stream of KV events into facts.

The traps, all of vLLM 0.32 (block_pool.py, scheduler.py, kv_transfer/.../offloading/events.py):

- equal content may stand in several device blocks, each announced and removed by itself, so blocks
  are counted, not kept in a set;
- `AllBlocksCleared` does not say which tier, and comes with the next step. Every reset clears the
  device, whose events come first in a batch; a single one behind a local reset clears nothing else.
  Behind other resets the host tier may be empty, or may have kept everything;
- after a batch that nobody saw, nothing can be said about what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.errors import RecordError
from kvbench.events import ResetScope
from kvbench.ledger.kv_event_facts import (
    DEVICE,
    NO_MEDIUM,
    Anomaly,
    AnomalyKind,
    Double,
    Hash,
    KvEvents,
    Run,
    Shape,
    Sighting,
    Tier,
    WindowEvents,
)

NAME: Final = "kv_events.jsonl"

Resets = Mapping[str, Sequence[ResetScope | None]]
"""By window: scopes of the resets that may have cleared something, None where nobody knows."""


@dataclass
class _Content:
    """What one tier holds: counts of what is surely there, and of what a clear left open."""

    sure: Counter[Hash] = field(default_factory=Counter)
    maybe: Counter[Hash] = field(default_factory=Counter)
    _frozen: frozenset[Hash] | None = None

    def held(self) -> frozenset[Hash]:
        """What is surely there; the same object as long as nothing changes."""
        if self._frozen is None:
            self._frozen = frozenset(self.sure)
        return self._frozen

    def store(self, block: Hash) -> bool:
        """Add one; True where it was there already."""
        is_double = block in self.sure
        self._frozen = None
        self.sure[block] += 1
        self.maybe.pop(block, None)
        return is_double

    def remove(self, block: Hash) -> bool:
        """Take one out; False where it cannot have been there."""
        self._frozen = None
        if block not in self.sure and block in self.maybe:
            # It outlived the clear, so the clear was another tier's.
            self.sure.update(self.maybe)
            self.maybe.clear()
        if block not in self.sure:
            return False
        self.sure[block] -= 1
        if self.sure[block] == 0:
            del self.sure[block]
        return True

    def clear(self, *, surely: bool) -> None:
        """Forget everything, or only its certainty."""
        self._frozen = None
        if surely:
            self.maybe.clear()
        else:
            self.maybe.update(self.sure)
        self.sure.clear()


class _Reader:
    """Plays the lines of one file; one pass."""

    def __init__(self, resets: Resets) -> None:
        self.resets = resets
        self.window = ""
        self.windows: dict[str, WindowEvents] = {}
        self.anomalies: list[Anomaly] = []
        self.batches: Counter[int] = Counter()
        self.media: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self.runs: dict[tuple[int, int | None, Hash | None], dict[Run, None]] = {}
        self.failed: str | None = None
        self.content: dict[Tier, _Content] = {}
        self.pools: dict[tuple[int, str], list[_Content]] = {}
        self.lossy: set[int] = set()
        self.open: set[int] = set()
        self._open_window("")

    def _open_window(self, name: str) -> None:
        self.window = name
        self.events: Counter[tuple[str, Tier]] = Counter()
        self.blocks: Counter[tuple[str, Tier]] = Counter()
        self.shapes: dict[Shape, Sighting] = {}
        self.stored: dict[Tier, set[Hash]] = {}
        self.removed: dict[Tier, set[Hash]] = {}
        self.bursts: Counter[int] = Counter()
        self.peaks = {pool: self._size(pool) for pool in self.pools}
        self.doubles: list[Double] = []
        self.cleared = 0

    def close_window(self) -> None:
        """File what the window that was open has seen."""
        self.windows[self.window] = WindowEvents(
            id=self.window,
            events=dict(self.events),
            blocks=dict(self.blocks),
            shapes=self.shapes,
            stored={tier: frozenset(each) for tier, each in self.stored.items()},
            removed={tier: frozenset(each) for tier, each in self.removed.items()},
            held={tier: each.held() for tier, each in self.content.items()},
            peak_blocks=self.peaks,
            doubles=tuple(self.doubles),
            cleared=self.cleared,
            lossy_engines=frozenset(self.lossy),
            open_engines=frozenset(self.open),
        )

    def _size(self, pool: tuple[int, str]) -> int:
        return sum(len(content.sure) for content in self.pools[pool])

    def read(self, number: int, line: dict[str, Any]) -> None:
        """Take in one line."""
        if "window" in line:
            if line["edge"] == "before":
                self.close_window()
                self._open_window(line["window"])
        elif "failed" in line:
            self.failed = str(line["failed"])
        elif "gap" in line:
            self._gap(number, line)
        elif "restart" in line:
            last, seq = line["restart"]
            words = f"engine {line['engine']} counts anew: {seq} after {last}"
            self._note("restart", number, line["engine"], seq, seq, words)
            self._clear(line["engine"], None, device_surely=True)
            self.lossy.add(line["engine"])
        else:
            self._batch(number, line)

    def _gap(self, number: int, line: dict[str, Any]) -> None:
        if line["replayed"]:
            return
        engine, (first, last) = line["engine"], line["gap"]
        words = f"engine {engine}: batches {first} to {last} are missing, no replay had them"
        self._note("gap", number, engine, first, last, words)
        self.lossy.add(engine)

    def _note(
        self,
        kind: AnomalyKind,
        number: int,
        engine: int,
        first: int | None,
        last: int | None,
        words: str,
    ) -> None:
        self.anomalies.append(Anomaly(kind, self.window, engine, number, first, last, words))

    def _batch(self, number: int, line: dict[str, Any]) -> None:
        engine, seq = line["engine"], line["seq"]
        self.batches[engine] += 1
        if "error" in line:
            self._undecodable(number, engine, seq, line["error"])
            return
        is_leading = True
        clears = sum(event["type"] == "AllBlocksCleared" for event in line["events"])
        scope = self._scope(engine, clears) if clears else None
        for event in line["events"]:
            kind = event["type"]
            if kind == "AllBlocksCleared":
                self._clear(engine, scope, device_surely=is_leading)
                continue
            is_leading = False
            if kind is None:
                self._undecodable(number, engine, seq, event["error"])
            elif kind in ("BlockStored", "BlockRemoved"):
                self._block_event(number, engine, seq, event)
            else:
                self.unknown[kind] = None

    def _scope(self, engine: int, clears: int) -> ResetScope | None:
        """Which reset the clears of a batch belong to; None where that is not known."""
        scopes = self.resets.get(self.window, ())
        place = self.bursts[engine]
        self.bursts[engine] += 1
        if place >= len(scopes) or None in scopes or (scopes[place] == "local" and clears > 1):
            self.open.add(engine)
            return None
        if scopes[place] == "all":
            self.open.discard(engine)
        return scopes[place]

    def _undecodable(self, number: int, engine: int, seq: int | None, error: str) -> None:
        where = "without a number" if seq is None else str(seq)
        words = f"engine {engine}: batch {where} is undecodable: {error}"
        self._note("undecodable", number, engine, seq, seq, words)
        self.lossy.add(engine)

    def _clear(self, engine: int, scope: ResetScope | None, *, device_surely: bool) -> None:
        self.cleared += 1
        for tier, content in self.content.items():
            if tier.engine != engine or (tier.is_host and scope == "local"):
                continue
            content.clear(surely=device_surely and not tier.is_host)

    def _block_event(
        self, number: int, engine: int, seq: int | None, event: dict[str, Any]
    ) -> None:
        kind = event["type"]
        tier = Tier(engine, _medium(event), event.get("group_idx"))
        self.media[tier.medium] = None
        hashes = event["block_hashes"]
        self.events[kind, tier] += 1
        self.blocks[kind, tier] += len(hashes)
        shape = Shape(kind, tier, event.get("block_size"), bool(event.get("tokens")))
        seen = self.shapes.get(shape, Sighting(0, number, seq))
        self.shapes[shape] = seen._replace(times=seen.times + 1)
        content = self._content(tier)
        if kind == "BlockStored":
            self._store(number, tier, content, event)
            return
        self.removed.setdefault(tier, set()).update(hashes)
        unknown = [block for block in hashes if not content.remove(block)]
        if unknown and engine not in self.lossy:
            words = (
                f"engine {engine} removes block {unknown[0]} from {tier.medium}, which does not "
                f"hold it (batch {seq})"
            )
            self._note("removed_before_stored", number, engine, seq, seq, words)

    def _content(self, tier: Tier) -> _Content:
        if tier not in self.content:
            self.content[tier] = _Content()
            self.pools.setdefault((tier.engine, tier.medium), []).append(self.content[tier])
        return self.content[tier]

    def _store(self, number: int, tier: Tier, content: _Content, event: dict[str, Any]) -> None:
        hashes, size = event["block_hashes"], event.get("block_size")
        self.stored.setdefault(tier, set()).update(hashes)
        for block in hashes:
            if content.store(block) and tier.is_host:
                self.doubles.append(Double(tier, block, number, size))
        pool = (tier.engine, tier.medium)
        self.peaks[pool] = max(self.peaks.get(pool, 0), self._size(pool))
        if event.get("digest") and hashes:
            run = Run(tuple(hashes), event["tokens"], event["digest"])
            key = (tier.engine, tier.group, event.get("parent_block_hash"))
            self.runs.setdefault(key, {})[run] = None


def _medium(event: Mapping[str, Any]) -> str:
    """Medium in capitals; before vLLM had the field there was only the device."""
    if "medium" not in event:
        return DEVICE
    return NO_MEDIUM if event["medium"] is None else str(event["medium"]).upper()


def read_kv_events(path: Path, resets: Resets | None = None) -> KvEvents:
    """Read one recorded stream; a torn last line of a killed run is left out.

    `resets` tells which tiers a clear was for; without them that stays open.
    Raises RecordError where a line is not one that kvbench writes.
    """
    reader = _Reader(resets or {})
    decoder = msgspec.json.Decoder()
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            reader.read(number, decoder.decode(line))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            if number == len(lines):  # no newline after it: the write was cut off
                break
            raise RecordError(f"{path}:{number}: {type(error).__name__}: {error}") from error
    reader.close_window()
    return KvEvents(
        windows=reader.windows,
        anomalies=tuple(reader.anomalies),
        batches=dict(reader.batches),
        media=tuple(sorted(reader.media)),
        unknown_types=tuple(reader.unknown),
        runs={key: tuple(each) for key, each in reader.runs.items()},
        failed=reader.failed,
    )

"""Does the host tier stay inside its size, in blocks (F14)?

A pool that never evicts serves every hit until the machine is out of memory, so hits alone cannot
show it. Blocks that events say are in the tier are counted against what the pool can hold; bytes
are the business of the memory check. A pool that drops everything shows in the hits; here the
number of removals stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kvbench.checks.common import What, about, about_arm, tested_pairs
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.stores import NULL_BLOCKS, PINNED_BLOCKS
from kvbench.checks.tiers import Cache, cache_of, events_of
from kvbench.ledger.facts import Ledger, Window
from kvbench.ledger.kv_event_facts import HOST, WindowEvents

CLAIM = "hits"
CHECK = "capacity_kept"
BY_EVENTS = What(CHECK, CLAIM, "events")
BY_COUNTERS = What(CHECK, CLAIM, "counters")


def _peaks(events: WindowEvents) -> dict[int, int]:
    """Most blocks that the host memory of each engine held at once."""
    return {
        engine: blocks
        for (engine, medium), blocks in events.peak_blocks.items()
        if medium == HOST and engine not in events.lossy_engines
    }


def _capacity(cache: Cache | None) -> int | None:
    """Blocks of one engine's host tier; None where events count something else than blocks."""
    if cache is None or cache.engine.prefix_match_unit_tokens is not None:
        return None  # parts of blocks have events of their own
    return cache.host_capacity_blocks


def _grown(window: Window, capacity: int, held: Iterable[tuple[str, int]], what: What) -> Finding:
    words = [f"engine {engine}: {blocks} blocks" for engine, blocks in held]
    return about(
        window,
        Outcome.FAIL,
        f"the host tier outgrew its {capacity} blocks in {window.label}, so it does not evict: "
        f"{', '.join(words)}",
        what=what,
        expected=f"at most {capacity} blocks on each engine",
        observed=", ".join(words),
    )


def _of_window(window: Window, events: WindowEvents | None, capacity: int) -> Finding | None:
    peaks = _peaks(events) if events is not None else {}
    over = [(str(engine), n) for engine, n in sorted(peaks.items()) if n > capacity]
    if over:
        return _grown(window, capacity, over, BY_EVENTS)
    pinned = [
        (sample.engine, round(sample.value))
        for sample in window.gauges
        if sample.name == PINNED_BLOCKS and sample.value > capacity + NULL_BLOCKS
    ]
    return _grown(window, capacity, pinned, BY_COUNTERS) if pinned else None


def _removals(windows: Sequence[tuple[Window, WindowEvents]]) -> list[str]:
    counts = [(w.label, events.blocks_of("BlockRemoved", host=True)) for w, events in windows]
    return [f"{label}: {count} blocks removed from the tier" for label, count in counts if count]


def _of_arm(ledger: Ledger, stage: str, arm: str) -> Finding | None:
    """The first window in which the tier was too full, or the fullest that it was."""
    seen: list[tuple[Window, WindowEvents]] = []
    capacities: set[int] = set()
    first: Finding | None = None
    for window in ledger.windows:
        if (window.stage, window.arm) != (stage, arm) or not window.has_connector:
            continue
        capacity = _capacity(cache_of(ledger, window.life))
        if capacity is None:
            continue
        events = events_of(ledger, window)
        first = first or _of_window(window, events, capacity)
        if events is not None and _peaks(events):
            seen.append((window, events))
            capacities.add(capacity)
    notes = _removals(seen)
    if first is not None:
        return replace(first, notes=tuple(notes) or ("no block was ever removed from the tier",))
    if not seen:
        return None
    most = max(max(_peaks(events).values()) for _, events in seen)
    reason = f"the host tier held {most} blocks at most, of {min(capacities)}"
    return about_arm(stage, arm, Outcome.PASS, reason, what=BY_EVENTS, notes=notes)


def check(ledger: Ledger) -> list[Finding]:
    """Blocks in the host tier against its capacity, for every tested arm."""
    found = [_of_arm(ledger, stage, arm) for stage, arm in tested_pairs(ledger)]
    return [finding for finding in found if finding is not None]

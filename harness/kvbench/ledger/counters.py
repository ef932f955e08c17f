"""What counters moved by between two snapshots, per engine.

A series that one of the snapshots lacks has no delta: it is None, and None stays None through every
sum. A counter that fell, or a process that started in between, marks its engine as restarted; a
negative delta is never clipped to 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.events import Snapshot

GAUGES = frozenset(
    {
        "running",
        "waiting",
        "gpu_cache_usage",
        "process_start_time_s",
        "simple_used_blocks",
        "simple_pending_store_blocks",
    }
)
"""Canonical names that are states, not counts: never differenced."""

COUNTERS = (
    "local_queries",
    "local_hits",
    "external_queries",
    "external_hits",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "prompt_tokens_by_source",
    "cached_by_source",
    "prompt_tokens_cached",
    "preemptions",
)
"""Counters of vLLM itself; only these can show a restart (a connector's gauges may fall)."""

BORN_ON_FIRST_USE = ("cached_by_source", "simple_", "native_")
"""Families whose series appear with their first increment: absent before means they start at 0.

prometheus_client creates a labelled series at the first `labels()` call; vLLM makes those of
`requests_finished` and `prompt_tokens_by_source` at start, the connectors' own ones later.
"""

Key = tuple[str, str]
"""Canonical name, and the labels besides the engine as `source=host`, or an empty string."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """Differences of two snapshots: engine -> (name, labels) -> what it moved by."""

    by_engine: Mapping[str, Mapping[Key, float]]
    restarted: tuple[str, ...]
    """engines whose counters fell or whose process started in between"""

    @property
    def engines(self) -> tuple[str, ...]:
        """Engine labels that have counters, sorted."""
        return tuple(sorted(self.by_engine, key=lambda name: (len(name), name)))

    def of(self, engine: str, name: str) -> float | None:
        """Delta of one engine, over all labels; None where the family is missing."""
        found = [value for key, value in self.by_engine.get(engine, {}).items() if key[0] == name]
        return sum(found) if found else None

    def total(self, name: str) -> float | None:
        """Delta over all engines; None where any of them lacks the family."""
        parts = [self.of(engine, name) for engine in self.engines]
        if not parts or any(part is None for part in parts):
            return None
        return sum(part for part in parts if part is not None)

    def labelled(self, name: str, engine: str | None = None) -> dict[str, float]:
        """Delta per label value of a family such as `prompt_tokens_by_source`."""
        result: dict[str, float] = {}
        for label, series in self.by_engine.items():
            if engine is not None and label != engine:
                continue
            for (family, labels), value in series.items():
                if family == name:
                    word = labels.partition("=")[2]
                    result[word] = result.get(word, 0.0) + value
        return result

    def names(self) -> frozenset[str]:
        """Canonical names that have a delta on at least one engine."""
        return frozenset(key[0] for series in self.by_engine.values() for key in series)


def _series(snapshot: Snapshot) -> dict[str, dict[Key, float]]:
    pages: dict[str, dict[Key, float]] = {}
    for sample in snapshot.samples:
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
        page = pages.setdefault(sample.engine, {})
        page[sample.name, labels] = page.get((sample.name, labels), 0.0) + sample.value
    return pages


def _with_counters(pages: Mapping[str, Mapping[Key, float]]) -> set[str]:
    """Engines that have a counter of vLLM itself; a connector's or a process' series is none."""
    return {engine for engine, series in pages.items() if any(key[0] in COUNTERS for key in series)}


def _start_times(pages: Mapping[str, Mapping[Key, float]]) -> set[float]:
    return {
        value
        for series in pages.values()
        for key, value in series.items()
        if key[0] == "process_start_time_s"
    }


def _starts_at_zero(key: Key, earlier: Mapping[Key, float]) -> bool:
    """A labelled series without a past, in a family that had others, or that is born on use."""
    if any(key[0] == other[0] for other in earlier) and key[1]:
        return True
    return key[0].startswith(BORN_ON_FIRST_USE)


def difference(before: Snapshot, after: Snapshot) -> Deltas:
    """What moved from `before` to `after`."""
    old, new = _series(before), _series(after)
    started_anew = bool(_start_times(old)) and _start_times(old) != _start_times(new)
    by_engine: dict[str, dict[Key, float]] = {}
    restarted: set[str] = set()
    for engine, series in new.items():
        past = old.get(engine, {})
        moved: dict[Key, float] = {}
        for key, value in series.items():
            if key[0] in GAUGES:
                continue
            if key in past:
                moved[key] = value - past[key]
            elif _starts_at_zero(key, past):
                moved[key] = value
            if key[0] in COUNTERS and moved.get(key, 0.0) < 0:
                restarted.add(engine)
        if moved:
            by_engine[engine] = moved
        if started_anew and moved:
            restarted.add(engine)
    for engine in _with_counters(old) ^ _with_counters(new):  # came or went: no delta, so n/a
        by_engine[engine] = {}
    return Deltas(by_engine=by_engine, restarted=tuple(sorted(restarted)))

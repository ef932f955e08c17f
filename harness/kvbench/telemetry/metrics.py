"""Reads vLLM's `/metrics` page into samples under canonical names, and computes with them.

The traps: a counter that is absent must never read as 0; `_created` series are time stamps; old and
new names can stand on one page and would count double; a counter that went back means that another
process answers; and counters lag behind the answers that they count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from prometheus_client.parser import text_string_to_metric_families

from kvbench import clock
from kvbench.errors import EngineError
from kvbench.events import Sample
from kvbench.telemetry.names import BY_ALIAS, CANONICAL, SERIES, Series

POLL_S: Final = 0.1
PROCESS: Final = ""
"""engine label of samples that describe the whole server process"""
_FIRST_ENGINE: Final = "0"
"""engine of a page from before vLLM had the label"""


class CounterRestartedError(EngineError):
    """A counter went back: the process behind the URL is not the one that was there before."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="restarted")


class UnreadablePageError(EngineError):
    """A `/metrics` page that is not Prometheus text."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said.

    `missing` are canonical names that it does not have, or has twice with unlike values; the latter
    are explained in `conflicts`.
    """

    samples: tuple[Sample, ...]
    missing: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


_Key = tuple[str, str, tuple[tuple[str, str], ...]]


def read(page: str) -> Page:
    """Read a page; raises UnreadablePageError.

    A counter of a connector that the page declares without any series has counted nothing yet: it
    is 0 for every engine of the page (only if it has no labels of its own).
    """
    found: dict[_Key, dict[int, float]] = {}
    declared = set()
    for name, kind, labels, value in _rows(page):
        series, rank = BY_ALIAS[name]
        declared.add(series.name)
        if kind != "declared":
            key = (series.name, *_identity(series, labels))
            found.setdefault(key, {})[rank] = value
    samples, conflicts = _settled(found)
    samples += _silent_counters(page, samples, declared)
    in_conflict = {name for name, _ in conflicts}
    present = declared | {sample.name for sample in samples}
    missing = [series.name for series in SERIES if series.name not in present]
    return Page(
        samples=tuple(sorted(samples, key=_order)),
        missing=tuple(sorted({*missing, *in_conflict})),
        conflicts=tuple(text for _, text in conflicts),
    )


def _rows(page: str) -> Iterable[tuple[str, str, dict[str, str], float]]:
    """Yield name, kind, labels and value of the lines that matter; nothing else is parsed."""
    wanted = []
    for line in page.splitlines():
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE" and words[2] in BY_ALIAS:
                yield words[2], "declared", {}, 0.0
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name in BY_ALIAS:
            wanted.append(line)
    if not wanted and page.lstrip()[:1] in {"<", "{"}:
        raise UnreadablePageError(f"not a /metrics page: {page[:80]!r}")
    try:
        for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
            for sample in family.samples:
                yield sample.name, "value", sample.labels, float(sample.value)
    except ValueError as error:
        raise UnreadablePageError(f"not a /metrics page: {error}") from error


def _identity(series: Series, labels: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    engine = PROCESS if series.per_process else labels.get("engine", _FIRST_ENGINE)
    kept = ((ours, labels.get(theirs, "")) for ours, theirs in series.labels.items())
    return engine, tuple(kept)


def _settled(
    found: dict[_Key, dict[int, float]],
) -> tuple[list[Sample], list[tuple[str, str]]]:
    """Take one value per series; two aliases with unlike values are a conflict, and no value."""
    samples, conflicts = [], []
    for (name, engine, labels), values in found.items():
        if len(set(values.values())) > 1:
            aliases = CANONICAL[name].aliases
            said = ", ".join(f"{aliases[rank]} {value:g}" for rank, value in values.items())
            conflicts.append((name, f"{name} of engine {engine or 'process'}: {said}"))
        else:
            samples.append(Sample(name, engine, dict(labels), values[min(values)]))
    in_conflict = {name for name, _ in conflicts}
    return [sample for sample in samples if sample.name not in in_conflict], conflicts


def _silent_counters(page: str, samples: list[Sample], declared: set[str]) -> list[Sample]:
    engines = sorted({sample.engine for sample in samples if sample.engine != PROCESS})
    seen = {sample.name for sample in samples}
    silent = [
        series
        for series in SERIES
        if series.name in declared and series.name not in seen and not series.labels
    ]
    return [
        Sample(series.name, engine, {}, 0.0)
        for series in silent
        if any(f"# TYPE {alias} counter" in page for alias in series.aliases)
        for engine in engines
    ]


def _order(sample: Sample) -> tuple[str, str, list[tuple[str, str]]]:
    return sample.name, sample.engine, sorted(sample.labels.items())


def select(samples: Sequence[Sample], name: str, engine: str | None = None) -> list[Sample]:
    """Return the samples of a canonical name, of one engine or of all."""
    assert name in CANONICAL, f"{name} is no canonical name"
    return [
        sample
        for sample in samples
        if sample.name == name and (engine is None or sample.engine == engine)
    ]


def total(samples: Sequence[Sample], name: str, engine: str | None = None) -> float | None:
    """Sum a canonical name over its labels (and engines); None when absent, never 0 for absent."""
    values = [sample.value for sample in select(samples, name, engine)]
    return sum(values) if values else None


def delta(
    before: Sequence[Sample], after: Sequence[Sample], name: str, engine: str | None = None
) -> float | None:
    """How far a counter went between two snapshots of one process; None when `after` lacks it.

    Prometheus makes a labelled series at its first use, so one that is new in `after` began at 0.
    Raises CounterRestartedError when any series went back: such a difference means nothing.
    """
    rows = select(after, name, engine)
    if not rows:
        if select(before, name, engine):
            raise CounterRestartedError(f"{name}: was on the page before and is gone")
        return None
    then = {_key(sample): sample.value for sample in select(before, name, engine)}
    gone = then.keys() - {_key(sample) for sample in rows}
    for sample in rows:
        if sample.value < then.get(_key(sample), 0.0):
            was = then.get(_key(sample), 0.0)
            raise CounterRestartedError(
                f"{name} of engine {sample.engine or 'process'} went back from {was:g} to "
                f"{sample.value:g}: the server was started again"
            )
    if gone:
        raise CounterRestartedError(
            f"{name}: {len(gone)} series were on the page before and are gone"
        )
    return sum(sample.value - then.get(_key(sample), 0.0) for sample in rows)


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.engine, tuple(sorted(sample.labels.items()))


def engines(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the engine labels on the page, in order."""
    return tuple(sorted({sample.engine for sample in samples} - {PROCESS}))


class HasMetrics(Protocol):
    """What can be asked for a page of metrics."""

    def metrics_page(self) -> str:
        """Fetch `/metrics`."""


class Settled(NamedTuple):
    """Counters after a wait: the last samples, whether the condition was met, and the page."""

    samples: tuple[Sample, ...]
    reached: bool
    waited_s: float
    detail: str
    page: str
    missing: tuple[str, ...]


def settle(
    client: HasMetrics,
    *,
    finished: int,
    prompt_tokens: int,
    since: Sequence[Sample],
    limit_s: float,
) -> Settled:
    """Wait until the counters show what was sent since a snapshot, and nothing runs or waits.

    `finished` requests and `prompt_tokens` are totals over all engines. More than was sent counts
    as reached: somebody else's requests are for the checks to find. Raises CounterRestartedError.
    """
    start_s = clock.monotonic_s()
    while True:
        text = client.metrics_page()
        page = read(text)
        lacking = _lacking(page.samples, since, finished=finished, prompt_tokens=prompt_tokens)
        waited_s = clock.monotonic_s() - start_s
        if not lacking or waited_s >= limit_s:
            detail = "; ".join(lacking)
            return Settled(page.samples, not lacking, waited_s, detail, text, page.missing)
        clock.sleep_s(POLL_S)


def _lacking(
    samples: Sequence[Sample], since: Sequence[Sample], *, finished: int, prompt_tokens: int
) -> list[str]:
    lacking = []
    for name, wanted in (("requests_finished", finished), ("prompt_tokens", prompt_tokens)):
        seen = delta(since, samples, name)
        if seen is None:
            lacking.append(f"{name} n/a")
        elif seen < wanted:
            lacking.append(f"{name} {seen:g} of {wanted}")
    lacking += busy(samples)
    return lacking


def busy(samples: Sequence[Sample]) -> list[str]:
    """Name what says that requests run or wait, or that it cannot be known; empty when idle."""
    found = []
    for name in ("running", "waiting"):
        value = total(samples, name)
        if value is None or value > 0:
            found.append(f"{name} {'n/a' if value is None else f'{value:g}'}")
    return found

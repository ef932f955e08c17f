"""Numbers of two runs side by side: hits, equal answers, log-probability bands, times.

A rate is subtracted only where both count the same queries; a difference of times counts only where
it is tested. A value that one run does not have stays None and is printed as n/a.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from kvbench.checks.semantics import Meaning, meanings_of
from kvbench.compare.paired import Shift, shift, tests_that_count
from kvbench.compare.pairing import (
    Group,
    Metric,
    equal_answers,
    groups,
    paired_times,
    shared_places,
)
from kvbench.compare.runs import Run
from kvbench.report.tables import BandRow, PhaseRow, Rate, band_rows

EQUAL = "equal"
FEWER = "fewer hits"
MORE = "more hits"
NOT_JUDGED = "differs; under load timing decides"
OTHER_QUERIES = "not comparable: queries differ"
OTHER_MEANING = "not comparable: queries count other things"
DOUBTFUL = "not judged: the phase is invalid in a run"
UNKNOWN = "n/a"

SLOWER = "slower"
FASTER = "faster"
NOISE = "inside the noise"
FLOOR = "inside the noise of repeats"
TOO_FEW = "too few prompts to tell"
NOTHING = "mean nothing"
OTHER_MACHINE = "not compared: another machine"

METRICS: Mapping[str, Metric] = {
    "TTFT": lambda request: request.done.ttft_s,
    "latency": lambda request: request.done.latency_s,
}


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of one tier in one phase, in tokens."""

    stage: str
    arm: str
    phase: str
    engine: str | None
    tier: str
    base: Rate
    other: Rate
    difference_tokens: int | None
    """None where the two are not subtracted"""
    verdict: str


class IdentityRow(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one phase that equal the first fresh run of their own run, and of each other."""

    stage: str
    arm: str
    phase: str
    base_equal: int | None
    base_answers: int
    other_equal: int | None
    other_answers: int
    between_equal: int
    between_answers: int
    base_max_nats: float | None
    """largest difference to a GPU hit or to fresh, as in the report"""
    other_max_nats: float | None


class BandPair(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of log-probabilities, each run against its own band."""

    stage: str
    arm: str
    concurrency: int
    comparison: str
    base: BandRow | None
    other: BandRow | None


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One time of one group of phases, paired over prompts."""

    stage: str
    arm: str
    phases: str
    repeats: int
    """phases over which each prompt's median was taken"""
    metric: str
    base_median_s: float | None
    other_median_s: float | None
    pairs: int
    unpaired: int
    ratio: float | None
    """other / base"""
    low: float | None
    high: float | None
    level: float | None
    """what the interval covers, 0 to 1"""
    p_value: float | None
    p_adjusted: float | None
    """after the correction for many tests; None where it could not become significant"""
    floor_ratio: float | None
    """largest change, as a factor above 1, between repeats of one set-up; None without repeats"""
    verdict: str


def _moved(base: Rate, other: Rate, *, is_alike: bool) -> tuple[int | None, str]:
    """What to subtract, if anything, and why not."""
    if base.hits is None or base.queries is None or other.hits is None or other.queries is None:
        return None, UNKNOWN
    if not is_alike:
        return None, OTHER_MEANING
    if base.queries != other.queries:
        return None, OTHER_QUERIES
    moved = other.hits - base.hits
    if moved == 0:
        return 0, EQUAL
    return moved, FEWER if moved < 0 else MORE


def _meanings(run: Run) -> dict[tuple[str, str], frozenset[Meaning]]:
    return {pair: meanings_of(run.ledger, *pair) for pair in run.ledger.pairs}


def rate_rows(base: Run, other: Run) -> list[RateRow]:
    """Hits by arm, phase, engine and tier; exact where one request runs at a time."""
    meant, means = _meanings(base), _meanings(other)
    found: list[RateRow] = []
    for place in shared_places(base, other):
        window = base.windows[place]
        why = None
        if place in base.doubtful or place in other.doubtful:
            why = DOUBTFUL
        elif window.concurrency > 1 or window.is_tool_driven:
            why = NOT_JUDGED
        seen = meant.get(place[:2], frozenset()), means.get(place[:2], frozenset())
        has_one_meaning = not all(seen) or len(seen[0] | seen[1]) == 1
        has_connector = window.has_connector or other.windows[place].has_connector
        for key, left in base.phase_rows.items():
            right = other.phase_rows.get(key)
            if key[:3] != place or right is None:
                continue
            for tier, pair in _tiers(left, right, has_connector=has_connector):
                moved, verdict = _moved(*pair, is_alike=tier == "local" or has_one_meaning)
                verdict = why if why is not None and moved else verdict
                found.append(_rate_row(left, tier, pair, moved, verdict))
    return found


def _rate_row(
    place: PhaseRow, tier: str, pair: tuple[Rate, Rate], moved: int | None, verdict: str
) -> RateRow:
    return RateRow(
        stage=place.stage,
        arm=place.arm,
        phase=place.phase,
        engine=place.engine,
        tier=tier,
        base=pair[0],
        other=pair[1],
        difference_tokens=moved,
        verdict=verdict,
    )


def _tiers(
    left: PhaseRow, right: PhaseRow, *, has_connector: bool
) -> list[tuple[str, tuple[Rate, Rate]]]:
    """Both rates of each tier; without a connector there is no external one."""
    local = ("local", (left.local, right.local))
    external = ("external", (left.external, right.external))
    return [local, external] if has_connector else [local]


def identity_rows(base: Run, other: Run) -> list[IdentityRow]:
    """Equal answers by phase; the checks judge them, here they stand side by side."""
    ours, theirs = base.phase_rows, other.phase_rows
    found = []
    for place in shared_places(base, other):
        left, right = ours.get((*place, None)), theirs.get((*place, None))
        equal, answers = equal_answers(base, other, place)
        if left is None or right is None or not (left.answers or right.answers or answers):
            continue
        found.append(
            IdentityRow(
                stage=place[0],
                arm=place[1],
                phase=place[2],
                base_equal=left.identical,
                base_answers=left.answers,
                other_equal=right.identical,
                other_answers=right.answers,
                between_equal=equal,
                between_answers=answers,
                base_max_nats=left.max_delta_nats,
                other_max_nats=right.max_delta_nats,
            )
        )
    return found


def band_pairs(base: Run, other: Run) -> list[BandPair]:
    """Largest log-probability differences with the band of their own run."""

    def keyed(run: Run) -> dict[tuple[str, str, int, str], BandRow]:
        rows = band_rows(run.ledger)
        return {(row.stage, row.arm, row.concurrency, row.comparison): row for row in rows}

    ours, theirs = keyed(base), keyed(other)
    shared = [pair for pair in base.ledger.pairs if pair in other.ledger.pairs]
    return [
        BandPair(
            stage=key[0],
            arm=key[1],
            concurrency=key[2],
            comparison=key[3],
            base=ours.get(key),
            other=theirs.get(key),
        )
        for key in dict.fromkeys((*ours, *theirs))
        if key[:2] in shared
    ]


class Measured(NamedTuple):
    """One time of one group of phases in two runs, before it is judged."""

    group: Group
    metric: str
    repeats: int
    base_s: list[float]
    other_s: list[float]
    unpaired: int
    shift: Shift | None


def measure_times(base: Run, other: Run, error_rate: float) -> list[Measured]:
    """Every time that prompts of both runs have, by group of phases."""
    found = []
    for group, places in groups(base, other).items():
        for name, metric in METRICS.items():
            times = paired_times(base, other, places, metric)
            if not times.base and not times.unpaired:
                continue
            moved = shift(times.base, times.other, error_rate)
            found.append(Measured(group, name, len(places), *times, moved))
    return found


def floors(repeats: Iterable[Sequence[Measured]]) -> dict[tuple[Group, str], float]:
    """Largest |log ratio| between repeats of one set-up, by group and metric."""
    found: dict[tuple[Group, str], float] = {}
    for measured in repeats:
        for each in measured:
            if each.shift is not None:
                key = (each.group, each.metric)
                found[key] = max(found.get(key, 0.0), abs(math.log(each.shift.ratio)))
    return found


class Judged(NamedTuple):
    """Times of one pair of runs, with what is known about their noise."""

    measured: Sequence[Measured]
    floors: Mapping[tuple[Group, str], float]
    refused: str | None
    """why no time of this pair is tested"""


def _time_verdict(
    each: Measured, adjusted: float | None, floor: float | None, refused: str | None, limit: float
) -> str:
    if each.shift is None:
        return UNKNOWN
    if refused is not None:
        return refused
    if adjusted is None:
        return TOO_FEW
    if adjusted >= limit:
        return NOISE
    if floor is not None and abs(math.log(each.shift.ratio)) <= floor:
        return FLOOR
    return SLOWER if each.shift.ratio > 1 else FASTER


def judge_times(pairs: Sequence[Judged], error_rate: float) -> list[list[TimeRow]]:
    """Rows of every pair of runs; the error rate is shared by all tests of the call."""
    shifts = [
        each.shift
        for pair in pairs
        if pair.refused is None
        for each in pair.measured
        if each.shift is not None
    ]
    tests = tests_that_count([moved.smallest_p for moved in shifts], error_rate)

    def adjusted(moved: Shift | None) -> float | None:
        if moved is None or moved.smallest_p >= error_rate / tests:
            return None
        return min(1.0, moved.p_value * tests)

    return [
        [
            _time_row(
                each, pair, adjusted(each.shift if pair.refused is None else None), error_rate
            )
            for each in pair.measured
        ]
        for pair in pairs
    ]


def _time_row(each: Measured, pair: Judged, adjusted: float | None, limit: float) -> TimeRow:
    floor = pair.floors.get((each.group, each.metric))
    moved = each.shift
    is_tested = pair.refused is None
    return TimeRow(
        stage=each.group.stage,
        arm=each.group.arm,
        phases=each.group.words,
        repeats=each.repeats,
        metric=each.metric,
        base_median_s=median(each.base_s) if each.base_s else None,
        other_median_s=median(each.other_s) if each.other_s else None,
        pairs=len(each.base_s),
        unpaired=each.unpaired,
        ratio=moved.ratio if moved is not None and is_tested else None,
        low=moved.low if moved is not None and is_tested else None,
        high=moved.high if moved is not None and is_tested else None,
        level=moved.level if moved is not None and is_tested else None,
        p_value=moved.p_value if moved is not None and is_tested else None,
        p_adjusted=adjusted,
        floor_ratio=None if floor is None else math.exp(floor),
        verdict=_time_verdict(each, adjusted, floor, pair.refused, limit),
    )

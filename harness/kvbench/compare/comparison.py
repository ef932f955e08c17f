"""A comparison as data: what was compared with what, what differs, and its exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from kvbench.compare import deltas
from kvbench.compare.findings import Change, FindingRow, finding_rows
from kvbench.compare.paired import pairs_needed
from kvbench.compare.pairing import Group
from kvbench.compare.runs import Run, read_runs
from kvbench.compare.settings import (
    Difference,
    differences,
    is_repeat,
    refusal,
    refuse_fake,
)
from kvbench.errors import ExitCode, UsageError
from kvbench.report.text import MISSING

SCHEMA = 1
DEFAULT_ERROR_RATE = 0.01


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a comparison says of a run."""

    letter: str
    run_id: str
    scenario: str
    vllm: str
    python: str
    """interpreter of the engine, as the scenario names it"""
    kvbench: str
    machine: str
    verdict: str
    reason: str
    """of the finding that decided; empty for a pass"""
    unusable: str | None
    """why none of its numbers may be used"""
    is_fake: bool
    times_mean_nothing: str | None


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """The base against one other run."""

    other: str
    is_repeat: bool
    """nothing differs that could change a number: what differs is noise"""
    differences: tuple[Difference, ...]
    numbers_refused: str | None
    times_refused: str | None
    findings: tuple[FindingRow, ...]
    rates: tuple[deltas.RateRow, ...]
    identity: tuple[deltas.IdentityRow, ...]
    bands: tuple[deltas.BandPair, ...]
    times: tuple[deltas.TimeRow, ...]
    only_base: tuple[str, ...]
    """stage / arm / phase that only one of the two measured"""
    only_other: tuple[str, ...]
    notes: tuple[str, ...]
    exit_code: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `kvbench compare` prints."""

    schema: int
    runs: tuple[RunFacts, ...]
    error_rate: float
    """false-alarm rate of all tests of times together"""
    allow: tuple[str, ...]
    unused_allow: tuple[str, ...]
    """declarations that no difference needed"""
    against: tuple[Against, ...]
    exit_code: int


def _machine(facts: Mapping[str, Any]) -> str:
    gpus = facts.get("gpus")
    names = [str(gpu.get("name")) if isinstance(gpu, Mapping) else str(gpu) for gpu in gpus or ()]
    cpu, cores = facts.get("cpu") or MISSING, facts.get("cores") or MISSING
    return f"{', '.join(names) or 'no GPU recorded'}; {cores} cores, {cpu}"


def _facts(run: Run) -> RunFacts:
    ledger, first = run.ledger, run.verdict.first
    commit = str(ledger.run.source.get("commit") or MISSING)[:12]
    dirty = ", with local changes" if ledger.run.source.get("dirty") else ""
    is_pass = run.verdict.exit_code == ExitCode.PASS
    return RunFacts(
        letter=run.letter,
        run_id=ledger.run.run_id,
        scenario=ledger.run.scenario_name,
        vllm=", ".join(run.vllm_versions) or MISSING,
        python=ledger.scenario.engine.python if ledger.scenario is not None else MISSING,
        kvbench=f"{ledger.run.kvbench_version}, commit {commit}{dirty}",
        machine=_machine(ledger.run.machine),
        verdict=run.verdict.outcome.value,
        reason=first.reason if first is not None and not is_pass else "",
        unusable=run.unusable,
        is_fake=run.is_fake,
        times_mean_nothing=run.times_mean_nothing,
    )


def _numbers_refused(base: Run, other: Run) -> str | None:
    words = [f"run {run.letter}: {run.unusable}" for run in (base, other) if run.unusable]
    if words:
        return "; ".join(words)
    if not any(place in other.windows for place in base.windows):
        return "no phase of any arm was measured in both"
    return None


def _times_refused(base: Run, other: Run, found: Sequence[Difference]) -> str | None:
    why = base.times_mean_nothing or other.times_mean_nothing
    if why is not None:
        return f"{deltas.NOTHING}: {why}"
    if any(each.kind == "machine" and each.allowed_by is None for each in found):
        return deltas.OTHER_MACHINE
    return None


def _found(base: Run, other: Run, allow: Sequence[str]) -> list[Difference]:
    if base.ledger.scenario is None or other.ledger.scenario is None:
        return []
    if base.ledger.plan is None or other.ledger.plan is None:
        return []
    return differences(base, other, allow)


def _refuse(base: Run, others: Sequence[Run], found: Mapping[str, list[Difference]]) -> None:
    """Raise UsageError where any run is unlike the base: with all keys of all of them at once."""
    for other in others:
        refuse_fake(base, other)
    refused = [refusal(base, other, found[other.letter]) for other in others]
    words = [each for each in refused if each is not None]
    if words:
        raise UsageError("\n".join(words))


def _places(one: Run, two: Run) -> tuple[str, ...]:
    return tuple(" / ".join(place) for place in one.windows if place not in two.windows)


def _notes(against: Sequence[deltas.TimeRow], error_rate: float) -> list[str]:
    few = [row for row in against if row.verdict == deltas.TOO_FEW]
    if not few:
        return []
    tested = [row for row in against if row.p_value is not None]
    most = max(row.pairs for row in few)
    needed = pairs_needed(len(tested), error_rate)
    words = (
        f"{most} prompts cannot decide {len(tested)} times at an error rate of {error_rate:g} in "
        f"all: {needed} prompts could (stages.*.workload.prompts)"
    )
    return [words]


def _exit_code(
    numbers_refused: str | None,
    findings: Sequence[FindingRow],
    rates: Sequence[deltas.RateRow],
    times: Sequence[deltas.TimeRow],
) -> int:
    is_worse = (
        any(row.change is Change.NEWLY_FAILING for row in findings)
        or any(row.verdict == deltas.FEWER for row in rates)
        or any(row.verdict == deltas.SLOWER for row in times)
    )
    if is_worse:
        return int(ExitCode.FAIL)
    lost = any(row.change is Change.NEWLY_UNPROVED and row.counts for row in findings)
    return int(ExitCode.UNPROVED if lost or numbers_refused is not None else ExitCode.PASS)


Floors = dict[tuple[Group, str], float]


def _floors_of(
    pair: tuple[str, str], runs: Sequence[Run], allow: Sequence[str], error_rate: float
) -> Floors:
    """Noise between repeats of one set-up among the runs, without the pair in question itself."""
    repeats = []
    for one, two in combinations(runs, 2):
        if (one.letter, two.letter) == pair or one.unusable or two.unusable:
            continue
        if one.is_fake == two.is_fake and is_repeat(_found(one, two, allow)):
            repeats.append(deltas.measure_times(one, two, error_rate))
    return deltas.floors(repeats)


def _error_rate(runs: Sequence[Run]) -> float:
    """The smallest of the scenarios' error rates: they differ only where that was declared."""
    rates = [run.ledger.scenario.error_rate for run in runs if run.ledger.scenario is not None]
    return min(rates, default=DEFAULT_ERROR_RATE)


def _times(
    base: Run,
    others: Sequence[Run],
    found: Mapping[str, list[Difference]],
    allow: Sequence[str],
    error_rate: float,
) -> list[list[deltas.TimeRow]]:
    judged = []
    for other in others:
        refused = _times_refused(base, other, found[other.letter])
        is_usable = _numbers_refused(base, other) is None
        measured = deltas.measure_times(base, other, error_rate) if is_usable else []
        pair = (base.letter, other.letter)
        floors: Floors = {}
        if refused is None and measured:
            floors = _floors_of(pair, (base, *others), allow, error_rate)
        judged.append(deltas.Judged(measured, floors, refused))
    return deltas.judge_times(judged, error_rate)


def _against(
    base: Run,
    other: Run,
    found: Sequence[Difference],
    times: Sequence[deltas.TimeRow],
    error_rate: float,
) -> Against:
    refused = _numbers_refused(base, other)
    findings = finding_rows(base, other)
    rates = deltas.rate_rows(base, other) if refused is None else []
    return Against(
        other=other.letter,
        is_repeat=refused is None and is_repeat(found),
        differences=tuple(found),
        numbers_refused=refused,
        times_refused=_times_refused(base, other, found),
        findings=tuple(findings),
        rates=tuple(rates),
        identity=tuple(deltas.identity_rows(base, other)) if refused is None else (),
        bands=tuple(deltas.band_pairs(base, other)) if refused is None else (),
        times=tuple(times),
        only_base=_places(base, other),
        only_other=_places(other, base),
        notes=tuple(_notes(times, error_rate)),
        exit_code=_exit_code(refused, findings, rates, times),
    )


def compare(directories: Sequence[Path], allow: Sequence[str] = ()) -> Comparison:
    """Compare the first record with each other one.

    `allow` are patterns of keys whose difference is what is compared. Raises UsageError where runs
    differ in anything else that decides a number, RecordError where a directory is no record.
    """
    base, *others = runs = read_runs(directories)
    found = {other.letter: _found(base, other, allow) for other in others}
    _refuse(base, others, found)
    error_rate = _error_rate(runs)
    times = _times(base, others, found, allow, error_rate)
    against = tuple(
        _against(base, other, found[other.letter], rows, error_rate)
        for other, rows in zip(others, times, strict=True)
    )
    used = {each.allowed_by for all_found in found.values() for each in all_found}
    codes = {each.exit_code for each in against}
    worst = next(c for c in (ExitCode.FAIL, ExitCode.UNPROVED, ExitCode.PASS) if int(c) in codes)
    return Comparison(
        schema=SCHEMA,
        runs=tuple(_facts(run) for run in runs),
        error_rate=error_rate,
        allow=tuple(allow),
        unused_allow=tuple(pattern for pattern in allow if pattern not in used),
        against=against,
        exit_code=int(worst),
    )

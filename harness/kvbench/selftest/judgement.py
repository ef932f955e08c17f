"""Compares what a row showed with what it had to show; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvbench.checks.finding import Outcome
from kvbench.selftest.execute import RowRun, Seen
from kvbench.selftest.rows import Expected, Row
from kvbench.verdict import SEVERITY

HARMLESS = frozenset({"look_alike", "clean"})
"""Kinds of rows in which any fail is a false alarm."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row with all its runs."""

    row: Row
    runs: tuple[RowRun, ...]
    problems: tuple[str, ...]
    """what was not as expected; empty: the row is right"""

    @property
    def is_right(self) -> bool:
        """True where every run showed what it had to."""
        return not self.problems

    @property
    def false_alarms(self) -> int:
        """Runs of a harmless row that ended in a fail."""
        if self.row.kind not in HARMLESS:
            return 0
        return sum(run.outcome is Outcome.FAIL for run in self.runs)

    @property
    def seen(self) -> str:
        """Outcomes of its runs."""
        outcomes = [run.outcome for run in self.runs]
        kinds = sorted(set(outcomes), key=SEVERITY.index)
        if len(outcomes) == 1:
            return outcomes[0].value
        return ", ".join(f"{outcomes.count(kind)} x {kind.value}" for kind in kinds)

    def worst_by_witness(self) -> Mapping[str, Outcome]:
        """The most severe outcome that each witness said in any run."""
        worst: dict[str, Outcome] = {}
        for run in self.runs:
            for finding in run.findings:
                for witness in finding.witness.split(", "):
                    known = worst.get(witness)
                    if known is None or SEVERITY.index(finding.outcome) < SEVERITY.index(known):
                        worst[witness] = finding.outcome
        return worst


@dataclass(frozen=True, slots=True)
class Matrix:
    """All rows that were run, and what they add up to."""

    results: tuple[RowResult, ...]
    wall_s: float

    @property
    def is_right(self) -> bool:
        """True where the self-test passes."""
        return bool(self.results) and all(result.is_right for result in self.results)

    @property
    def faults(self) -> tuple[RowResult, ...]:
        """Rows with a fault in them."""
        return tuple(r for r in self.results if r.row.kind not in HARMLESS)

    @property
    def caught(self) -> int:
        """Faulty rows that ended in the expected verdict: the mutation score's numerator."""
        return sum(result.is_right for result in self.faults)

    @property
    def harmless_runs(self) -> int:
        """Runs of look-alikes and clean repeats."""
        return sum(len(r.runs) for r in self.results if r.row.kind in HARMLESS)

    @property
    def false_alarms(self) -> int:
        """How many of them ended in a fail."""
        return sum(result.false_alarms for result in self.results)

    def fault_ids(self) -> tuple[str, ...]:
        """Distinct fault models among the rows, for example F01."""
        ids = (result.row.id for result in self.faults)
        return tuple(dict.fromkeys(name for name in ids if name[0] == "F" and "+" not in name))


def judge_row(row: Row, runs: Sequence[RowRun]) -> RowResult:
    """Compare the runs of a row with its expectations."""
    problems = [problem for run in runs for problem in _problems(row, run)]
    return RowResult(row, tuple(runs), tuple(dict.fromkeys(problems)))


def _problems(row: Row, run: RowRun) -> Iterable[str]:
    place = f"run {run.repeat + 1}: " if row.repeats > 1 else ""
    if run.outcome is not row.outcome:
        decisive = next((f"{f.check}: {f.reason}" for f in run.findings), "no finding")
        yield f"{place}verdict {run.outcome.value}, expected {row.outcome.value} ({decisive})"
    for expected in row.findings:
        missing = _missing(expected, run.findings)
        if missing is not None:
            yield f"{place}{missing}"
    for seen in run.findings:
        if seen.outcome is Outcome.FAIL and not _is_attributed(seen):
            yield f"{place}{seen.check} fails without naming what was seen and where: {seen.reason}"
    if run.setup_problem is not None:
        yield f"{place}{run.setup_problem}"


def _is_attributed(seen: Seen) -> bool:
    """A fail names its witness and either place and numbers, or the line of the record."""
    has_numbers = bool(seen.expected and seen.observed)
    return bool(seen.witness) and (has_numbers or bool(seen.evidence))


def _missing(expected: Expected, findings: Sequence[Seen]) -> str | None:
    """Say what lacks; None where a finding is as expected."""
    of_check = [seen for seen in findings if seen.check == expected.check]
    if any(_fits(expected, seen) for seen in of_check):
        return None
    wanted = f"{expected.check} {expected.outcome.value}"
    for name in ("witness", "phase", "says"):
        value = getattr(expected, name)
        wanted += f", {name} {value!r}" if value is not None else ""
    wanted += f", prompts {' '.join(expected.prompts)}" if expected.prompts else ""
    said = "; ".join(
        f"{s.outcome.value} by {s.witness} in {s.phase} ({' '.join(s.prompts) or '-'}): {s.reason}"
        for s in of_check
    )
    return f"no finding {wanted}; that check said: {said or 'nothing'}"


def _fits(expected: Expected, seen: Seen) -> bool:
    text = " ".join((seen.reason, *seen.notes))
    return (
        seen.outcome is expected.outcome
        and (expected.witness is None or expected.witness in seen.witness.split(", "))
        and (expected.phase is None or seen.phase == expected.phase)
        and (not expected.prompts or set(seen.prompts) == set(expected.prompts))
        and (expected.says is None or expected.says in text)
    )

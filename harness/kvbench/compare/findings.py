"""What the checks say of two runs: newly failing, newly passing, still failing, lost proofs.

A check speaks once for a whole arm where all is well and once for each phase where something is
not, so a fail in a phase is held against the other run's word about that phase or, without one,
about the arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kvbench.checks.finding import Finding, Outcome
from kvbench.compare.runs import Run
from kvbench.verdict import SEVERITY

WHOLE = "-"
"""Phase of a finding about a whole arm."""
FAILING = frozenset({Outcome.FAIL, Outcome.ERROR, Outcome.ABORTED})


class Change(StrEnum):
    """What became of one check at one place, from the base to the other run."""

    NEWLY_FAILING = "newly failing"
    STILL_FAILING = "still failing"
    NEWLY_PASSING = "newly passing"
    NEWLY_UNPROVED = "newly unproved"
    NEWLY_PROVED = "newly proved"
    STILL_UNPROVED = "still unproved"
    UNDECIDED = "failed, now unproved"
    GONE = "failed, now silent"
    ONLY_BASE = "only in the base"
    ONLY_OTHER = "only in the other"
    SAME = "passes in both"


MARKS: Mapping[Change, str] = {
    Change.NEWLY_FAILING: "!",
    Change.STILL_FAILING: "x",
    Change.NEWLY_PASSING: "+",
    Change.NEWLY_UNPROVED: "?",
    Change.NEWLY_PROVED: "+",
    Change.STILL_UNPROVED: "~",
    Change.UNDECIDED: "o",
    Change.GONE: "o",
    Change.ONLY_BASE: "<",
    Change.ONLY_OTHER: ">",
    Change.SAME: "=",
}


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One check at one place of two runs."""

    check: str
    claim: str
    stage: str
    arm: str
    phase: str
    base: str | None
    """outcome; None: the check said nothing"""
    other: str | None
    change: Change
    counts: bool
    """whether it can change the exit code: claimed in the other run, or a fail"""
    base_reason: str
    other_reason: str
    prompts: tuple[str, ...]
    """those that the deciding finding names"""


class Said(NamedTuple):
    """The worst that a check said at a place."""

    finding: Finding
    is_counted: bool


Key = tuple[str, str, str, str]
"""Check, claim, stage and arm."""
Speech = dict[Key, dict[str, Said]]


def _speech(run: Run) -> Speech:
    """What every check said, by place; of a run without an end not that it has none."""
    found: Speech = {}
    both = [(f, True) for f in run.verdict.findings] + [(f, False) for f in run.verdict.unclaimed]
    for finding, is_counted in both:
        if run.unusable is not None and finding.witness == "record":
            continue
        said = found.setdefault((finding.check, finding.claim, finding.stage, finding.arm), {})
        old = said.get(finding.phase)
        if old is None or _severity(finding) < _severity(old.finding):
            said[finding.phase] = Said(finding, is_counted)
    return found


def _severity(finding: Finding) -> int:
    return SEVERITY.index(finding.outcome)


def _class(said: Said | None) -> str:
    if said is None:
        return "silent"
    if said.finding.outcome in FAILING:
        return "fails"
    return "passes" if said.finding.outcome is Outcome.PASS else "unproved"


CHANGES: Mapping[tuple[str, str], Change] = {
    ("fails", "fails"): Change.STILL_FAILING,
    ("fails", "passes"): Change.NEWLY_PASSING,
    ("fails", "unproved"): Change.UNDECIDED,
    ("fails", "silent"): Change.GONE,
    ("passes", "fails"): Change.NEWLY_FAILING,
    ("passes", "passes"): Change.SAME,
    ("passes", "unproved"): Change.NEWLY_UNPROVED,
    ("passes", "silent"): Change.ONLY_BASE,
    ("unproved", "fails"): Change.NEWLY_FAILING,
    ("unproved", "passes"): Change.NEWLY_PROVED,
    ("unproved", "unproved"): Change.STILL_UNPROVED,
    ("unproved", "silent"): Change.ONLY_BASE,
    ("silent", "fails"): Change.NEWLY_FAILING,
    ("silent", "passes"): Change.ONLY_OTHER,
    ("silent", "unproved"): Change.NEWLY_UNPROVED,
}


def _ran(run: Run, stage: str, arm: str) -> bool:
    """Whether a run has every stage and arm that a finding names; `-` is the whole run."""
    stages = {name for name, _ in run.ledger.pairs} | {WHOLE}
    arms = {name for _, name in run.ledger.pairs} | {WHOLE}
    return stages.issuperset(stage.split("+")) and arms.issuperset(arm.split("+"))


def _change(base: Run, other: Run, key: Key, before: Said | None, now: Said | None) -> Change:
    *_, stage, arm = key
    if not _ran(base, stage, arm):
        return Change.ONLY_OTHER
    if not _ran(other, stage, arm):
        return Change.ONLY_BASE
    return CHANGES[_class(before), _class(now)]


def _rows_of(
    base: Run, other: Run, key: Key, before: dict[str, Said], now: dict[str, Said]
) -> Iterable[FindingRow]:
    for phase in dict.fromkeys((*before, *now)):
        is_spelt_out = bool(before) and bool(now) and (phase not in before or phase not in now)
        if phase == WHOLE and is_spelt_out:
            continue  # the other run speaks of its phases one by one, and so do their rows
        one = before.get(phase, before.get(WHOLE))
        two = now.get(phase, now.get(WHOLE))
        deciding = two if _class(two) in ("fails", "unproved") else one or two
        assert deciding is not None
        check, claim, stage, arm = key
        yield FindingRow(
            check=check,
            claim=claim,
            stage=stage,
            arm=arm,
            phase=phase,
            base=one.finding.outcome.value if one is not None else None,
            other=two.finding.outcome.value if two is not None else None,
            change=_change(base, other, key, one, two),
            counts=two is not None and two.is_counted,
            base_reason=one.finding.reason if one is not None else "",
            other_reason=two.finding.reason if two is not None else "",
            prompts=deciding.finding.prompts,
        )


def finding_rows(base: Run, other: Run) -> list[FindingRow]:
    """Every check at every place, the worst changes first; empty where a record was edited."""
    if base.is_edited or other.is_edited:
        return []
    before, now = _speech(base), _speech(other)
    rows = [
        row
        for key in dict.fromkeys((*before, *now))
        for row in _rows_of(base, other, key, before.get(key, {}), now.get(key, {}))
    ]
    order = list(Change)
    return sorted(rows, key=lambda row: order.index(row.change))

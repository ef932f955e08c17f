"""From findings to one verdict and one exit code.

A fail outranks all; an environment error outranks what could not be decided; only a claimed check
can make a run inconclusive. What is not claimed, and did not fail, is printed as a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvbench.checks.common import SETUP
from kvbench.checks.finding import Finding, Outcome
from kvbench.errors import ExitCode

SEVERITY = (
    Outcome.FAIL,
    Outcome.ERROR,
    Outcome.ABORTED,
    Outcome.INVALID,
    Outcome.INCONCLUSIVE,
    Outcome.SKIPPED,
    Outcome.PASS,
)
"""Most severe first."""

EXIT_CODES: Mapping[Outcome, ExitCode] = {
    Outcome.FAIL: ExitCode.FAIL,
    Outcome.ERROR: ExitCode.ENVIRONMENT,
    Outcome.ABORTED: ExitCode.ENVIRONMENT,
    Outcome.INVALID: ExitCode.UNPROVED,
    Outcome.INCONCLUSIVE: ExitCode.UNPROVED,
    Outcome.SKIPPED: ExitCode.UNPROVED,
    Outcome.PASS: ExitCode.PASS,
}

ALWAYS_COUNTED = frozenset({Outcome.FAIL, Outcome.ERROR, Outcome.ABORTED})
"""Outcomes that count whether the check was claimed or not."""

Claims = Mapping[str, Iterable[str]]
"""Stage -> what it claims."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run proved, or why it did not."""

    outcome: Outcome
    exit_code: int
    findings: tuple[Finding, ...]
    """that count, most severe first"""
    unclaimed: tuple[Finding, ...] = ()
    """not claimed and not failed: notes"""

    @property
    def first(self) -> Finding | None:
        """The finding that decided."""
        return self.findings[0] if self.findings else None


def _claimed(finding: Finding, claims: Claims) -> bool:
    if finding.claim == SETUP or finding.outcome in ALWAYS_COUNTED:
        return True
    stages = finding.stage.split("+")
    if not any(stage in claims for stage in stages):  # about the whole run
        return any(finding.claim in set(map(str, words)) for words in claims.values())
    return any(finding.claim in set(map(str, claims.get(stage, ()))) for stage in stages)


def _unproved(findings: Iterable[Finding], claims: Claims) -> list[Finding]:
    """A claim about which no check said anything is not proved by silence."""
    spoken = {(stage, f.claim) for f in findings for stage in f.stage.split("+")}
    return [
        Finding(
            check="claim_checked",
            claim=str(claim),
            outcome=Outcome.INCONCLUSIVE,
            witness="-",
            stage=stage,
            arm="-",
            phase="-",
            reason=f"nothing was measured that could prove the claim {claim}",
        )
        for stage, words in claims.items()
        for claim in words
        if (stage, str(claim)) not in spoken
    ]


def judge_findings(findings: Iterable[Finding], claims: Claims) -> Verdict:
    """Rank the findings; `claims` says per stage which of them can leave a run unproved."""
    given = list(findings)
    counted = [finding for finding in given if _claimed(finding, claims)]
    unclaimed = tuple(finding for finding in given if not _claimed(finding, claims))
    is_edited = any(
        finding.check == "record_sealed" and finding.outcome is Outcome.INVALID for finding in given
    )
    if not is_edited:
        counted += _unproved(given, claims)
    ranked = sorted(counted, key=lambda finding: SEVERITY.index(finding.outcome))
    outcome = ranked[0].outcome if ranked else Outcome.INCONCLUSIVE
    return Verdict(
        outcome=outcome,
        exit_code=int(EXIT_CODES[outcome]),
        findings=tuple(ranked),
        unclaimed=unclaimed,
    )

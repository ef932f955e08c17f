from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.checks.finding import Finding, Outcome
from kvbench.errors import ExitCode
from kvbench.verdict import EXIT_CODES, SEVERITY, judge_findings

CLAIMS = {"replay": ("hits",)}


def finding(outcome: Outcome, claim: str = "hits") -> Finding:
    return Finding(
        check="some_check",
        claim=claim,
        outcome=outcome,
        witness="counters",
        stage="replay",
        arm="simple",
        phase="-",
        reason=outcome.value,
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.PASS], ExitCode.PASS),
        ([Outcome.PASS, Outcome.FAIL, Outcome.ERROR, Outcome.INVALID], ExitCode.FAIL),
        ([Outcome.ERROR, Outcome.INCONCLUSIVE], ExitCode.ENVIRONMENT),
        ([Outcome.ABORTED, Outcome.SKIPPED], ExitCode.ENVIRONMENT),
        ([Outcome.PASS, Outcome.INCONCLUSIVE], ExitCode.UNPROVED),
        ([Outcome.PASS, Outcome.INVALID], ExitCode.UNPROVED),
        ([Outcome.PASS, Outcome.SKIPPED], ExitCode.UNPROVED),
    ],
)
def test_the_most_severe_finding_decides(outcomes: list[Outcome], code: ExitCode) -> None:
    assert judge_findings([finding(outcome) for outcome in outcomes], CLAIMS).exit_code == code


def test_unclaimed_doubts_are_notes() -> None:
    doubt = finding(Outcome.INCONCLUSIVE, claim="logprobs")
    verdict = judge_findings([finding(Outcome.PASS), doubt], CLAIMS)
    assert verdict.exit_code == ExitCode.PASS
    assert verdict.unclaimed == (doubt,)


def test_a_fail_counts_whether_claimed_or_not() -> None:
    verdict = judge_findings(
        [finding(Outcome.PASS), finding(Outcome.FAIL, claim="logprobs")], CLAIMS
    )
    assert verdict.exit_code == ExitCode.FAIL


def test_doubts_about_the_setup_always_count() -> None:
    verdict = judge_findings(
        [finding(Outcome.PASS), finding(Outcome.INVALID, claim="setup")], CLAIMS
    )
    assert verdict.exit_code == ExitCode.UNPROVED


def test_a_claim_that_nothing_checked_is_not_proved() -> None:
    verdict = judge_findings([finding(Outcome.PASS)], {"replay": ("hits", "score")})
    assert verdict.exit_code == ExitCode.UNPROVED
    assert "claim score" in verdict.findings[0].reason


@given(st.lists(st.sampled_from(list(Outcome)), min_size=1))
def test_order_of_findings_changes_nothing(outcomes: list[Outcome]) -> None:
    forward = judge_findings([finding(outcome) for outcome in outcomes], CLAIMS)
    backward = judge_findings([finding(outcome) for outcome in reversed(outcomes)], CLAIMS)
    assert forward.outcome == backward.outcome == min(outcomes, key=SEVERITY.index)


def test_every_outcome_has_a_place_and_a_code() -> None:
    assert set(SEVERITY) == set(EXIT_CODES) == set(Outcome)

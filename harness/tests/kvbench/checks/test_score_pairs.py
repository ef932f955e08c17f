"""Only the paired difference of the same questions can fail a score."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import only, outcomes
from tool_records import change, evaluated, judged, samples

from kvbench.checks.finding import Outcome
from kvbench.verdict import Verdict

CHECK = "score_paired"
COUNT = 200


@pytest.fixture(autouse=True)
def _quick(quick_disk: None) -> None:
    """No test here reads a record after a crash."""


def pair(run: Path, control: range | list[int], tested: range | list[int]) -> Verdict:
    """Both arms, each with the questions that it got wrong."""
    return judged(
        run,
        {
            "control": [evaluated(samples(control, count=COUNT))],
            "simple": [evaluated(samples(tested, count=COUNT))],
        },
    )


def test_answers_that_only_turn_wrong_fail_inside_two_standard_errors(run: Path) -> None:
    """Ten of 200 lost and none won: the scores' intervals overlap, the pairs do not."""
    finding = only(pair(run, range(100), range(110)), CHECK, Outcome.FAIL)
    assert "strict: 10 right to wrong, 0 wrong to right of 200 questions" in finding.reason
    assert any("inside 2 combined standard errors" in note for note in finding.notes)
    assert finding.prompts == tuple(f"doc {doc}" for doc in range(100, 110))
    assert (finding.arm, finding.claim, finding.witness) == ("simple", "score", "samples")


def test_lower_score_by_flips_in_both_directions_is_no_fail(run: Path) -> None:
    """Sixteen lost and eight won are within chance (p 0.08), though the score fell by 4 points."""
    tested = [*range(8, 100), *range(100, 116)]
    finding = only(pair(run, range(100), tested), CHECK, Outcome.PASS)
    assert "strict: 16 right to wrong, 8 wrong to right" in finding.reason
    assert any("questions show a drop of" in note for note in finding.notes)


def test_better_score_is_no_fail(run: Path) -> None:
    assert outcomes(pair(run, range(100), range(50)), CHECK) == {"pass"}


def test_equal_answers_pass(run: Path) -> None:
    finding = only(pair(run, [3, 4], [3, 4]), CHECK, Outcome.PASS)
    assert "200 of 200 answers are equal word for word" in finding.notes


def test_too_few_right_answers_can_show_no_drop(run: Path) -> None:
    finding = only(pair(run, range(4, COUNT), range(COUNT)), CHECK, Outcome.INCONCLUSIVE)
    assert "too few right answers to see any drop" in finding.reason


def test_without_a_control_nothing_is_proved(run: Path) -> None:
    verdict = judged(run, {"simple": [evaluated(samples())]})
    assert "no control arm" in only(verdict, CHECK, Outcome.INCONCLUSIVE).reason


def test_cut_answers_make_a_score_invalid_and_fail_nothing(run: Path) -> None:
    """A drop without any defect of the cache: the limit was too small in one arm."""
    answers = samples(count=COUNT)
    for doc in range(60):
        answers = change(
            answers, doc, finish_reason="length", strict_correct=False, flexible_correct=False
        )
    verdict = judged(
        run, {"control": [evaluated(samples(count=COUNT))], "simple": [evaluated(answers)]}
    )
    assert verdict.outcome is Outcome.INVALID
    finding = only(verdict, CHECK, Outcome.PASS)
    assert "60 questions are left out: cut, empty or unscored in an arm" in finding.notes


def test_each_round_is_compared_with_the_controls_round_of_that_number(run: Path) -> None:
    verdict = judged(
        run,
        {
            "control": [
                evaluated(samples(count=COUNT)),
                evaluated(samples(range(12), count=COUNT, number=2), number=2),
            ],
            "simple": [
                evaluated(samples(count=COUNT)),
                evaluated(samples(range(12), count=COUNT, number=2), number=2),
            ],
        },
    )
    assert outcomes(verdict, CHECK) == {"pass"}
    assert verdict.outcome is Outcome.PASS


def test_rounds_beyond_the_controls_meet_its_last_one(run: Path) -> None:
    verdict = judged(
        run,
        {
            "control": [evaluated(samples(count=COUNT))],
            "simple": [
                evaluated(samples(count=COUNT)),
                evaluated(samples(range(30), count=COUNT, number=2), number=2),
            ],
        },
    )
    finding = only(verdict, CHECK, Outcome.FAIL)
    assert finding.reason.startswith("round 2 against round 1 of control")
    assert finding.phase == "round-2 c4"

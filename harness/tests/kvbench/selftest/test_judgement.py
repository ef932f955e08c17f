"""Is a row right only when verdict, check, witness, phase and prompts are the expected ones?"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvbench.checks.finding import Outcome
from kvbench.selftest.execute import RowRun, Seen
from kvbench.selftest.judgement import Matrix, judge_row
from kvbench.selftest.rows import Row

FAULT = Row.model_validate(
    {
        "id": "F01",
        "title": "t",
        "outcome": "fail",
        "findings": [
            {
                "check": "tokens_equal",
                "outcome": "fail",
                "witness": "tokens",
                "phase": "reload-1",
                "prompts": ["p5"],
                "says": "foreign",
            }
        ],
    }
)
CLEAN = Row(id="F28", title="t", kind="clean", outcome=Outcome.PASS, repeats=2)
SEEN = Seen(
    check="tokens_equal",
    outcome=Outcome.FAIL,
    witness="tokens",
    phase="reload-1",
    prompts=("p5",),
    reason="foreign content",
    notes=(),
    expected="token 1",
    observed="token 2",
    evidence=("journal.jsonl:7",),
)


def run(outcome: Outcome = Outcome.FAIL, *findings: Seen, **changes: Any) -> RowRun:
    made = RowRun(
        name="F01",
        repeat=0,
        outcome=outcome,
        exit_code=1,
        findings=findings or (SEEN,),
        wall_s=1.0,
        setup_problem=None,
        record="r",
    )
    return replace(made, **changes)


def test_expected_verdict_by_the_expected_finding_is_right() -> None:
    assert judge_row(FAULT, [run()]).is_right


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": Outcome.INVALID},
        {"witness": "logprobs"},
        {"phase": "replay-1"},
        {"prompts": ("p5", "p6")},
        {"reason": "tokens differ"},
        {"check": "hits_match_oracle"},
    ],
)
def test_another_finding_is_not_the_expected_one(change: dict[str, Any]) -> None:
    result = judge_row(FAULT, [run(Outcome.FAIL, replace(SEEN, **change))])
    assert not result.is_right
    assert "no finding tokens_equal fail" in result.problems[0]


def test_another_verdict_is_wrong_and_says_what_decided() -> None:
    result = judge_row(FAULT, [run(Outcome.ERROR)])
    assert "verdict error, expected fail (tokens_equal: foreign content)" in result.problems[0]


def test_words_may_stand_in_the_notes() -> None:
    seen = replace(SEEN, reason="tokens differ", notes=("foreign content: p5 reads like p2",))
    assert judge_row(FAULT, [run(Outcome.FAIL, seen)]).is_right


def test_what_the_setup_saw_counts() -> None:
    assert not judge_row(FAULT, [run(setup_problem="a bystander is gone")]).is_right


def test_fail_of_a_harmless_row_is_a_false_alarm() -> None:
    quiet = replace(SEEN, outcome=Outcome.PASS)
    runs = [run(Outcome.PASS, quiet), run(Outcome.FAIL, repeat=1)]
    result = judge_row(CLEAN, runs)
    assert result.false_alarms == 1
    assert result.seen == "1 x fail, 1 x pass"
    matrix = Matrix((result, judge_row(FAULT, [run()])), 1.0)
    assert (matrix.caught, len(matrix.faults)) == (1, 1)
    assert (matrix.false_alarms, matrix.harmless_runs) == (1, 2)
    assert not matrix.is_right


def test_nothing_run_is_not_right() -> None:
    assert not Matrix((), 0.0).is_right


def test_witness_column_shows_the_worst_that_it_said() -> None:
    counted = replace(SEEN, witness="counters, usage", outcome=Outcome.INVALID)
    fine = replace(SEEN, witness="counters", outcome=Outcome.PASS)
    worst = judge_row(FAULT, [run(Outcome.FAIL, counted, fine, SEEN)]).worst_by_witness()
    assert worst == {
        "counters": Outcome.INVALID,
        "usage": Outcome.INVALID,
        "tokens": Outcome.FAIL,
    }


def test_fail_that_names_no_evidence_is_wrong() -> None:
    bare = replace(SEEN, expected="", observed="", evidence=())
    assert "without naming" in judge_row(FAULT, [run(Outcome.FAIL, SEEN, bare)]).problems[0]

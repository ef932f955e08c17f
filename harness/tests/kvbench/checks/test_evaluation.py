"""F33 and F32 for evaluations: what lowers a score without a defect of the cache is invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tool_records
from records import only, outcomes
from tool_records import Played, change, evaluated, judged, samples

from kvbench.checks.finding import Outcome
from kvbench.events import EvaluationDone, Event, ReportedScore, SampleDone
from kvbench.verdict import Verdict

COMPLETE, INPUTS, REQUESTS = "evaluation_complete", "evaluation_inputs", "evaluation_requests"


@pytest.fixture(autouse=True)
def _quick(quick_disk: None) -> None:
    """No test here reads a record after a crash."""


def both(run: Path, tested: Played, control: Played | None = None) -> Verdict:
    return judged(run, {"control": [control or evaluated(samples())], "simple": [tested]})


def as_chat(answers: list[Event], first: int) -> list[Event]:
    """The same questions behind another template, from one on."""
    for doc in range(first, tool_records.QUESTIONS):
        answers = change(answers, doc, prompt_sha256=tool_records.digest(f"chat {doc}"))
    return answers


# ---- complete --------------------------------------------------------------------------------


def test_whole_rounds_pass_with_their_columns(run: Path) -> None:
    verdict = both(run, evaluated(samples(wrong=[7])))
    assert verdict.outcome is Outcome.PASS, verdict.first
    for check in (COMPLETE, INPUTS, REQUESTS, "score_paired"):
        assert outcomes(verdict, check) == {"pass"}
    notes = next(f for f in verdict.findings if f.check == COMPLETE and f.arm == "simple").notes
    assert notes[0].startswith("round 1: strict 39/40 = 0.975 +- 0.025; flexible 39/40")
    assert "asked 40, answered 40, missing 0, truncated 0, empty 0" in notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finish_reason": "length"}, "truncated 1 of 40"),
        ({"answer": " \n"}, "empty 1 of 40"),
        ({"answer": None, "error": "connection reset"}, "missing 1 of 40, first error: connection"),
    ],
)
def test_one_unfit_answer_makes_the_score_invalid(
    run: Path, changes: dict[str, object], words: str
) -> None:
    verdict = both(run, evaluated(change(samples(), 5, **changes)))
    finding = only(verdict, COMPLETE, Outcome.INVALID)
    assert words in finding.reason
    assert (finding.arm, finding.prompts, finding.witness) == ("simple", ("doc 5",), "samples")
    assert finding.evidence[0].startswith("journal.jsonl:")
    assert verdict.outcome is Outcome.INVALID
    assert verdict.exit_code == 4


def test_samples_that_nobody_filed_are_missing_and_no_change_of_inputs(run: Path) -> None:
    answers = samples()[:-2]
    verdict = both(run, evaluated(answers, samples_asked=40))
    assert "missing 2 of 40" in only(verdict, COMPLETE, Outcome.INVALID).reason
    assert outcomes(verdict, INPUTS) == {"pass"}


def test_unknown_number_of_asked_samples_is_not_taken_for_zero_missing(run: Path) -> None:
    verdict = both(run, evaluated(samples(), samples_asked=None))
    assert "asked for is n/a" in only(verdict, COMPLETE, Outcome.INVALID).reason


def test_strict_filter_of_zero_beside_flexible_answers_is_a_matter_of_form(run: Path) -> None:
    answers = samples()
    for doc in range(40):
        answers = change(answers, doc, strict_answer=None, strict_correct=False)
    finding = only(both(run, evaluated(answers)), COMPLETE, Outcome.INVALID)
    assert "strict filter 0 of 40 while flexible is 40 of 40" in finding.reason
    assert "invalid strict 40, flexible 0" in finding.observed


def test_strict_and_flexible_of_zero_are_a_score(run: Path) -> None:
    verdict = both(run, evaluated(samples(wrong=range(40))), evaluated(samples(wrong=range(40))))
    assert outcomes(verdict, COMPLETE) == {"pass"}


def test_some_invalid_answers_are_counted_and_no_alarm(run: Path) -> None:
    answers = change(samples(), 3, strict_answer=None, strict_correct=False)
    verdict = both(run, evaluated(answers))
    assert outcomes(verdict, COMPLETE) == {"pass"}
    finding = next(f for f in verdict.findings if (f.check, f.arm) == (COMPLETE, "simple"))
    assert "invalid strict 1, flexible 0" in finding.notes[0]


def test_round_that_did_not_end_has_no_score(run: Path) -> None:
    played = evaluated(samples())
    played.events = [event for event in played.events if not isinstance(event, EvaluationDone)]
    finding = only(both(run, played), COMPLETE, Outcome.INVALID)
    assert "its tool did not come to an end" in finding.reason


def test_score_that_its_samples_do_not_add_up_to_is_invalid(run: Path) -> None:
    scores = {"strict": ReportedScore(0.9, 0.05), "flexible": ReportedScore(1.0, 0.0)}
    finding = only(both(run, evaluated(samples(), scores=scores)), COMPLETE, Outcome.INVALID)
    assert "the tool reports strict 0.9000, its samples add up to 1.0000" in finding.reason


def test_question_that_was_answered_twice_is_named(run: Path) -> None:
    answers = [*samples(), tool_records.sample(3)]
    finding = only(both(run, evaluated(answers)), COMPLETE, Outcome.INVALID)
    assert "answered more than once: 3" in finding.reason


# ---- inputs (F32) ----------------------------------------------------------------------------


def test_changed_template_makes_rounds_incomparable(run: Path) -> None:
    verdict = both(run, evaluated(as_chat(samples(), 10)))
    finding = only(verdict, INPUTS, Outcome.INVALID)
    assert finding.reason.startswith("inputs changed between rounds: round 1 of simple")
    one, two = tool_records.digest("question 10")[:8], tool_records.digest("chat 10")[:8]
    assert f"30 of 40 prompts, first doc 10: prompt {one} became {two}" in finding.reason
    assert finding.prompts[0] == "doc 10"
    assert outcomes(verdict, "score_paired") == {"invalid"}


def test_prompt_of_another_length_is_seen_without_its_hash(run: Path) -> None:
    tested = change(samples(), 4, prompt_sha256=None, prompt_tokens=93)
    finding = only(both(run, evaluated(tested)), INPUTS, Outcome.INVALID)
    assert "first doc 4: 100 prompt tokens became 93" in finding.reason


def test_inputs_of_two_rounds_of_one_arm_are_compared(run: Path) -> None:
    second = evaluated(as_chat(samples(number=2), 39), number=2)
    verdict = judged(run, {"simple": [evaluated(samples()), second]})
    finding = only(verdict, INPUTS, Outcome.INVALID)
    assert "round 2 of simple (round-2 c4) against round 1 of simple" in finding.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"shots": 20}, "shots 5 became 20"), ({"shots_kind": "first_n"}, "stock became first_n")],
)
def test_other_settings_of_the_tool_are_other_inputs(
    run: Path, changes: dict[str, Any], words: str
) -> None:
    finding = only(both(run, evaluated(samples(), **changes)), INPUTS, Outcome.INVALID)
    assert words in finding.reason


def test_other_questions_are_other_inputs(run: Path) -> None:
    shifted = [msgspec.structs.replace(e, doc_id=e.doc_id + 1) for e in _docs(samples())]
    finding = only(both(run, evaluated(shifted)), INPUTS, Outcome.INVALID)
    assert "2 questions were asked in only one of them" in finding.reason


def _docs(answers: list[Event]) -> list[SampleDone]:
    return [event for event in answers if isinstance(event, SampleDone)]


def test_prompts_that_were_not_recorded_prove_nothing(run: Path) -> None:
    tested = change(samples(), 0, prompt_sha256=None, prompt_tokens=None)
    finding = only(both(run, evaluated(tested)), INPUTS, Outcome.INCONCLUSIVE)
    assert "prompts of 1 samples are n/a" in finding.reason


def test_answers_may_differ_where_the_questions_are_the_same(run: Path) -> None:
    assert outcomes(both(run, evaluated(samples(wrong=[1, 2]))), INPUTS) == {"pass"}


# ---- requests (F32) --------------------------------------------------------------------------


def test_answers_from_a_clients_cache_are_found_out(run: Path) -> None:
    finding = only(both(run, evaluated(samples(), finished=3)), REQUESTS, Outcome.INVALID)
    words = "the server saw 3 requests, the tool reports 40 answers: a client-side cache?"
    assert finding.reason == words
    assert finding.arm == "simple"


def test_requests_without_an_answer_are_found_out(run: Path) -> None:
    finding = only(both(run, evaluated(samples(), finished=41)), REQUESTS, Outcome.INVALID)
    assert "retries, or requests of somebody else?" in finding.reason


def test_request_that_failed_may_or_may_not_have_been_counted(run: Path) -> None:
    answers = change(samples(), 5, answer=None, error="timeout")
    for finished in (39, 40):
        played = evaluated(answers, finished=finished)
        assert outcomes(both(run / str(finished), played), REQUESTS) == {"pass"}


def test_missing_counter_is_not_zero_requests(run: Path) -> None:
    windows = {"simple": [evaluated(samples())]}
    verdict = judged(run, windows, missing=("requests_finished",))
    finding = only(verdict, REQUESTS, Outcome.INVALID)
    assert finding.reason == "how many requests the server finished is n/a"


def test_tokens_that_the_server_did_not_see_are_found_out(run: Path) -> None:
    played = evaluated(samples())
    played.prompt_tokens = 3_900
    finding = only(both(run, played), REQUESTS, Outcome.INVALID)
    assert "the server counted 3900 prompt tokens, its answers 4000" in finding.reason


def test_cached_tokens_of_the_answers_are_those_of_the_counters(run: Path) -> None:
    answers = change(samples(), 2, cached_tokens=96)
    agreed, frozen = evaluated(answers), evaluated(answers)
    agreed.cached_tokens = 96
    assert outcomes(both(run / "agreed", agreed), REQUESTS) == {"pass"}
    finding = only(both(run / "frozen", frozen), REQUESTS, Outcome.INVALID)
    assert "the server counted 0 cached tokens, its answers 96" in finding.reason


# ---- silence ---------------------------------------------------------------------------------


def test_records_without_an_evaluation_hear_nothing(healthy_verdict: Verdict) -> None:
    for check in (COMPLETE, INPUTS, REQUESTS, "score_paired"):
        assert outcomes(healthy_verdict, check) == set()


def test_tool_driven_windows_are_no_proof_that_the_witnesses_agree(run: Path) -> None:
    assert outcomes(both(run, evaluated(samples())), "witnesses_agree") == set()

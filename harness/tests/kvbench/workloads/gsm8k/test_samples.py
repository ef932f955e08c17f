from __future__ import annotations

from pathlib import Path

import gsm8k_script
import tool_records
from gsm8k_script import answered, failed
from gsm8k_spec import spec
from tool_records import evaluated, samples

from kvbench.events import ReportedScore
from kvbench.ledger import load
from kvbench.workloads.gsm8k.samples import evaluation_done, request_done, sample_events

SPEC = spec("fine")
PLACE = {"life": "life-1", "window": "w001"}


def test_answer_and_score_meet_by_the_number_of_the_question() -> None:
    answers = [answered(SPEC, 2), answered(SPEC, 0)]
    result = gsm8k_script.result(SPEC, answers)
    first, second = sample_events(answers, result, number=3, **PLACE)
    assert [first.doc_id, second.doc_id] == [0, 2]
    assert (first.strict_correct, second.strict_correct) == (True, False)
    assert (second.strict_answer, second.flexible_answer, second.answer) == ("2", "2", "#### 2")
    assert (first.round, first.cached_tokens, first.request_id) == (3, 16, "w001-s.q0-1")


def test_nothing_is_scored_without_a_result() -> None:
    (sample,) = sample_events([answered(SPEC, 0)], None, number=1, **PLACE)
    assert (sample.strict_correct, sample.flexible_correct) == (None, None)
    assert (sample.strict_answer, sample.answer) == (None, "#### 0")


def test_failed_question_has_no_score_though_the_others_have() -> None:
    answers = [answered(SPEC, 0), failed(SPEC, 1, 400, "http")]
    result = gsm8k_script.result(SPEC, answers)
    _, lost = sample_events(answers, result, number=1, **PLACE)
    assert (lost.answer, lost.error, lost.strict_correct) == (None, "HTTP 400", None)
    done = evaluation_done(result, SPEC, number=1, **PLACE)
    assert (done.samples_asked, done.samples_answered, done.scores) == (2, 1, {})


def test_whole_round_is_reported_in_the_words_of_the_tool() -> None:
    result = gsm8k_script.result(SPEC, [answered(SPEC, 0)])
    done = evaluation_done(result, SPEC, number=2, **PLACE)
    assert done.scores == {"strict": ReportedScore(0.25, 0.1), "flexible": ReportedScore(1.0, 0.0)}
    assert (done.task, done.task_version, done.shots, done.shots_kind) == (
        "gsm8k_own",
        "3.0",
        5,
        "stock",
    )
    assert (done.tool, done.tool_version, done.round) == ("lm-eval", "0.4.13", 2)


def test_request_keeps_tokens_and_says_that_it_is_a_sample() -> None:
    done = request_done(answered(SPEC, 3), stage="s", **PLACE)
    assert (done.role, done.prompt_id, done.request_id) == ("sample", "s/q3", "w001-s.q3-1")
    assert done.tokens == answered(SPEC, 3).tokens


def test_request_of_a_sample_is_in_the_ledger_without_an_expected_hit(
    run: Path, quick_disk: None
) -> None:
    played = evaluated(samples(count=2))
    # Two of one length: taken for one prompt, the second would be expected to hit.
    played.events[:0] = [
        request_done(answered(SPEC, doc), stage="replay", **PLACE) for doc in (0, 1)
    ]
    ledger = load(tool_records.write(run, {"simple": [played]}))
    (window,) = ledger.windows
    assert [request.prompt_id for request in window.requests] == ["replay/q0", "replay/q1"]
    assert [request.expected for request in window.requests] == [None, None]

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tool_records
from tool_records import change, evaluated, samples

from kvbench.events import EvaluationDone, Event
from kvbench.ledger import load
from kvbench.ledger.evaluation import Round, all_rounds


def rounds(directory: Path, *played: tool_records.Played) -> tuple[Round, ...]:
    ledger = load(tool_records.write(directory, {"simple": played}))
    return all_rounds(ledger.windows)


def only(directory: Path, answers: list[Event]) -> Round:
    (found,) = rounds(directory, evaluated(answers))
    return found


def test_score_has_the_binomial_standard_error(run: Path, quick_disk: None) -> None:
    found = only(run, samples(wrong=range(10)))
    strict = found.filter("strict")
    assert (strict.scored, strict.correct, strict.invalid) == (40, 30, 0)
    assert strict.score == 0.75
    assert strict.standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 40))
    assert strict.reported is not None
    assert strict.reported.value == 0.75


def test_every_kind_of_lost_answer_is_counted_by_itself(run: Path, quick_disk: None) -> None:
    answers = samples()
    answers = change(answers, 1, finish_reason="length")
    answers = change(answers, 2, answer="  \n", strict_answer=None, strict_correct=False)
    answers = change(answers, 3, answer=None, error="timeout", strict_correct=None)
    answers = change(answers, 4, strict_answer="[invalid]", strict_correct=False)
    found = only(run, answers)
    assert (found.asked, len(found.answered), found.missing) == (40, 39, 1)
    assert [sample.done.doc_id for sample in found.truncated] == [1]
    assert [sample.done.doc_id for sample in found.empty] == [2]
    assert (found.filter("strict").invalid, found.filter("flexible").invalid) == (2, 0)
    assert found.filter("strict").scored == 39
    assert sorted(found.by_doc) == [doc for doc in range(40) if doc != 3]


def test_sample_that_no_filter_scored_is_no_wrong_answer(run: Path, quick_disk: None) -> None:
    answers = samples()
    for doc in range(40):
        answers = change(answers, doc, flexible_correct=None, flexible_answer=None)
    flexible = only(run, answers).filter("flexible")
    assert (flexible.scored, flexible.score, flexible.standard_error) == (0, None, None)
    assert flexible.words == "flexible n/a"


def test_rounds_of_one_window_are_told_apart(run: Path, quick_disk: None) -> None:
    one, two = evaluated(samples()), evaluated(samples(wrong=[1], number=2), number=2)
    both = tool_records.Played([*one.events, *two.events], 80)
    found = rounds(run, both)
    assert [(each.number, each.filter("strict").correct) for each in found] == [(1, 40), (2, 39)]


def test_round_without_an_end_has_no_number_of_asked_samples(run: Path, quick_disk: None) -> None:
    played = evaluated(samples(count=5))
    played.events = [event for event in played.events if not isinstance(event, EvaluationDone)]
    (found,) = rounds(run, played)
    assert (found.done, found.asked, found.missing) == (None, None, None)
    assert len(found.answered) == 5

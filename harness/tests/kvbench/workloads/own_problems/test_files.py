"""The problems that kvbench ships: every answer is calculated again, from the files alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from kvbench.workloads import own_problems
from kvbench.workloads.own_problems import make
from kvbench.workloads.own_problems.draw import Draw

NAMES = tuple(own_problems.FILES)
ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>(\S*?)(?=[.,]?(?:\s|$))")
# lm-eval's filter of gsm8k: strict-match.
STRICT_MATCH = re.compile(r"#### (\-?[0-9\.\,]+)")
WORDS_IN_A_ROW = 7


class Row(NamedTuple):
    question: str
    answer: str

    @property
    def result(self) -> str:
        found = STRICT_MATCH.findall(self.answer)
        assert len(found) == 1, self.answer
        return str(found[0])

    @property
    def steps(self) -> list[tuple[str, str, str]]:
        """(calculation, result in the annotation, number written behind it)."""
        return ANNOTATION.findall(self.answer)


def shipped(name: str) -> list[Row]:
    lines = (make.FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [Row(**json.loads(line)) for line in lines]


ALL = [pytest.param(row, id=f"{name}-{n}") for name in NAMES for n, row in enumerate(shipped(name))]


def shape(question: str) -> list[str]:
    """The words of a question, with one word for all numbers and one for all names."""
    words = re.findall(r"[\w%$'-]+", question)
    masked = ["#" if any(map(str.isdigit, word)) else word for word in words]
    return ["N" if word[0].isupper() else word for word in masked]


def runs(question: str) -> set[tuple[str, ...]]:
    words = shape(question)
    return {tuple(words[at : at + WORDS_IN_A_ROW]) for at in range(len(words) - WORDS_IN_A_ROW + 1)}


def test_there_are_enough() -> None:
    assert len(shipped("train.jsonl")) >= 24
    assert len(shipped("test.jsonl")) >= 100


@pytest.mark.parametrize("row", ALL)
def test_answer_follows_from_its_steps(row: Row) -> None:
    assert 2 <= len(row.steps) <= 5
    assert row.answer.count("<<") == row.answer.count(">>") == len(row.steps)
    for calculation, result, written in row.steps:
        assert own_problems.value_of(calculation) == Fraction(result)
        assert written == result
    assert row.steps[-1][1] == row.result
    assert row.answer.endswith(f"\n#### {row.result}")


@pytest.mark.parametrize("row", ALL)
def test_numbers_come_from_the_question_or_from_an_earlier_step(row: Row) -> None:
    said = {*re.findall(r"\d+", row.question)}
    # What is said in words, or is no number of the story: half, three scores, seven days, percent.
    said |= {"2", "3", "7", "100"}
    for calculation, result, _ in row.steps:
        used = {*re.findall(r"\d+", calculation)}
        assert used <= said, (used - said, row)
        said.add(result)


def test_no_question_is_asked_twice() -> None:
    questions = [row.question for name in NAMES for row in shipped(name)]
    assert [question for question, count in Counter(questions).items() if count > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_files_are_those_of_the_program(name: str, tmp_path: Path) -> None:
    own_problems.write(tmp_path)
    assert (tmp_path / name).read_bytes() == (make.FOLDER / name).read_bytes(), (
        "stale; run: .venv/bin/python -m kvbench.workloads.own_problems"
    )


def test_questions_are_spread_evenly_over_many_templates() -> None:
    counts = Counter(template for template, _ in own_problems.rows("test.jsonl"))
    assert len(counts) >= 20
    assert max(counts.values()) <= 0.05 * counts.total()


def test_no_template_serves_examples_and_questions() -> None:
    examples, questions = ({t for t, _ in own_problems.rows(name)} for name in NAMES)
    assert examples.isdisjoint(questions)
    assert len(examples) >= 12


def test_templates_are_worded_and_calculated_in_their_own_ways() -> None:
    first = {t: p for name in NAMES for t, p in reversed(list(own_problems.rows(name)))}
    worded = {template: runs(problem.question) for template, problem in first.items()}
    shared = [(a, b) for a, b in combinations(worded, 2) if worded[a] & worded[b]]
    assert shared == []
    forms = {
        tuple(
            re.sub(r"\d+", "", calculation) for calculation, _, _ in Row(p.question, p.answer).steps
        )
        for p in first.values()
    }
    assert len(forms) >= 20


@pytest.mark.parametrize(
    "template",
    [t for file in own_problems.FILES.values() for t in file.templates],
    ids=make.name_of,
)
def test_every_draw_of_a_template_makes_sense(template: make.Template) -> None:
    # A step that is no whole number above 0 raises.
    problems = {template(Draw(f"{attempt}")) for attempt in range(100)}
    assert len(problems) > 50

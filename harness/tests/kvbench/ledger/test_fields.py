from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.ledger import fields
from kvbench.ledger.fields import Field, State, Tree

NAMES = ("total", "avg")


def tree(text: str) -> Field[Tree]:
    return fields.parse("x.json", text)


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ('{"total": {"avg": 0}}', State.PRESENT, "0"),
        ('{"total": {"avg": 7.5}}', State.PRESENT, "7.5"),
        ('{"total": {}}', State.ABSENT, "n/a (absent)"),
        ("{}", State.ABSENT, "n/a (absent)"),
        ('{"total": {"avg": null}}', State.NULL, "n/a (null)"),
        ('{"total": null}', State.NULL, "n/a (null)"),
        ('{"total": {"avg": NaN}}', State.UNREADABLE, "n/a (unreadable: NaN)"),
        ('{"total": {"avg": -Infinity}}', State.UNREADABLE, "n/a (unreadable: -Infinity)"),
        ('{"total": {"avg": "7"}}', State.UNREADABLE, "n/a (unreadable: 7)"),
        ('{"total": {"avg": true}}', State.UNREADABLE, "n/a (unreadable: true)"),
        ('{"total": 7}', State.UNREADABLE, "n/a (unreadable: 7)"),
    ],
)
def test_number_has_one_of_four_states(text: str, state: State, words: str) -> None:
    found = fields.number(tree(text), *NAMES)
    assert (found.state, found.words, found.name) == (state, words, "total.avg")
    assert (found.value is None) == (state is not State.PRESENT)


@pytest.mark.parametrize(
    ("value", "state"),
    [("true", State.PRESENT), ("false", State.PRESENT), ("0", State.UNREADABLE)],
)
def test_flag_takes_no_number_for_a_truth(value: str, state: State) -> None:
    assert fields.flag(tree(f'{{"valid": {value}}}'), "valid").state is state


def test_list_of_words_is_no_list_of_numbers() -> None:
    good, bad = tree('{"reasons": ["a", "b"]}'), tree('{"reasons": ["a", 1]}')
    assert fields.words(good, "reasons").value == ("a", "b")
    assert fields.words(bad, "reasons").state is State.UNREADABLE


@pytest.mark.parametrize(
    ("text", "state"),
    [(None, State.ABSENT), ("", State.UNREADABLE), ('{"a":', State.UNREADABLE), ("[]", None)],
)
def test_gap_of_a_file_is_the_gap_of_its_values(
    tmp_path: Path, text: str | None, state: State | None
) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    found = fields.read(path)
    assert found.state is (state or State.UNREADABLE)
    assert fields.number(found, "total", "avg").state is found.state


def test_long_rubbish_is_shortened() -> None:
    found = fields.number(tree(f'{{"a": "{"x" * 5000}"}}'), "a")
    assert len(found.words) < 100

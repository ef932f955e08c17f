from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.fake.control import Control, Journal
from kvbench.engine.fake.faults import ActiveFaults


class Switched:
    """A control file, and what follows it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fault.json"
        self.journal: list[dict[str, Any]] = []
        self.faults = ActiveFaults(self.journal.append)
        self.control = Control(str(self.path), self.faults, self.journal.append)

    def replace(self, text: str) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(self.path)

    def kinds(self) -> list[str]:
        self.control.look()
        return [fault.kind for fault in self.faults]


@pytest.fixture
def switched(tmp_path: Path) -> Switched:
    return Switched(tmp_path)


def test_faults_come_and_go_with_the_file(switched: Switched) -> None:
    assert switched.kinds() == []
    switched.replace('{"faults": [{"kind": "reset_refused"}, {"kind": "stubborn"}]}')
    assert switched.kinds() == ["reset_refused", "stubborn"]
    switched.replace('{"mode": "none"}')
    assert switched.kinds() == []


def test_file_that_stays_keeps_what_a_fault_has_counted(switched: Switched) -> None:
    switched.replace('{"faults": [{"kind": "reset_refused", "times": 1}]}')
    switched.kinds()
    (fault,) = switched.faults
    fault.applied()
    switched.kinds()
    assert list(switched.faults) == [fault]
    assert not fault.fits(None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ('{"faults": [{"kind": "no_such"}]}', "no fault is called 'no_such'"),
        ('{"faults": [{"kind": "reset_refused", "options": {"times": 1}}]}', "unknown field"),
    ],
)
def test_file_that_cannot_be_obeyed_leaves_a_line(
    switched: Switched, text: str, words: str
) -> None:
    switched.replace('{"faults": [{"kind": "stubborn"}]}')
    assert switched.kinds() == ["stubborn"]
    switched.replace(text)
    assert switched.kinds() == []
    assert words in switched.journal[-1]["error"]


def test_journal_has_a_line_for_each_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(str(path))
    journal.write({"kind": "a", "request": None})
    journal.write({"kind": "b", "request": "r"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["a", "b"]


def test_without_paths_nothing_happens() -> None:
    Journal(None).write({"kind": "a"})
    faults = ActiveFaults(lambda _: None)
    Control(None, faults, lambda _: None).look()
    assert not faults

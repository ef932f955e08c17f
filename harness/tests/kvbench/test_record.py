from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import PrerequisiteError, RecordError
from kvbench.events import Note, RunEnded, RunStarted
from kvbench.plan_types import Plan
from kvbench.record import JOURNAL, Record, StoredRecord, broken_seal, seal


def started(run_id: str = "r") -> RunStarted:
    return RunStarted(
        time_s=1.0,
        schema=1,
        kvbench_version="0",
        run_id=run_id,
        scenario_name="s",
        command=("kvbench", "run"),
        source={},
        machine={},
    )


@pytest.fixture
def record(tmp_path: Path) -> Record:
    record = Record.create(tmp_path, "s")
    record.write_plan(Plan(scenario={"name": "s"}, lives=(), prompts={"st/p1": (1, 2, 3)}))
    record.write(started())
    return record


def test_events_come_back_in_order_with_their_line_numbers(record: Record) -> None:
    record.write(Note(time_s=2.0, life=None, text="a"))
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    lines = list(StoredRecord(record.directory).events())
    assert [number for number, _ in lines] == [1, 2, 3]
    assert lines[1][1] == Note(time_s=2.0, life=None, text="a")


def test_plan_comes_back_with_its_token_ids(record: Record) -> None:
    assert StoredRecord(record.directory).plan().prompts == {"st/p1": (1, 2, 3)}


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    assert Record.create(tmp_path, "s").directory != Record.create(tmp_path, "s").directory


def test_killed_run_leaves_a_readable_record_without_its_torn_last_line(record: Record) -> None:
    with (record.directory / JOURNAL).open("ab") as file:
        file.write(b'{"event":"note","time_s":2.0,"li')
    assert [type(event) for _, event in StoredRecord(record.directory).events()] == [RunStarted]
    with pytest.raises(RecordError, match="interrupted"):
        broken_seal(record.directory)


def test_damaged_line_in_the_middle_is_an_error_that_names_it(record: Record) -> None:
    with (record.directory / JOURNAL).open("ab") as file:
        file.write(b"not json\n")
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    with pytest.raises(RecordError, match=r"journal\.jsonl:2"):
        list(StoredRecord(record.directory).events())


def test_untouched_record_keeps_its_seal(record: Record) -> None:
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    assert broken_seal(record.directory) == []


@pytest.mark.parametrize("name", [JOURNAL, "plan.json", "scenario.json"])
def test_edited_file_breaks_the_seal_until_it_is_sealed_again(record: Record, name: str) -> None:
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    path = record.directory / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert broken_seal(record.directory) == [name]
    seal(record.directory)
    assert broken_seal(record.directory) == []


def test_added_and_missing_files_break_the_seal(record: Record) -> None:
    record.artifact("a.txt").write_text("a")
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    (record.directory / "artifacts/a.txt").rename(record.directory / "artifacts/b.txt")
    assert broken_seal(record.directory) == ["artifacts/a.txt", "artifacts/b.txt"]


def test_derived_reports_do_not_touch_the_seal(record: Record) -> None:
    record.close(RunEnded(time_s=3.0, outcome="complete"))
    (record.directory / "verdict.json").write_text("{}")
    (record.directory / "report.md").write_text("x")
    assert broken_seal(record.directory) == []


def test_folder_that_is_no_record_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not a record"):
        StoredRecord(tmp_path)


def test_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    record = Record.create(tmp_path, "s")
    event = RunStarted(
        time_s=1.0,
        schema=999,
        kvbench_version="0",
        run_id="r",
        scenario_name="s",
        command=(),
        source={},
        machine={},
    )
    record.write(event)
    with pytest.raises(RecordError, match="schema 999"):
        StoredRecord(record.directory).started()


def test_secrets_of_a_scenario_never_reach_the_record(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-a-user"
    engine = {"env": {"HF_TOKEN": secret, "LOG": f"x{secret}"}, "args": ["--api-key", secret]}
    plan = Plan(
        scenario={"name": "s", "engine": engine, "arms": {"a": {"engine": engine}}},
        lives=(),
        prompts={"st/p1": (1, 2, 3)},
        warnings=(f"mentions {secret}",),
    )
    record = Record.create(tmp_path, "s")
    record.write_plan(plan)
    for path in record.directory.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()
    assert StoredRecord(record.directory).plan().prompts == {"st/p1": (1, 2, 3)}


def test_folder_that_cannot_be_written_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PrerequisiteError, match="--results"):
        Record.create(tmp_path / "file", "s")

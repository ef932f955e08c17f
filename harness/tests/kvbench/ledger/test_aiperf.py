"""Artifacts captured from real runs of AIPerf 0.13.0 (golden/README.md), and edited twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool_records import GOLDEN, golden

from kvbench.events import AgentRunDone
from kvbench.ledger.aiperf import RECORDS, SUMMARY, AgentRun, TurnRow, read_agent_run
from kvbench.ledger.fields import State


def read(directory: Path, **changes: Any) -> AgentRun:
    values: dict[str, Any] = {
        "time_s": 1.0,
        "life": "life-1",
        "window": "w001",
        "artifacts": "artifacts/life-1/w001-aiperf",
        "exit_status": 0,
        "command": ("aiperf", "profile"),
        "tool_version": "0.13.0",
    }
    return read_agent_run(directory, AgentRunDone(**(values | changes)), 7)


def test_agentx_run_is_read_whole() -> None:
    run = read(GOLDEN / "agentx")
    assert (run.was_cancelled.value, run.is_complete.value) == (False, True)
    assert run.submission_valid.value is False
    assert run.submission_reasons.value == ("unsafe_override",)
    assert run.scenario.value == "inferencex-agentx-mvp"
    assert (len(run.warmup), len(run.profiled), len(run.succeeded)) == (2, 44, 44)
    assert run.metric("request_count").value == 44.0
    assert run.requests_asked.state is State.ABSENT  # it runs for a time
    assert run.tail.value is not None
    assert (run.tail.value.sent, run.tail.value.completed, run.tail.value.cancelled) == (44, 44, 0)


def test_totals_of_the_summary_are_those_of_the_records() -> None:
    run = read(GOLDEN / "agentx")
    cached = sum(record.cached_tokens.value or 0 for record in run.succeeded)
    prompt = sum(record.prompt_tokens.value or 0 for record in run.succeeded)
    assert run.metric("total_usage_prompt_cache_read_tokens").value == cached == 19440
    assert run.metric("total_usage_prompt_tokens").value == prompt == 29570


def test_turns_are_counted_apart() -> None:
    rows = {row.turn: row for row in read(GOLDEN / "agentx").turns}
    assert list(rows) == [0, 1, 2, 3, 4]
    assert rows[1] == TurnRow(1, 6, 6, 3486.0, 2496.0)
    main = [r for r in read(GOLDEN / "agentx").succeeded if (r.turn, r.depth) == (0, 0)]
    assert {record.cached_tokens.value for record in main} == {0.0}  # the cache bust


def test_plain_run_has_no_scenario_and_knows_how_many_requests_it_asked_for() -> None:
    run = read(GOLDEN / "plain")
    assert run.scenario.state is State.ABSENT
    assert run.submission_valid.state is State.ABSENT
    assert run.requests_asked.value == 6.0
    assert len(run.profiled) == 6


@pytest.mark.parametrize("word", ["--scenario inferencex-agentx-mvp", "--scenario=inferencex-mvp"])
def test_scenario_is_known_from_the_command_where_there_is_no_summary(word: str) -> None:
    run = read(GOLDEN / "warmup_abort", command=("aiperf", "profile", *word.split()))
    assert run.summary.state is State.ABSENT
    assert run.scenario.is_present
    assert (run.scenario.value or "").startswith("inferencex-")


def test_aborted_warm_up_leaves_only_its_errors() -> None:
    run = read(GOLDEN / "warmup_abort")
    assert run.summary.state is State.ABSENT
    assert run.metric("request_count").words == "n/a (absent)"
    assert [record.is_success for record in run.warmup] == [False, False]
    assert run.warmup[0].error is not None
    assert run.warmup[0].error.startswith("500 Internal Server Error")
    assert run.profiled == ()


def test_requests_that_were_cut_off_are_known_to_the_log_alone() -> None:
    run = read(GOLDEN / "cut_tail")
    assert (run.was_cancelled.value, run.is_complete.value) == (False, True)
    assert (len(run.profiled), run.metric("request_count").value) == (2, 2.0)
    assert run.tail.value is not None
    assert (run.tail.value.sent, run.tail.value.cancelled) == (4, 2)


def test_cancelled_run_says_so_and_its_log_has_no_end() -> None:
    run = read(GOLDEN / "cancelled")
    assert (run.was_cancelled.value, run.is_complete.value) == (True, False)
    assert run.incomplete_reason.value == "Run cancelled before all records were processed."
    assert run.submission_reasons.value == ("unsafe_override", "run_cancelled")
    assert run.tail.value is not None
    assert (run.tail.value.sent, run.tail.value.completed) == (30, None)


def test_torn_line_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    directory = golden("agentx", tmp_path)
    path = directory / RECORDS
    path.write_bytes(path.read_bytes()[:-100])
    run = read(directory)
    assert run.torn_lines == (46,)
    assert len(run.profiled) == 43


def test_record_without_a_phase_is_a_torn_line(tmp_path: Path) -> None:
    directory = golden("plain", tmp_path)
    with (directory / RECORDS).open("a") as file:
        file.write('{"metadata": {}, "metrics": {}}\n')
    assert read(directory).torn_lines == (9,)


def test_missing_files_are_absent_and_never_empty(tmp_path: Path) -> None:
    run = read(tmp_path)
    assert run.summary.state is run.records.state is run.tail.state is State.ABSENT
    assert run.records.value is None
    assert run.turns == ()


def test_field_that_a_record_lacks_is_absent_and_not_zero(tmp_path: Path) -> None:
    directory = golden("plain", tmp_path)
    lines = [json.loads(line) for line in (directory / RECORDS).read_text().splitlines()]
    for line in lines[-2:]:
        del line["metrics"]["usage_prompt_cache_read_tokens"]
    (directory / RECORDS).write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = read(directory)
    assert [r.cached_tokens.state for r in run.succeeded[-2:]] == [State.ABSENT] * 2
    assert [(row.requests, row.with_field) for row in run.turns] == [(6, 4)]


def test_cancelled_request_is_a_record_and_no_success(tmp_path: Path) -> None:
    directory = golden("plain", tmp_path)
    lines = [json.loads(line) for line in (directory / RECORDS).read_text().splitlines()]
    lines[-1]["metadata"]["was_cancelled"] = True
    (directory / RECORDS).write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = read(directory)
    assert (len(run.profiled), len(run.succeeded)) == (6, 5)


def test_golden_files_hold_no_names_of_the_machine() -> None:
    for path in GOLDEN.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "/tmp" not in text, path
            assert "worker_" not in text, path
            assert "/root" not in text, path
    assert (GOLDEN / "agentx" / SUMMARY).is_file()

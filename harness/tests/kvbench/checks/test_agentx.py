"""F34: results of AIPerf that look like results; goldens are captured from real runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import only, outcomes
from tool_records import GOLDEN, agent_run, golden, judged

from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.aiperf import CACHED, CACHED_TOTAL, LOG, PROMPT_TOTAL, RECORDS, SUMMARY
from kvbench.verdict import Verdict

RESULT, RATE = "agent_result_valid", "agent_cached_rate"
FINISHED = {"agentx": 46, "plain": 8, "cut_tail": 4, "cancelled": 32, "warmup_abort": 0}
"""What the server finished, warm-up included."""

Tree = dict[str, Any]


@pytest.fixture(autouse=True)
def _quick(quick_disk: None) -> None:
    """No test here reads a record after a crash."""


def judge(run: Path, directory: Path, *, finished: int | None = None, **changes: Any) -> Verdict:
    name = directory.name
    played = agent_run(
        directory, finished=FINISHED[name] if finished is None else finished, **changes
    )
    return judged(run / "record", {"simple": [played]}, claim="performance")


def invalid(run: Path, directory: Path, **options: Any) -> Finding:
    """The one finding about the result, which must be invalid, and decide the verdict."""
    verdict = judge(run, directory, **options)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.exit_code == 4
    return only(verdict, RESULT, Outcome.INVALID)


def edited(run: Path, edit: Callable[[Tree], object], name: str = "agentx") -> Path:
    """A copy of captured artifacts with another summary."""
    directory = golden(name, run)
    tree = json.loads((directory / SUMMARY).read_text())
    edit(tree)
    (directory / SUMMARY).write_text(json.dumps(tree))
    return directory


def with_records(run: Path, edit: Callable[[list[Tree]], list[Tree]]) -> Path:
    """A copy of captured artifacts with other records."""
    directory = golden("agentx", run)
    lines = [json.loads(line) for line in (directory / RECORDS).read_text().splitlines()]
    text = "".join(json.dumps(line) + "\n" for line in edit(lines))
    (directory / RECORDS).write_text(text)
    return directory


# ---- sound results ---------------------------------------------------------------------------


def test_smoke_run_is_a_result_and_no_submission(run: Path) -> None:
    verdict = judge(run, GOLDEN / "agentx")
    assert verdict.outcome is Outcome.PASS, verdict.first
    finding = only(verdict, RESULT, Outcome.PASS)
    assert "smoke, not a submission" in finding.notes
    assert "submission_invalid_reasons ('unsafe_override',)" in finding.observed
    assert finding.evidence[0].endswith(f"-aiperf/{SUMMARY}")


def test_first_turns_without_cached_tokens_are_no_alarm(run: Path) -> None:
    finding = only(judge(run, GOLDEN / "agentx"), RATE, Outcome.PASS)
    assert "19440/29570 tokens = 65.74 %" in finding.reason
    assert "0: 112/5530, 1: 2496/3486" in finding.notes[0]


def test_run_without_a_scenario_has_nothing_to_submit(run: Path) -> None:
    command = ("aiperf", "profile")
    verdict = judge(run, GOLDEN / "plain", preset=None, command=command)
    finding = only(verdict, RESULT, Outcome.PASS)
    assert "no locked scenario was asked for, so there is nothing to submit" in finding.notes


def test_valid_submission_passes(run: Path) -> None:
    directory = edited(run, lambda t: t["metadata"].update(_VALID))
    assert outcomes(judge(run, directory, preset="full"), RESULT) == {"pass"}


_VALID: Tree = {"submission_valid": True, "submission_invalid_reasons": []}


# ---- submission_valid ------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["fast", "full", None])
def test_override_is_only_for_a_declared_smoke_run(run: Path, preset: str | None) -> None:
    finding = invalid(run, GOLDEN / "agentx", preset=preset)
    assert "submission_valid is false: unsafe_override" in finding.reason


def test_other_reasons_are_copied_even_in_a_smoke_run(run: Path) -> None:
    reasons = ["unsafe_override", "context_overflow_rate_exceeded"]
    directory = edited(run, lambda t: t["metadata"].update(submission_invalid_reasons=reasons))
    finding = invalid(run, directory)
    assert "submission_valid is false: unsafe_override, context_overflow_rate" in finding.reason


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("metadata"), "submission_valid is n/a (absent)"),
        (lambda t: t["metadata"].update(submission_valid=None), "submission_valid is n/a (null)"),
        (
            lambda t: t["metadata"].update(submission_valid="false"),
            "submission_valid is n/a (unreadable: false)",
        ),
        (
            lambda t: t["metadata"].pop("submission_invalid_reasons"),
            "submission_valid is false: no reason given: n/a (absent)",
        ),
    ],
)
def test_absent_null_and_unreadable_are_not_false(
    run: Path, edit: Callable[[Tree], object], words: str
) -> None:
    assert words in invalid(run, edited(run, edit)).reason


def test_null_is_not_the_absence_of_a_scenario(run: Path) -> None:
    directory = edited(run, lambda t: t.update(metadata={"submission_valid": None}), "plain")
    finding = invalid(run, directory, preset=None, command=("aiperf", "profile"))
    assert "submission_valid is n/a (null)" in finding.reason


# ---- how it ended ----------------------------------------------------------------------------


def test_cancelled_run_is_invalid_though_it_exits_with_0(run: Path) -> None:
    finding = invalid(run, GOLDEN / "cancelled")
    assert "it was cancelled" in finding.reason
    assert "Run cancelled before all records were processed." in finding.reason
    assert "unsafe_override, run_cancelled" in finding.reason


def test_aborted_warm_up_names_the_servers_words(run: Path) -> None:
    verdict = judge(run, GOLDEN / "warmup_abort", exit_status=1)
    finding = only(verdict, RESULT, Outcome.INVALID)
    assert "the warm-up was aborted, 2 of 2 of its requests failed: 500" in finding.reason
    assert "EngineCore encountered an issue" in finding.reason
    assert outcomes(verdict, RATE) == set()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("was_cancelled", None, "was_cancelled is n/a (null)"),
        ("is_complete", None, "is_complete is n/a (null)"),
        ("is_complete", 1, "is_complete is n/a (unreadable: 1)"),
    ],
)
def test_unknown_end_is_no_good_end(run: Path, key: str, value: object, words: str) -> None:
    assert words in invalid(run, edited(run, lambda t: t.update({key: value}))).reason


@pytest.mark.parametrize("text", [None, "", '{"schema_version": "1.4", "requ'])
def test_lost_or_torn_summary_is_no_result(run: Path, text: str | None) -> None:
    directory = golden("agentx", run)
    (directory / SUMMARY).unlink()
    if text is not None:
        (directory / SUMMARY).write_text(text)
    assert f"{SUMMARY} is n/a (" in invalid(run, directory).reason


def test_exit_status_counts_only_against_a_result(run: Path) -> None:
    assert "ended with status 1" in invalid(run, GOLDEN / "agentx", exit_status=1).reason
    finding = only(judge(run / "b", GOLDEN / "agentx", exit_status=None), RESULT, Outcome.PASS)
    assert "exit status n/a" in finding.notes


# ---- counts ----------------------------------------------------------------------------------


def test_zero_records_are_no_result(run: Path) -> None:
    directory = with_records(run, lambda lines: lines[:2])
    tree = json.loads((directory / SUMMARY).read_text())
    del tree["request_count"]
    (directory / SUMMARY).write_text(json.dumps(tree))
    finding = invalid(run, directory)
    assert "zero records: no profiled request succeeded (request_count n/a (absent))" in (
        finding.reason
    )


def test_requests_cut_off_at_the_end_are_a_short_tail(run: Path) -> None:
    """Captured: exit 0, is_complete true, error rate 0, and half of the requests nowhere."""
    finding = invalid(run, GOLDEN / "cut_tail")
    assert "short tail: 4 requests were sent, 2 have a record" in finding.reason


def test_fewer_records_than_requests_asked_for_are_a_short_tail(run: Path) -> None:
    """Without a log, the number that was asked for speaks."""
    directory = edited(run, lambda t: t["input_config"]["phases"][1].update(requests=9), "plain")
    (directory / LOG).unlink()
    options: dict[str, Any] = {"preset": None, "command": ("aiperf", "profile")}
    finding = invalid(run, directory, **options)
    assert "short tail: 9 requests were asked for, 6 have a record" in finding.reason


def test_requests_beyond_the_models_length_are_no_tail(run: Path) -> None:
    directory = edited(
        run, lambda t: t.update(skipped_context_overflow_count={"unit": "requests", "avg": 1.0})
    )
    log = directory / LOG
    log.write_text(log.read_text().replace("complete | sent=44", "complete | sent=45"))
    finding = only(judge(run, directory), RESULT, Outcome.PASS)
    assert any("longer than the model takes" in note for note in finding.notes)


def test_summary_must_count_what_its_records_are(run: Path) -> None:
    directory = with_records(run, lambda lines: lines[:-1])
    reason = invalid(run, directory, finished=45).reason
    assert "request_count is 44, its records are 43" in reason


def test_failed_requests_make_the_result_invalid(run: Path) -> None:
    def fail(lines: list[Tree]) -> list[Tree]:
        lines[-1]["error"] = {"code": 400, "type": "Bad Request", "message": "too long"}
        return lines

    directory = with_records(run, fail)
    assert "1 requests failed: 400 Bad Request too long" in invalid(run, directory).reason


def test_server_that_finished_fewer_requests_betrays_a_cache(run: Path) -> None:
    reason = invalid(run, GOLDEN / "agentx", finished=20).reason
    assert "the server finished 20 requests, AIPerf has 46 records: a client-side cache?" in reason


def test_server_that_finished_more_requests_betrays_missing_records(run: Path) -> None:
    reason = invalid(run, GOLDEN / "agentx", finished=60).reason
    assert "requests without a record, or of somebody else" in reason


def test_counter_that_is_not_there_is_a_note(run: Path) -> None:
    played = agent_run(GOLDEN / "agentx", finished=46)
    windows = {"simple": [played]}
    verdict = judged(run, windows, claim="performance", missing=("requests_finished",))
    notes = only(verdict, RESULT, Outcome.PASS).notes
    assert "requests finished by the server are n/a" in notes


# ---- the cached rate -------------------------------------------------------------------------


def without_field(lines: list[Tree]) -> list[Tree]:
    for line in lines:
        del line["metrics"][CACHED]
    return lines


def test_absent_cached_field_is_not_zero_percent(run: Path) -> None:
    directory = with_records(run, without_field)
    tree = json.loads((directory / SUMMARY).read_text())
    del tree[CACHED_TOTAL], tree["overall_usage_prompt_cache_read_pct"]
    (directory / SUMMARY).write_text(json.dumps(tree))
    verdict = judge(run, directory)
    finding = only(verdict, RATE, Outcome.INVALID)
    assert f"{CACHED_TOTAL}.avg is n/a (absent)" in finding.reason
    assert f"44 of 44 requests have no {CACHED}: absent" in finding.reason
    assert finding.observed == "n/a (absent) of 29570"
    assert any("--enable-prompt-tokens-details" in note for note in finding.notes)
    assert outcomes(verdict, RESULT) == {"pass"}
    assert verdict.outcome is Outcome.INVALID


def test_field_that_some_requests_lack_gives_no_rate(run: Path) -> None:
    directory = with_records(run, lambda lines: lines[:40] + without_field(lines[40:]))
    reason = only(judge(run, directory), RATE, Outcome.INVALID).reason
    assert f"6 of 44 requests have no {CACHED}: absent" in reason


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "n/a (null)"), (float("nan"), "n/a (unreadable: NaN)"), (19441.0, "19441, its rec")],
)
def test_total_that_is_no_sum_gives_no_rate(run: Path, value: float | None, words: str) -> None:
    directory = edited(run, lambda t: t[CACHED_TOTAL].update(avg=value))
    reason = only(judge(run, directory), RATE, Outcome.INVALID).reason
    assert words in reason


def test_zero_cached_tokens_that_were_told_are_a_rate(run: Path) -> None:
    def none_cached(lines: list[Tree]) -> list[Tree]:
        for line in lines:
            line["metrics"][CACHED]["value"] = 0
        return lines

    directory = with_records(run, none_cached)
    tree = json.loads((directory / SUMMARY).read_text())
    tree[CACHED_TOTAL]["avg"] = 0.0
    (directory / SUMMARY).write_text(json.dumps(tree))
    finding = only(judge(run, directory), RATE, Outcome.PASS)
    assert "0/29570 tokens = 0.00 %" in finding.reason


def test_no_prompt_tokens_give_no_rate(run: Path) -> None:
    directory = edited(run, lambda t: t[PROMPT_TOTAL].update(avg=0))
    assert "is 0" in only(judge(run, directory), RATE, Outcome.INVALID).reason


# ---- silence ---------------------------------------------------------------------------------


def test_records_without_a_run_of_aiperf_hear_nothing(healthy_verdict: Verdict) -> None:
    assert outcomes(healthy_verdict, RESULT) == outcomes(healthy_verdict, RATE) == set()

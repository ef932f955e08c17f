from __future__ import annotations

from pathlib import Path

import pytest
import records
import tool_records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, LifeEnded, LifeFailed, LifeStarted, RunEnded, RunStarted
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def fails_with(
    kind: str, *, phase: str | None, message: str = "", status: int | None = 1
) -> records.OnEvent:
    def change(event: Event) -> Event:
        if not isinstance(event, LifeEnded):
            return event
        return LifeFailed(
            time_s=1.0,
            life=event.life,
            kind=kind,
            message=message or kind,
            log_tail="first\nlast line of the log",
            exit_status=status,
            phase=phase,
        )

    return change


def test_living_engine_passes(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "requests_answered") == {"pass"}
    assert records.outcomes(healthy_verdict, "stopped") == {"pass"}


def test_failed_request_fails_and_is_named(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == "p2":
            sent.error, sent.error_kind, sent.http_status = "HTTP 500", "http", 500

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    finding = records.only(verdict, "requests_answered", Outcome.FAIL)
    assert "1 of 4 requests failed in replay-1: p2: HTTP 500" in finding.reason
    assert finding.prompts == ("replay/p2",)


def test_cut_answer_fails(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == "p2":
            sent.tokens, sent.finish_reason = sent.tokens[:3], "abort"

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert "incomplete" in records.only(verdict, "requests_answered", Outcome.FAIL).reason


def test_dead_engine_is_aborted_with_its_last_lines(run: Path) -> None:
    change = fails_with("died", phase="replay-1", status=-9)
    verdict = records.judged(run, arm=("simple",), on_event=change)
    finding = records.only(verdict, "engine_alive", Outcome.ABORTED)
    assert "last line of the log" in finding.notes
    assert "SIGKILL" in finding.notes[0]
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def test_hanging_engine_fails(run: Path) -> None:
    change = fails_with("died", phase="replay-1", message="no longer answers: a hang")
    verdict = records.judged(run, arm=("simple",), on_event=change)
    assert "hung in replay-1" in records.only(verdict, "engine_alive", Outcome.FAIL).reason


def test_engine_that_did_not_start_is_an_error(run: Path) -> None:
    change = fails_with("unknown flag", phase=None, message="unrecognized arguments: --bogus")
    verdict = records.judged(run, arm=("simple",), on_event=change)
    assert "--bogus" in records.only(verdict, "engine_alive", Outcome.ERROR).reason


def test_survivors_of_the_stop_are_an_error(run: Path) -> None:
    def survive(event: Event) -> Event:
        return records.replace(event, survivors=(77,)) if isinstance(event, LifeEnded) else event

    verdict = records.judged(run, arm=("simple",), on_event=survive)
    assert "77" in records.only(verdict, "stopped", Outcome.ERROR).reason


def test_killed_tree_that_is_gone_is_a_note(run: Path) -> None:
    def kill(event: Event) -> Event:
        return records.replace(event, orderly=False) if isinstance(event, LifeEnded) else event

    verdict = records.judged(run, arm=("simple",), on_event=kill)
    assert "killed" in records.only(verdict, "stopped", Outcome.PASS).notes[0]


def test_scored_answer_without_a_token_fails_even_where_it_says_stop(run: Path) -> None:
    """Left out of every comparison, it would pass."""

    def damage(sent: Sent) -> None:
        if sent.kind in ("replay", "reload") and sent.name == "p2" and sent.arm == "simple":
            sent.tokens, sent.finish_reason = [], "stop"

    verdict = records.judged(run, on_request=damage)
    assert verdict.exit_code == ExitCode.FAIL
    assert "p2: 0 tokens, said 0" in next(
        f.reason for f in verdict.findings if f.check == "requests_answered" and f.prompts
    )


def test_start_that_failed_before_its_command_was_filed_is_an_error(run: Path) -> None:
    def never(event: Event) -> Event | None:
        if isinstance(event, LifeStarted):
            return LifeFailed(
                time_s=event.time_s,
                life=event.life,
                kind="port",
                message="no free port",
                log_tail="",
                exit_status=None,
                phase=None,
            )
        return event if isinstance(event, RunStarted | RunEnded) else None

    verdict = records.judged(run, arm=("simple",), on_event=never)
    assert verdict.exit_code == ExitCode.ENVIRONMENT
    assert "no free port" in records.only(verdict, "engine_alive", Outcome.ERROR).reason


def test_processes_that_outlived_the_server_are_a_note(run: Path) -> None:
    def leave(event: Event) -> Event:
        return records.replace(event, killed=(4711,)) if isinstance(event, LifeEnded) else event

    verdict = records.judged(run, arm=("simple",), on_event=leave)
    finding = records.only(verdict, "stopped", Outcome.PASS)
    assert "had to be ended: 4711" in finding.notes[0]


def test_arm_in_which_nothing_was_sent_answered_nothing(run: Path) -> None:
    verdict = tool_records.judged(run, {"simple": []})
    assert records.outcomes(verdict, "requests_answered") == set()

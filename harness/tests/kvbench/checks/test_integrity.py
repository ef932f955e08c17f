from __future__ import annotations

from pathlib import Path

import pytest
import records

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, PhaseStarted, RunEnded, Skipped
from kvbench.judge import judge
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_healthy_record_passes(healthy_verdict: Verdict) -> None:
    assert healthy_verdict.outcome is Outcome.PASS
    assert healthy_verdict.exit_code == ExitCode.PASS


def test_edited_record_is_invalid_and_names_the_file(run: Path) -> None:
    records.write(run)
    journal = run / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"waited_s":0.1', '"waited_s":0.2', 1))
    verdict = judge(run)
    assert verdict.exit_code == ExitCode.UNPROVED
    assert [finding.check for finding in verdict.findings] == ["record_sealed"]
    assert "journal.jsonl" in verdict.findings[0].reason


def test_record_without_its_end_is_aborted(run: Path) -> None:
    verdict = records.judged(run, seal=False)
    assert verdict.outcome is Outcome.ABORTED
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def test_interrupted_record_that_was_sealed_is_aborted(run: Path) -> None:
    ended = RunEnded(time_s=1.0, outcome="interrupted", reason="interrupted")
    verdict = records.judged(run, ended=ended)
    assert records.only(verdict, "run_complete", Outcome.ABORTED)
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def test_run_that_ended_in_an_error_says_so(run: Path) -> None:
    ended = RunEnded(time_s=1.0, outcome="error", reason="engine error in life-2")
    verdict = records.judged(run, ended=ended)
    assert "life-2" in records.only(verdict, "run_complete", Outcome.ERROR).reason


def test_planned_phase_without_a_trace_is_invalid(run: Path) -> None:
    def drop(event: Event) -> Event | None:
        is_gone = isinstance(event, PhaseStarted) and event.phase == "cold_again-1"
        return None if is_gone else event

    verdict = records.judged(run, on_event=drop)
    assert records.outcomes(verdict, "phase_run") == {"invalid"}


def test_skipped_phase_is_named_with_its_reason(run: Path) -> None:
    def skip(event: Event) -> Event | None:
        if isinstance(event, PhaseStarted) and event.phase == "cold_again-1":
            return Skipped(
                time_s=1.0, stage=event.stage, arm=event.arm, phase=event.phase, reason="no time"
            )
        return event

    verdict = records.judged(run, on_event=skip, arm=("simple",))
    assert "no time" in records.only(verdict, "phase_run", Outcome.SKIPPED).reason
    assert verdict.exit_code == ExitCode.UNPROVED

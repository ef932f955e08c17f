from __future__ import annotations

from pathlib import Path

import pytest
import records

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, PhaseEnded
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")

TWIN = (
    *records.SMALL,
    "arms.simple.connector.faulty=true",
    "arms.simple.faults=[{mode: zero_block, phase: replay-1, prompt: p2}]",
)


def test_runs_without_faults_have_no_finding(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "fault_applied") == set()


def test_fault_that_never_fired_proves_nothing(run: Path) -> None:
    verdict = records.judged(run, sets=TWIN)
    finding = records.only(verdict, "fault_applied", Outcome.INCONCLUSIVE)
    assert finding.reason == "fault not applied: zero_block on p2 in replay-1"
    assert verdict.exit_code == ExitCode.UNPROVED


def test_fault_that_fired_is_counted(run: Path, tmp_path: Path) -> None:
    first = records.ledger(tmp_path / "first", sets=TWIN)
    window = next(w.id for w in first.windows if w.phase == "replay-1" and w.arm == "simple")

    def fire(event: Event) -> Event:
        if isinstance(event, PhaseEnded) and event.window == window:
            return records.applied(window)
        return event

    verdict = records.judged(run, sets=TWIN, on_event=fire)
    assert "applied 1 times" in records.only(verdict, "fault_applied", Outcome.PASS).reason

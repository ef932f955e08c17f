from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import records

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, LifeReady
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def effective(**changes: Any) -> records.OnEvent:
    def change(event: Event) -> Event:
        if not isinstance(event, LifeReady) or event.life != "life-2":
            return event
        found = {**event.effective, **changes}
        return records.replace(event, effective={k: v for k, v in found.items() if v != "gone"})

    return change


def test_equal_settings_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "settings_effective") == {"pass"}


def test_connector_that_is_not_effective_has_a_finding_of_its_own(run: Path) -> None:
    verdict = records.judged(run, on_event=effective(connector=None))
    finding = records.only(verdict, "connector_effective", Outcome.INVALID)
    assert "HostSimpleCPUOffloadConnector was asked for, but is not effective" in finding.reason
    assert finding.arm == "simple"
    assert verdict.exit_code == ExitCode.UNPROVED


def test_different_pool_is_invalid_and_named(run: Path) -> None:
    verdict = records.judged(run, on_event=effective(gpu_blocks=64))
    finding = records.only(verdict, "settings_effective", Outcome.INVALID)
    assert finding.expected == "gpu_blocks=32"
    assert finding.observed == "gpu_blocks=64"


def test_different_geometry_is_invalid(run: Path) -> None:
    verdict = records.judged(run, on_event=effective(group_block_tokens=[16]))
    assert "geometry" in records.only(verdict, "geometry_matches", Outcome.INVALID).reason


def test_unreadable_setting_is_a_note(run: Path) -> None:
    verdict = records.judged(run, on_event=effective(max_num_seqs="gone"))
    assert records.outcomes(verdict, "settings_effective") == {"pass"}
    notes = [note for f in verdict.findings for note in f.notes]
    assert "not readable from the engine: max_num_seqs" in notes


def test_unreadable_connector_decides_nothing(run: Path) -> None:
    verdict = records.judged(run, on_event=effective(connector="gone"))
    assert records.only(verdict, "settings_effective", Outcome.INCONCLUSIVE)
    assert verdict.exit_code == ExitCode.UNPROVED


def test_life_that_was_measured_and_never_read_back_is_invalid(run: Path) -> None:
    def lose(event: Event) -> Event | None:
        return None if isinstance(event, LifeReady) else event

    verdict = records.judged(run, arm=("simple",), on_event=lose)
    finding = records.only(verdict, "settings_effective", Outcome.INVALID)
    assert "nothing says with which settings" in finding.reason


def test_connector_that_nobody_asked_about_is_not_known(run: Path) -> None:
    def forget(event: Event) -> Event:
        if not isinstance(event, LifeReady):
            return event
        return records.replace(event, asked={}, effective={})

    verdict = records.judged(run, arm=("simple",), on_event=forget)
    assert records.outcomes(verdict, "settings_effective") == {"inconclusive"}
    assert verdict.exit_code == ExitCode.UNPROVED


def test_fails_under_another_connector_than_asked_for_are_invalid(run: Path) -> None:
    def swap_in(sent: records.Sent) -> None:
        if sent.arm == "simple" and sent.phase == "replay-1" and sent.role == "scored":
            sent.tokens = records.change_one(sent.tokens, 3, 0.5)

    verdict = records.judged(
        run, on_event=effective(connector="OffloadingConnector"), on_request=swap_in
    )
    assert "fail" not in {finding.outcome for finding in verdict.findings}
    withdrawn = records.only(verdict, "cpu_hit_equals_gpu_hit", Outcome.INVALID)
    assert "other settings than asked for" in withdrawn.reason
    assert verdict.exit_code == ExitCode.UNPROVED

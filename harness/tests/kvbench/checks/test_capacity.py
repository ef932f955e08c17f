from __future__ import annotations

from pathlib import Path

import event_lines
import pytest
import records
from event_lines import Line, with_events

from kvbench.checks.finding import Outcome
from kvbench.events import Event, Sample, Snapshot

pytestmark = pytest.mark.usefixtures("quick_disk")

ONLY_SIMPLE = ("simple",)
SMALL_POOL = (*event_lines.WITH_EVENTS, "arms.simple.connector.host_pool_bytes_total=16MiB")
CAPACITY = 63
"""64 blocks of 256 KiB, one of them the null block"""


def never_evicts(lines: list[Line]) -> list[Line]:
    return with_events(
        lines,
        lambda e: [] if (e["type"], e.get("medium")) == ("BlockRemoved", "CPU") else [e],
    )


def gauge(value: float) -> records.OnEvent:
    def change(event: Event) -> Event:
        if not isinstance(event, Snapshot):
            return event
        sample = Sample("simple_used_blocks", "0", {}, value)
        return records.replace(event, samples=(*event.samples, sample))

    return change


def test_tier_that_evicts_stays_inside_its_capacity(run: Path) -> None:
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, sets=SMALL_POOL, host_blocks=CAPACITY)
    finding = records.only(verdict, "capacity_kept", Outcome.PASS)
    assert finding.reason == f"the host tier held {CAPACITY} blocks at most, of {CAPACITY}"
    assert any("blocks removed from the tier" in note for note in finding.notes)


def test_tier_that_never_evicts_fails(run: Path) -> None:
    verdict = event_lines.judged(
        run, arm=ONLY_SIMPLE, sets=SMALL_POOL, host_blocks=CAPACITY, change=never_evicts
    )
    finding = records.only(verdict, "capacity_kept", Outcome.FAIL)
    assert f"the host tier outgrew its {CAPACITY} blocks in pressure-" in finding.reason
    assert finding.witness == "events"
    assert finding.notes == ("no block was ever removed from the tier",)


def test_tier_that_just_fills_up_is_silent(run: Path) -> None:
    """Growth up to the capacity is warm-up, with no removal in sight."""
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE)
    finding = records.only(verdict, "capacity_kept", Outcome.PASS)
    assert finding.notes == ()


def test_missing_batches_leave_the_capacity_open(run: Path) -> None:
    """The removals may be in what nobody saw."""

    def lossy(lines: list[Line]) -> list[Line]:
        return [{"engine": 0, "gap": [0, 3], "replayed": False}, *never_evicts(lines)]

    verdict = event_lines.judged(
        run, arm=ONLY_SIMPLE, sets=SMALL_POOL, host_blocks=CAPACITY, change=lossy
    )
    assert records.outcomes(verdict, "capacity_kept") == set()


@pytest.mark.parametrize(("value", "outcomes"), [(300.0, {"fail"}), (256.0, set())])
def test_gauge_above_the_capacity_fails(run: Path, value: float, outcomes: set[str]) -> None:
    verdict = records.judged(run, arm=ONLY_SIMPLE, on_event=gauge(value))
    assert records.outcomes(verdict, "capacity_kept") == outcomes

"""Switching a faulty twin, and filing what it says that it damaged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvbench.events import FaultApplied, FaultSwitched
from kvbench.plan_types import PlannedFault, PlannedPhase
from kvbench.record import Record, StoredRecord
from kvbench.workloads.faults import CONTROL_VARIABLE, JOURNAL_VARIABLE, FaultSwitch
from kvbench.workloads.window import Window

FAULT = PlannedFault(mode="zero_block", prompt_id="s/p2", block_index=3, times=1)


@pytest.fixture
def record(tmp_path: Path, quick_disk: None) -> Record:
    return Record(tmp_path / "run")


@pytest.fixture
def switch(record: Record) -> FaultSwitch:
    return FaultSwitch(record, "life-1", is_fake=False)


@pytest.fixture
def window(record: Record) -> Window:
    life = SimpleNamespace(life="life-1", record=record)
    mark = lambda prompt_id: f"w001-{prompt_id.replace('/', '.')}-"  # noqa: E731
    return cast("Window", SimpleNamespace(life=life, id="w001", request_mark=mark))


def phase(name: str, kind: str, *faults: PlannedFault) -> PlannedPhase:
    return PlannedPhase(
        stage="s",
        arm="a",
        name=name,
        kind=kind,
        run=1,
        concurrency=1,
        reset="none",
        sentinel_id=None,
        waves=(),
        new_tokens=1,
        top_logprobs=1,
        faults=faults,
    )


RELOAD = phase("reload-1", "reload", FAULT)


def control(switch: FaultSwitch) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(switch.env()[CONTROL_VARIABLE]).read_text())
    return found


def journal(switch: FaultSwitch) -> Path:
    return Path(switch.env()[JOURNAL_VARIABLE])


def filed(record: Record, kind: type) -> list[Any]:
    return [e for _, e in StoredRecord(record.directory).events() if isinstance(e, kind)]


def test_twin_is_told_to_do_nothing_before_its_phase(switch: FaultSwitch) -> None:
    assert control(switch) == {"mode": "none"}
    assert journal(switch).read_text() == ""


def test_fault_is_on_in_its_phase_only(switch: FaultSwitch, window: Window, record: Record) -> None:
    with switch.armed(window, RELOAD):
        assert control(switch) == {
            "mode": "zero_block",
            "block_index": 3,
            "request": "w001-s.p2-",
            "times": 1,
        }
    assert control(switch) == {"mode": "none"}
    assert [e.mode for e in filed(record, FaultSwitched)] == ["zero_block", "none"]


def test_other_phase_is_left_alone(switch: FaultSwitch, window: Window, record: Record) -> None:
    with switch.armed(window, phase("cold-1", "cold")):
        assert control(switch) == {"mode": "none"}
    assert not filed(record, FaultSwitched)


def test_fake_engine_is_told_every_fault_of_the_phase(record: Record, window: Window) -> None:
    everywhere = PlannedFault(
        mode="swap_blocks", prompt_id=None, block_index=0, times=None, engine=1, options={"by": 2}
    )
    switch = FaultSwitch(record, "life-1", is_fake=True)
    with switch.armed(window, phase("reload-1", "reload", FAULT, everywhere)):
        assert control(switch) == {
            "faults": [
                {"kind": "zero_block", "block_index": 3, "request": "w001-s.p2-", "times": 1},
                {"kind": "swap_blocks", "block_index": 0, "engine": 1, "options": {"by": 2}},
            ]
        }
    assert control(switch) == {"mode": "none"}


def test_failing_phase_switches_the_fault_off(switch: FaultSwitch, window: Window) -> None:
    with pytest.raises(RuntimeError), switch.armed(window, RELOAD):
        raise RuntimeError
    assert control(switch) == {"mode": "none"}


def test_what_was_damaged_is_filed_once(
    switch: FaultSwitch, window: Window, record: Record
) -> None:
    with journal(switch).open("a") as lines:
        lines.write('{"block": 7}\n')
    switch.collect("w001")
    switch.collect("w002")
    assert [event.detail for event in filed(record, FaultApplied)] == [{"block": 7}]


def test_twin_that_damaged_nothing_leaves_no_line(
    switch: FaultSwitch, window: Window, record: Record
) -> None:
    with switch.armed(window, RELOAD):
        pass
    switch.collect("w001")
    assert not filed(record, FaultApplied)


def test_line_that_is_still_being_written_is_left_for_later(
    switch: FaultSwitch, window: Window, record: Record
) -> None:
    journal(switch).write_text('{"block": 7}\n{"blo')
    switch.collect("w001")
    assert len(filed(record, FaultApplied)) == 1

"""Control file, budget and journal of the faults, without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvb_faults
from kvb_faults import (
    Control,
    ControlError,
    FaultContext,
    FaultSwitch,
    LoadPart,
    NotApplicableError,
)

PART = LoadPart("cmpl-kvb-7-0-ab12", cpu_blocks=[0, 1, 2], gpu_blocks=[5, 3, 4])


def context_for(control: Control) -> FaultContext:
    cpu = {name: np.arange(1.0, 13).reshape(4, 3) for name in ("layer.0", "layer.1")}
    gpu = {name: np.full((6, 3), 99.0) for name in cpu}

    def copy_in(cpu_blocks: list[int], gpu_blocks: list[int]) -> None:
        for name, blocks in cpu.items():
            gpu[name][gpu_blocks] = blocks[cpu_blocks]

    return FaultContext(control, PART, (PART,), gpu, cpu, copy_in)


def test_zero_block_loads_all_blocks_and_zeroes_one_in_every_layer() -> None:
    context = context_for(Control("zero_block", block_index=1))
    assert kvb_faults.zero_block(context) == 3
    for name, blocks in context.gpu.items():
        assert blocks[3].tolist() == [0, 0, 0]
        assert blocks[5].tolist() == context.cpu[name][0].tolist()
        assert blocks[4].tolist() == context.cpu[name][2].tolist()


def test_zero_block_outside_the_load_is_refused_before_anything_is_copied() -> None:
    context = context_for(Control("zero_block", block_index=3))
    with pytest.raises(NotApplicableError, match="outside 3 loaded blocks"):
        kvb_faults.zero_block(context)
    assert all((blocks == 99).all() for blocks in context.gpu.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ("{}", "'mode' is missing"),
        ('{"mode": "melt"}', "unknown mode 'melt'; known: none, zero_block"),
        ('{"mode": "none", "blok_index": 1}', "unknown key 'blok_index'"),
        ('{"mode": "zero_block", "block_index": "1"}', "block_index"),
        ('{"mode": "zero_block", "times": true}', "times"),
    ],
)
def test_control_that_cannot_be_obeyed_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ControlError, match=message):
        kvb_faults.parse_control(text)


def test_control_takes_every_documented_key() -> None:
    text = '{"mode": "zero_block", "block_index": 2, "request": "kvb-7", "times": null}'
    assert kvb_faults.parse_control(text) == Control("zero_block", 2, "kvb-7", None)


@pytest.fixture
def switch(tmp_path: Path) -> FaultSwitch:
    return FaultSwitch(tmp_path / "fault.json", tmp_path / "journal.jsonl", rank=1)


def journal_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_budget_is_spent_by_applied_faults_and_renewed_by_writing_the_file(
    switch: FaultSwitch, tmp_path: Path
) -> None:
    file = tmp_path / "fault.json"
    file.write_text('{"mode": "zero_block", "times": 1}', encoding="utf-8")
    control = switch.control()
    assert switch.wants(control, PART)
    switch.applied(context_for(control), 3)
    assert not switch.wants(switch.control(), PART)
    file.write_text('{"mode": "zero_block", "times": 1, "block_index": 0}', encoding="utf-8")
    assert switch.wants(switch.control(), PART)


def test_only_requests_that_contain_the_name_are_wanted(switch: FaultSwitch) -> None:
    assert switch.wants(Control("zero_block", request="kvb-7-"), PART)
    assert not switch.wants(Control("zero_block", request="kvb-70"), PART)
    assert not switch.wants(Control("none"), PART)


def test_journal_tells_applied_from_refused(switch: FaultSwitch, tmp_path: Path) -> None:
    switch.applied(context_for(Control("zero_block")), 3)
    switch.not_applied(None, (PART,), "unknown mode 'melt'")
    applied, refused = journal_of(tmp_path)
    assert applied["applied"] is True
    assert applied["dst_block"] == 3
    assert applied["loaded_blocks"] == 3
    assert applied["request_ids"] == [PART.request_id]
    assert applied["rank"] == 1
    assert refused["applied"] is False
    assert refused["error"] == "unknown mode 'melt'"


def test_missing_control_file_is_an_error(switch: FaultSwitch) -> None:
    with pytest.raises(ControlError, match="cannot read"):
        switch.control()


def test_twin_without_its_environment_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kvb_faults.FAULT_FILE, raising=False)
    monkeypatch.setenv(kvb_faults.FAULT_JOURNAL, "journal")
    with pytest.raises(RuntimeError, match=kvb_faults.FAULT_FILE):
        FaultSwitch.from_environment()


def test_two_faults_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="already taken"):
        kvb_faults.fault("zero_block")(kvb_faults.zero_block)

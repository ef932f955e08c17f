"""Facts about the machine that go into every record."""

from __future__ import annotations

import json
import platform

import pytest

from kvbench.telemetry import machine


def test_facts_can_be_recorded_and_hold_no_host_name() -> None:
    facts = machine.machine_facts()
    text = json.dumps(facts)
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 0
    assert platform.node() not in text.split('"')


def test_gpus_are_unknown_without_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_output", lambda command: None)
    assert machine.gpus() is None
    assert machine.source_facts() == {"commit": None, "dirty": None}


def test_gpu_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_output", lambda command: "GPU X, 1000, [N/A], 550.1\n")
    assert machine.gpus() == [
        {"name": "GPU X", "memory_bytes": 1000 << 20, "free_bytes": None, "driver": "550.1"}
    ]

"""What a process tree uses."""

from __future__ import annotations

import os

import pytest

from kvbench.telemetry import processes


def test_own_process_uses_memory_and_threads() -> None:
    used = processes.usage([os.getpid()])
    assert used.processes == 1
    assert used.threads >= 1
    assert used.pss_bytes is None or 0 < used.pss_bytes <= used.rss_bytes


def test_process_that_is_gone_counts_for_nothing() -> None:
    assert processes.usage([2**22 + 1]).processes == 0


def test_gpu_memory_is_added_up_for_the_tree_only() -> None:
    table = "11, 100\n12, 50\n99, 1000\n"
    assert processes.gpu_bytes_of(table, [11, 12]) == 150 << 20
    assert processes.gpu_bytes_of(table, [13]) == 0


def test_gpu_memory_that_is_not_told_is_unknown() -> None:
    assert processes.gpu_bytes_of("11, [N/A]\n", [11]) is None


def test_without_a_tool_gpu_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert processes.gpu_bytes([1]) is None

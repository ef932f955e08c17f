"""Whole runs on the fake engine, as a person starts them: rehearsed, killed, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from kvbench.checks.finding import Outcome
from kvbench.judge import judge
from kvbench.selftest.rows import BASE
from kvbench.workloads.faults import CONTROL_VARIABLE

ROOT = Path(__file__).parents[4]
LIMIT_S = 60

pytestmark = pytest.mark.e2e


def command(scenario: Path, results: Path, *sets: str) -> list[str]:
    words = [sys.executable, "-m", "kvbench.cli", "run", str(scenario), "--results", str(results)]
    return [*words, *(word for each in sets for word in ("--set", each))]


def left_behind(results: Path) -> list[int]:
    """Processes of servers whose fault file lies in this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(results) in process.environ().get(CONTROL_VARIABLE, ""):
                found.append(process.pid)
    return found


@contextmanager
def running(results: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run of the base scenario that has got to its second life."""
    process = subprocess.Popen(
        command(BASE, results), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            journals = list(results.glob("*/*/journal.jsonl"))
            if journals and '"life":"life-2","stage"' in journals[0].read_text():
                break
            time.sleep(0.02)
        yield process, journals[0].parent
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until_gone(results: Path) -> list[int]:
    deadline = time.monotonic() + 15
    while (left := left_behind(results)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_run_killed_at_any_moment_leaves_a_readable_record_and_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as (process, record):
        assert left_behind(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert until_gone(tmp_path) == []
    verdict = judge(record)
    assert verdict.outcome is Outcome.ABORTED
    assert verdict.exit_code == 3


def test_interrupted_run_ends_in_order(tmp_path: Path) -> None:
    with running(tmp_path) as (process, record):
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, out
        assert left_behind(tmp_path) == []
    assert judge(record).outcome is Outcome.ABORTED


def test_any_scenario_with_a_geometry_can_be_rehearsed(tmp_path: Path) -> None:
    done = subprocess.run(
        command(ROOT / "scenarios/quickstart.yaml", tmp_path, "engine.kind=fake"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("FAKE ENGINE") >= 2
    (report,) = tmp_path.glob("quickstart/*/report.md")
    assert "FAKE ENGINE" in report.read_text()
    assert left_behind(tmp_path) == []

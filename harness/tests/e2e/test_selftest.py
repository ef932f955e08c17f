"""The whole self-test, as a person runs it, and what it says when a check goes missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KVBENCH = ROOT / ".venv/bin/kvbench"

pytestmark = pytest.mark.e2e


def selftest(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(KVBENCH), "selftest", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_every_fault_ends_in_its_verdict_and_nothing_harmless_alarms(tmp_path: Path) -> None:
    done = selftest("--results", str(tmp_path / "runs"), "--reference", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    matrix = json.loads((tmp_path / "out/selftest.json").read_text())
    assert matrix["caught"] == matrix["faulty_rows"] >= 60
    assert matrix["false_alarms"] == 0
    assert matrix["harmless_runs"] >= 40
    assert "FAKE ENGINE" in (tmp_path / "out/selftest.md").read_text()
    assert "FAKE ENGINE" in done.stdout
    committed = json.loads((ROOT / "results/reference/selftest.json").read_text())
    assert [row["name"] for row in committed["rows"]] == [row["name"] for row in matrix["rows"]]
    assert committed["right"]


def test_unknown_row_is_refused(tmp_path: Path) -> None:
    done = selftest("--only", "F99")
    assert done.returncode == 2
    assert "known: F01" in done.stderr

"""The whole self-test, as a person runs it, and what it says when a check goes missing."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from kvbench.client import Client

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


@pytest.mark.parametrize("rows", [("F03",), ("F17", "F28 no")])
def test_chosen_rows_are_run_alone(rows: tuple[str, ...]) -> None:
    done = selftest(*(word for row in rows for word in ("--only", row)))
    assert done.returncode == 0, done.stdout
    assert all(row in done.stdout for row in rows)
    assert "F01" not in done.stdout


def test_fake_engine_answers_by_hand() -> None:
    server = subprocess.Popen(
        [
            *(str(KVBENCH), "engine", "fake", "--scenario", "scenarios/quickstart.yaml"),
            *("--port", "8123", "--fault", "skip_copy"),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with Client("http://127.0.0.1:8123", "tiny-qwen3", 10) as client:
            deadline = time.monotonic() + 20
            while not client.health() and time.monotonic() < deadline:
                time.sleep(0.1)
            answer = client.complete(
                range(100, 164), request_id="by-hand", new_tokens=4, top_logprobs=5
            )
            assert answer.error is None
            assert len(answer.tokens) == 4
            assert "vllm:prompt_tokens_total" in client.metrics_page()
    finally:
        server.terminate()
        _, said = server.communicate(timeout=20)
    assert "FAKE ENGINE" in said

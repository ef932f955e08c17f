"""The command line: exit codes, and errors without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import kvbench

from kvbench.errors import ExitCode

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "scenarios/quickstart.yaml")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("plan",), ExitCode.USAGE, "Missing argument"),
        (("plan", QUICKSTART, "--no-such-option"), ExitCode.USAGE, "No such option"),
        (("plan", "nowhere.yaml"), ExitCode.USAGE, "no such scenario file"),
        (("plan", QUICKSTART, "--set", "engine.dtyp=x"), ExitCode.USAGE, "did you mean 'dtype'"),
        (("plan", QUICKSTART, "--arm", "nobody"), ExitCode.USAGE, "known: control, simple"),
        (("judge", "/"), ExitCode.UNPROVED, "not a record"),
    ],
)
def test_mistake_is_explained_without_a_traceback(
    words: tuple[str, ...], code: ExitCode, said: str
) -> None:
    done = kvbench(*words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_prompts_that_cannot_hit_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    short = "stages.replay.workload.prompts={lengths_tokens: [100]}"
    done = kvbench("run", QUICKSTART, "--results", str(tmp_path), "--set", short)
    assert done.returncode == ExitCode.USAGE
    assert "the smallest useful length is 129 tokens" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_absent_interpreter_is_named_before_anything_is_written(tmp_path: Path) -> None:
    done = kvbench(
        "run", QUICKSTART, "--results", str(tmp_path), "--set", "engine.python=/no/such/python"
    )
    assert done.returncode == ExitCode.ENVIRONMENT
    assert "/no/such/python" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_hardware_is_named(tmp_path: Path) -> None:
    done = kvbench(
        *("run", QUICKSTART, "--results", str(tmp_path), "--set", "needs.cpu_flags=[no_such_flag]")
    )
    assert done.returncode == ExitCode.ENVIRONMENT
    assert "no_such_flag" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_exit_codes() -> None:
    done = kvbench("run", "--help")
    assert done.returncode == ExitCode.PASS
    assert "130 interrupted" in done.stdout


def test_command_works_as_a_process() -> None:
    argv = [sys.executable, "-m", "kvbench.cli", "plan", "nowhere.yaml"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "no such scenario file" in done.stderr
    assert "Traceback" not in done.stderr

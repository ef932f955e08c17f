"""The example of docs/compare.md, run as it is printed there: two runs on the fake engine."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvbench.errors import ExitCode

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/compare.md"
LIMIT_S = 120

pytestmark = pytest.mark.e2e


def kvbench(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench.cli", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=ROOT,
    )


def commands() -> list[list[str]]:
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[:1]
    return [shlex.split(line)[1:] for line in block.splitlines()]


def run_as_printed(words: Sequence[str], results: Path) -> Path:
    done = kvbench([*words, "--results", str(results)])
    assert done.returncode in (ExitCode.PASS, ExitCode.FAIL), done.stderr
    (record,) = results.glob("quickstart/*")
    return record


def test_example_of_the_page_is_what_the_commands_print(tmp_path: Path) -> None:
    clean, faulty, compare = commands()
    base = run_as_printed(clean, tmp_path / "base")
    other = run_as_printed(faulty, tmp_path / "other")
    names = {"results/quickstart/BASE": str(base), "results/quickstart/OTHER": str(other)}
    done = kvbench([names.get(word, word) for word in compare])
    assert done.returncode == ExitCode.FAIL, done.stderr
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| replay |")]
    marked = [line for line in PAGE.read_text().splitlines() if line.startswith("| ! |")]
    assert rows
    assert marked
    assert set(rows + marked) <= set(done.stdout.splitlines())
    undeclared = kvbench(["compare", str(base), str(other)])
    assert undeclared.returncode == ExitCode.USAGE
    assert "--allow 'arms.simple.engine.faults'" in undeclared.stderr
    itself = kvbench(["compare", str(base), str(base)])
    assert itself.returncode == ExitCode.PASS, itself.stdout

"""What `kvbench compare` prints, in three formats, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import records
from command_line import kvbench
from two_runs import TIMED, flip_answer, on_replayed, with_times

from kvbench.errors import ExitCode

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write(tmp_path_factory.mktemp("render") / "clean")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("render") / "faulty"
    return records.write(directory, on_request=on_replayed(flip_answer))


@pytest.mark.parametrize("output", ["terminal", "markdown"])
def test_answer_comes_first_and_names_check_and_prompt(
    clean: Path, faulty: Path, output: str
) -> None:
    done = kvbench("compare", str(clean), str(faulty), "--format", output)
    assert done.returncode == ExitCode.FAIL
    assert "WORSE" in done.stdout.splitlines()[0]
    assert "newly failing tokens_equal (replay / simple / reload-1)" in done.stdout
    assert "p2" in done.stdout


def test_hidden_rows_are_counted_and_can_be_shown(clean: Path) -> None:
    short = kvbench("compare", str(clean), str(clean), "--format", "markdown")
    whole = kvbench("compare", str(clean), str(clean), "--format", "markdown", "--all")
    assert short.returncode == whole.returncode == ExitCode.PASS
    assert "rates are equal (hidden; --all shows them)" in short.stdout
    assert "(hidden" not in whole.stdout
    assert "| simple | reload-1 | external | 1792/2152 (83.3 %) |" in whole.stdout
    assert "| simple | reload-1 | external |" not in short.stdout


def test_json_has_every_row(clean: Path, faulty: Path) -> None:
    done = kvbench("compare", str(clean), str(faulty), "--format", "json")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == ExitCode.FAIL
    (against,) = found["against"]
    changes = {row["change"] for row in against["findings"]}
    assert {"newly failing", "passes in both"} <= changes
    assert {row["verdict"] for row in against["rates"]} == {"equal"}


def test_slower_time_shows_interval_corrected_p_and_absolute_values(run: Path) -> None:
    one = records.write(run / "one", sets=TIMED, on_event=with_times("one"))
    two = records.write(run / "two", sets=TIMED, on_event=with_times("two", 2.0))
    done = kvbench("compare", str(one), str(two), "--format", "markdown")
    (line,) = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("| replay | simple | reload (1x) | TTFT |")
    ]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[4] == "19"
    assert cells[5].endswith(" ms")
    assert cells[7].startswith(("2.0", "1.9"))
    assert cells[-1] == "**slower**"
    assert "10 of 20 differences inside the noise or undecided" in done.stdout


def test_several_runs_are_each_held_against_the_base(clean: Path, faulty: Path) -> None:
    words = ("compare", str(clean), str(clean), str(faulty), "--format", "markdown")
    done = kvbench(*words)
    assert done.returncode == ExitCode.FAIL
    first, second = done.stdout.split("## C against A")
    assert "## B against A" in first
    assert "| **newly failing** |" not in first
    assert "| **newly failing** |" in second


def test_refusal_goes_to_the_person_without_a_traceback(clean: Path, run: Path) -> None:
    other = records.write(run, sets=(*records.SMALL, "engine.dtype=bfloat16"))
    done = kvbench("compare", str(clean), str(other))
    assert done.returncode == ExitCode.USAGE
    assert "engine.dtype: float32 / bfloat16" in done.stderr
    assert "--allow 'engine.dtype'" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_one_record_is_no_comparison(clean: Path) -> None:
    done = kvbench("compare", str(clean))
    assert done.returncode == ExitCode.USAGE
    assert "two records or more" in done.stderr

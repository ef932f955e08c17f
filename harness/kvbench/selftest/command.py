"""`kvbench selftest`: runs the rows, prints the matrix, and its exit code says if it is right."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from kvbench import clock
from kvbench.errors import ExitCode
from kvbench.report.header import machine_words
from kvbench.scenario.engines import FAKE_WORDS
from kvbench.selftest import report
from kvbench.selftest.execute import RowRun, run_all
from kvbench.selftest.judgement import Matrix, RowResult, judge_row
from kvbench.selftest.rows import Row, chosen, load_rows
from kvbench.telemetry.machine import machine_facts

DEFAULT_WORKERS: Final = 4
"""rows at a time; most of a row is waiting"""


def selftest(
    console: Console,
    *,
    only: tuple[str, ...],
    workers: int,
    results: Path | None,
    reference: Path | None,
) -> ExitCode:
    """Run the self-test; records of rows that went wrong are kept, or all under `results`."""
    rows = chosen(load_rows(), only)
    console.print(f"[bold yellow]{FAKE_WORDS}[/bold yellow]")
    folder = results or Path(tempfile.mkdtemp(prefix="kvbench-selftest-"))
    started_s = clock.monotonic_s()
    runs: dict[str, list[RowRun]] = {row.name: [] for row in rows}
    for row, run in run_all(rows, folder, workers):
        runs[row.name].append(run)
        if len(runs[row.name]) == row.repeats:
            _say(console, judge_row(row, runs[row.name]))
    matrix = _matrix(rows, runs, clock.monotonic_s() - started_s)
    report.show(matrix, console)
    if reference is not None:
        reference.mkdir(parents=True, exist_ok=True)
        words = machine_words(machine_facts())
        (reference / "selftest.md").write_text(report.markdown(matrix, words))
        (reference / "selftest.json").write_text(report.render_json(matrix))
    if results is None:
        _drop_right_ones(matrix, folder)
    return ExitCode.PASS if matrix.is_right else ExitCode.FAIL


def _matrix(rows: tuple[Row, ...], runs: dict[str, list[RowRun]], wall_s: float) -> Matrix:
    judged = (judge_row(row, sorted(runs[row.name], key=lambda run: run.repeat)) for row in rows)
    return Matrix(tuple(judged), wall_s)


def _say(console: Console, result: RowResult) -> None:
    mark = "[green]ok[/green]" if result.is_right else "[bold red]WRONG[/bold red]"
    wall_s = sum(run.wall_s for run in result.runs)
    console.print(f"{mark} {result.row.name}: {result.seen} ({wall_s:.1f} s)")


def _drop_right_ones(matrix: Matrix, folder: Path) -> None:
    for result in matrix.results:
        if result.is_right:
            for run in result.runs:
                shutil.rmtree(run.record, ignore_errors=not run.record)
    if not any(folder.iterdir()):
        folder.rmdir()

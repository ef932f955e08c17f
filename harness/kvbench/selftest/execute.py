"""Runs one row as `kvbench run` would: plan, runner, record on disk, and a verdict from the record.

Rows run in processes of their own, several at a time: most of a run is waiting.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec

from kvbench import clock
from kvbench.checks.finding import Finding, Outcome
from kvbench.engine.command import served_name
from kvbench.errors import UsageError
from kvbench.judge import judge
from kvbench.plan import make_plan
from kvbench.plan_types import Plan
from kvbench.progress import Silent
from kvbench.record import Record
from kvbench.runner import Runner
from kvbench.scenario.load import Loaded, load_scenario
from kvbench.selftest.rows import BASE, Row, runs_of
from kvbench.selftest.setups import Setups
from kvbench.selftest.written import WrittenRecord


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, as far as the matrix compares and shows it."""

    check: str
    outcome: Outcome
    witness: str
    phase: str
    prompts: tuple[str, ...]
    reason: str
    notes: tuple[str, ...]
    expected: str = ""
    observed: str = ""
    evidence: tuple[str, ...] = ()


class RowRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one row."""

    name: str
    repeat: int
    outcome: Outcome
    exit_code: int
    findings: tuple[Seen, ...]
    wall_s: float
    setup_problem: str | None
    """what the setup saw afterwards and must not be, for example that a bystander is gone"""
    record: str


def run_row(row: Row, repeat: int, results: Path) -> RowRun:
    """Run a row once; its record lies under `results`."""
    started_s = clock.monotonic_s()
    folder = results / f"{row.name.replace(' ', '_')}-{repeat + 1}"
    shutil.rmtree(folder, ignore_errors=True)
    with Setups(row.setup, folder) as setup:
        try:
            sets = [*row.sets(repeat), *setup.sets()]
            loaded = load_scenario(BASE, sets=sets, arm=row.arms)
            plan = make_plan(loaded)
        except UsageError as error:
            return _refused(row, repeat, error)
        record = Record(folder)
        setup.watch(record.directory)
        if row.evaluation is not None:
            WrittenRecord(record, plan).evaluation(row.evaluation)
        elif row.agent_run is not None:
            WrittenRecord(record, plan).agent_run(row.agent_run)
        else:
            _run(row, loaded, plan, record)
        verdict = judge(record.directory)
        problem = setup.problem()
    return RowRun(
        name=row.name,
        repeat=repeat,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        findings=tuple(_seen(finding) for finding in (*verdict.findings, *verdict.unclaimed)),
        wall_s=clock.monotonic_s() - started_s,
        setup_problem=problem,
        record=str(folder),
    )


def _run(row: Row, loaded: Loaded, plan: Plan, record: Record) -> None:
    Runner(
        loaded.scenario,
        plan,
        record,
        Silent(),
        model_path=served_name(loaded.scenario.model),
        command=("kvbench", "selftest", "--only", row.name),
    ).run()


def _seen(finding: Finding) -> Seen:
    return Seen(
        check=finding.check,
        outcome=finding.outcome,
        witness=finding.witness,
        phase=finding.phase,
        prompts=tuple(prompt.rpartition("/")[2] for prompt in finding.prompts),
        reason=finding.reason,
        notes=finding.notes,
        expected=finding.expected,
        observed=finding.observed,
        evidence=finding.evidence,
    )


def _refused(row: Row, repeat: int, error: UsageError) -> RowRun:
    """A scenario that is refused before anything is started: an error of the set-up."""
    seen = Seen(
        check="scenario",
        outcome=Outcome.ERROR,
        witness="settings",
        phase="-",
        prompts=(),
        reason=str(error),
        notes=(),
    )
    return RowRun(
        name=row.name,
        repeat=repeat,
        outcome=Outcome.ERROR,
        exit_code=error.exit_code,
        findings=(seen,),
        wall_s=0.0,
        setup_problem=None,
        record="",
    )


def run_all(rows: Sequence[Row], results: Path, workers: int) -> Iterator[tuple[Row, RowRun]]:
    """Run every row in worker processes; yields each run as it ends."""
    with ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("forkserver"), initializer=_quiet
    ) as pool:
        waiting: dict[Future[RowRun], Row] = {
            pool.submit(run_row, row, repeat, results): row for row, repeat in runs_of(tuple(rows))
        }
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            # Rows that have not begun never will; those that run come to their end.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _quiet() -> None:
    """A worker has no terminal of its own, and leaves interrupts to its owner."""
    os.setpgrp()

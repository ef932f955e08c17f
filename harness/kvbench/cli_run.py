"""What `kvbench run` and `kvbench rerun` share: a loaded scenario carried out, judged and shown."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from kvbench import environments, judge, modelfiles, needs
from kvbench.engine.command import served_name
from kvbench.errors import ExitCode, PrerequisiteError
from kvbench.ledger import load as load_ledger
from kvbench.plan_types import Plan
from kvbench.progress import TerminalProgress
from kvbench.record import Record
from kvbench.report import json_report, markdown, terminal
from kvbench.runner import Runner
from kvbench.scenario.engines import FAKE_WORDS, FakeEngine
from kvbench.scenario.load import Loaded
from kvbench.scenario.models import Needs
from kvbench.signals import one_interrupt
from kvbench.telemetry.machine import machine_facts
from kvbench.verdict import Verdict


def execute(loaded: Loaded, plan: Plan, *, results: Path, console: Console) -> ExitCode:
    """Run a plan, judge its record and print the tables; returns the code of the process.

    Raises PrerequisiteError, before anything is written, where this machine lacks what is needed.
    """
    model_path = _prepared(loaded, plan, console)
    record = Record.create(results, loaded.scenario.name)
    console.print(f"record: {record.directory}")
    with one_interrupt(), TerminalProgress(console, _requests(plan)) as progress:
        ended = Runner(
            loaded.scenario, plan, record, progress, model_path=model_path, command=sys.argv
        ).run()
    verdict = judge_and_show(record.directory, console)
    if ended.outcome == "interrupted":
        console.print(f"interrupted; `kvbench report {record.directory}` shows what was measured")
        return ExitCode.INTERRUPTED
    return ExitCode(verdict.exit_code)


def judge_and_show(directory: Path, console: Console) -> Verdict:
    """Judge, print, and write the derived files: the same bytes whenever they are made."""
    ledger = load_ledger(directory)
    verdict = judge.judge_ledger(ledger)
    (directory / judge.VERDICT).write_text(json_report.render(ledger, verdict))
    (directory / "report.md").write_text(markdown.render(ledger, verdict))
    terminal.show(ledger, verdict, console)
    return verdict


def _prepared(loaded: Loaded, plan: Plan, console: Console) -> str:
    """Return what `--model` gets, once everything that a run needs was seen to be there."""
    is_fake = isinstance(loaded.scenario.engine, FakeEngine)
    wanted = Needs() if is_fake else loaded.scenario.needs
    lacking = needs.lacking(wanted, loaded.scenario.model, machine_facts())
    if lacking:
        raise PrerequisiteError(
            f"{loaded.sources[0]}: this machine lacks what the scenario needs:\n  "
            + "\n  ".join(lacking)
        )
    for warning in plan.warnings:
        console.print(f"[yellow]note:[/yellow] {warning}")
    if is_fake:
        console.print(f"[bold yellow]{FAKE_WORDS}[/bold yellow]")
        return served_name(loaded.scenario.model)
    for life in plan.lives:
        environments.resolve_python(life.engine["python"])
    return modelfiles.locate(loaded.scenario.model)


def _requests(plan: Plan) -> int:
    phases = [phase for life in plan.lives for phase in life.phases]
    own = sum(len(wave) for phase in phases for wave in phase.waves)
    return own + sum(phase.tool_requests or 0 for phase in phases)

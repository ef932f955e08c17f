"""The command `kvbench`: verbs only, few flags each; everything else is in the scenario."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench import __version__, cli_engine, doctor, environments, judge, modelfiles, needs
from kvbench.engine.command import served_name
from kvbench.errors import ExitCode, KvbenchError, PrerequisiteError
from kvbench.ledger import load as load_ledger
from kvbench.plan import make_plan
from kvbench.plan_types import Plan
from kvbench.progress import TerminalProgress
from kvbench.record import Record
from kvbench.report import json_report, markdown, terminal
from kvbench.report.plan_text import render_plan
from kvbench.runner import Runner
from kvbench.scenario.engines import FAKE_WORDS, FakeEngine
from kvbench.scenario.load import Loaded, load_scenario
from kvbench.scenario.models import Needs
from kvbench.scenario.schema import schema as scenario_schema
from kvbench.selftest.command import DEFAULT_WORKERS, selftest
from kvbench.signals import one_interrupt
from kvbench.telemetry.machine import machine_facts
from kvbench.verdict import Verdict

app = typer.Typer(
    name="kvbench",
    help="Validate a vLLM KV-cache offload connector: what was stored comes back, and is served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_engine.app, name="engine")

ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="scenario, a YAML file")]
RecordDir = Annotated[Path, typer.Argument(metavar="DIR", help="record: results/<scenario>/<run>")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="override one setting, e.g. engine.dtype=bfloat16"
    ),
]
StageName = Annotated[str | None, typer.Option("--stage", help="run only this stage")]
ArmNames = Annotated[list[str] | None, typer.Option("--arm", help="run only these arms")]
Results = Annotated[Path, typer.Option("--results", help="where records are written")]


@app.command()
def run(
    file: ScenarioFile,
    sets: Sets = None,
    stage: StageName = None,
    arm: ArmNames = None,
    results: Results = Path("results"),
) -> None:
    """Run a scenario: start its servers, measure, judge, and print the tables.

    Exit code: 0 pass, 1 fail, 2 the scenario is wrong, 3 the engine or the machine, 4 nothing
    proved, 130 interrupted. The record is kept in any case; its folder is printed.
    """
    console = Console(stderr=False, highlight=False)
    loaded = load_scenario(file, sets=sets or (), stage=stage, arm=arm or ())
    plan = make_plan(loaded)
    is_fake = isinstance(loaded.scenario.engine, FakeEngine)
    wanted = Needs() if is_fake else loaded.scenario.needs
    lacking = needs.lacking(wanted, loaded.scenario.model, machine_facts())
    if lacking:
        raise PrerequisiteError(
            f"{file}: this machine lacks what the scenario needs:\n  " + "\n  ".join(lacking)
        )
    for warning in plan.warnings:
        console.print(f"[yellow]note:[/yellow] {warning}")
    if is_fake:
        console.print(f"[bold yellow]{FAKE_WORDS}[/bold yellow]")
        model_path = served_name(loaded.scenario.model)
    else:
        for life in plan.lives:
            environments.resolve_python(life.engine["python"])
        model_path = modelfiles.locate(loaded.scenario.model)
    record = Record.create(results, loaded.scenario.name)
    console.print(f"record: {record.directory}")
    with one_interrupt(), TerminalProgress(console, _requests(plan)) as progress:
        ended = Runner(
            loaded.scenario, plan, record, progress, model_path=model_path, command=sys.argv
        ).run()
    verdict = _judge(record.directory, console)
    if ended.outcome == "interrupted":
        console.print(f"interrupted; `kvbench report {record.directory}` shows what was measured")
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(verdict.exit_code)


@app.command()
def plan(
    file: ScenarioFile, sets: Sets = None, stage: StageName = None, arm: ArmNames = None
) -> None:
    """Show what a run would do, without touching a server: lives, argv, phases, expected hits."""
    loaded = load_scenario(file, sets=sets or (), stage=stage, arm=arm or ())
    _print_plan(loaded)


@app.command("judge")
def judge_record(directory: RecordDir) -> None:
    """Judge a record again from its files, write verdict.json, and exit with the verdict's code."""
    raise typer.Exit(_judge(directory, Console(highlight=False)).exit_code)


@app.command()
def report(directory: RecordDir) -> None:
    """Print the Markdown tables of a record, for a pull request."""
    ledger = load_ledger(directory)
    typer.echo(markdown.render(ledger, judge.judge_ledger(ledger)), nl=False)


@app.command("selftest")
def run_selftest(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ROW", help="only rows that begin so, e.g. F03"),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="rows at a time; most of a row is waiting")
    ] = DEFAULT_WORKERS,
    results: Annotated[
        Path | None, typer.Option("--results", help="keep all records in this folder")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="write selftest.md and .json there")
    ] = None,
) -> None:
    """Show that every check fires on its fault, and on nothing else (on the fake engine).

    Exit code 0 only when every row ended in the expected verdict and nothing harmless was called a
    fail. Records of rows that went wrong are kept.
    """
    console = Console(highlight=False)
    code = selftest(
        console,
        only=tuple(only or ()),
        workers=workers,
        results=results,
        reference=reference,
    )
    raise typer.Exit(code)


@app.command()
def schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    typer.echo(json.dumps(scenario_schema(), indent=2))


@app.command("doctor")
def show_conditions() -> None:
    """Say what is there, what is missing, and the command that mends it."""
    console = Console(highlight=False)
    table = Table("", "what", "found", "what to do", box=None, pad_edge=False)
    marks = {
        "ok": "[green]ok[/green]",
        "warning": "[yellow]note[/yellow]",
        "missing": "[red]no[/red]",
    }
    conditions = doctor.examine()
    for condition in conditions:
        table.add_row(
            marks[condition.state], condition.name, condition.detail, condition.remedy or ""
        )
    console.print(table)
    if any(condition.state == "missing" for condition in conditions):
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Validate a vLLM KV-cache offload connector: what was stored comes back, and is served."""


def _requests(plan: Plan) -> int:
    return sum(len(wave) for life in plan.lives for phase in life.phases for wave in phase.waves)


def _print_plan(loaded: Loaded) -> None:
    Console(highlight=False, soft_wrap=True).print(render_plan(loaded, make_plan(loaded)))


def _judge(directory: Path, console: Console) -> Verdict:
    """Judge, print, and write the derived files: the same bytes whenever they are made."""
    ledger = load_ledger(directory)
    verdict = judge.judge_ledger(ledger)
    (directory / judge.VERDICT).write_text(json_report.render(ledger, verdict))
    (directory / "report.md").write_text(markdown.render(ledger, verdict))
    terminal.show(ledger, verdict, console)
    return verdict


def main() -> None:
    """Entry point: errors for people end without a traceback, with the exit code they carry."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(ExitCode.INTERRUPTED))
    try:
        app()
    except KvbenchError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[red]error:[/red] {escape(str(error))}"
        )
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()

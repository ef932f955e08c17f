"""The command `kvbench`: verbs only, few flags each; everything else is in the scenario."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench import (
    __version__,
    cli_compare,
    cli_engine,
    cli_init,
    cli_rerun,
    cli_schema,
    doctor,
    judge,
)
from kvbench.cli_run import execute, judge_and_show
from kvbench.errors import ExitCode, KvbenchError
from kvbench.ledger import load as load_ledger
from kvbench.plan import make_plan
from kvbench.report import formats
from kvbench.report.formats import Format
from kvbench.report.plan_text import render_plan
from kvbench.scenario.load import Loaded, load_scenario
from kvbench.selftest.command import DEFAULT_WORKERS, selftest

app = typer.Typer(
    name="kvbench",
    help="Validate a vLLM KV-cache offload connector: what was stored comes back, and is served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_engine.app, name="engine")
app.command()(cli_compare.compare)
app.command("init")(cli_init.init)

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
    raise typer.Exit(execute(loaded, make_plan(loaded), results=results, console=console))


@app.command()
def plan(
    file: ScenarioFile, sets: Sets = None, stage: StageName = None, arm: ArmNames = None
) -> None:
    """Show what a run would do, without touching a server: lives, argv, phases, expected hits."""
    loaded = load_scenario(file, sets=sets or (), stage=stage, arm=arm or ())
    _print_plan(loaded)


app.command()(cli_rerun.rerun)


@app.command("judge")
def judge_record(directory: RecordDir) -> None:
    """Judge a record again from its files, write verdict.json, and exit with the verdict's code."""
    raise typer.Exit(judge_and_show(directory, Console(highlight=False)).exit_code)


@app.command()
def report(
    directory: RecordDir,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="markdown: every table; github: fits into a comment; json: verdict.json",
        ),
    ] = Format.MARKDOWN,
) -> None:
    """Print the tables of a record, for a pull request."""
    ledger = load_ledger(directory)
    typer.echo(formats.render(form, ledger, judge.judge_ledger(ledger)), nl=False)


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


app.command()(cli_schema.schema)


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


def _print_plan(loaded: Loaded) -> None:
    Console(highlight=False, soft_wrap=True).print(render_plan(loaded, make_plan(loaded)))


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

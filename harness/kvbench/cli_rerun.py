"""`kvbench rerun`: the run of a record once more, and what is different this time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench import rerun as rerunning
from kvbench.cli_run import execute
from kvbench.plan import make_plan
from kvbench.rerun import Difference


def rerun(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="record: results/<scenario>/<run>")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="override one setting, as for run"),
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="where records are written")] = Path(
        "results"
    ),
) -> None:
    """Run what a record ran: its resolved scenario, without the files that it was written in.

    Says first what is different from then: vLLM, kvbench, machine, and what would be sent. Secrets
    are masked in a record and have to be given again. Exit codes as for run; 4 where the record
    was edited.
    """
    console = Console(highlight=False)
    recorded = rerunning.read(directory)
    loaded = rerunning.load(recorded, tuple(sets or ()))
    plan = make_plan(loaded)
    console.print(f"again: {recorded.run_id}, of {directory}")
    for note in recorded.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    _show(rerunning.differences(recorded, plan), console)
    raise typer.Exit(execute(loaded, plan, results=results, console=console))


def _show(found: list[Difference], console: Console) -> None:
    if not found:
        console.print("conditions: as recorded (kvbench, vLLM, machine, plan)")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("differs", "recorded", "now"):
        table.add_column(heading, overflow="fold")
    for each in found:
        table.add_row(escape(each.what), escape(each.recorded), escape(each.now))
    console.print(table)

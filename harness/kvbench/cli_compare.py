"""`kvbench compare`: runs against a base, from their records alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvbench.compare import render
from kvbench.compare.comparison import compare as compare_records


class Format(StrEnum):
    """How a comparison is printed."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="A B [C...]", help="records; A is the base")
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="KEY",
            help="this difference is what is compared, e.g. 'arms.*.connector*'; may be repeated",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="how to print it")] = Format.TERMINAL,
    every: Annotated[
        bool, typer.Option("--all", help="print rows without a difference as well")
    ] = False,
) -> None:
    """Compare finished runs with a base: what newly fails, hits less, or got slower.

    Runs that differ in anything that decides a number are refused, unless --allow says that this is
    what is compared. Exit code: 0 nothing significant got worse, 1 something newly fails, hits less
    or is slower, 2 refused, 4 nothing comparable or less proved than in the base.
    """
    comparison = compare_records(directories, tuple(allow or ()))
    if output is Format.JSON:
        typer.echo(render.as_json(comparison), nl=False)
    elif output is Format.MARKDOWN:
        typer.echo(render.as_markdown(comparison, every=every), nl=False)
    else:
        render.show(comparison, Console(highlight=False), every=every)
    raise typer.Exit(comparison.exit_code)

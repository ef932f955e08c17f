"""A comparison as Markdown, as JSON and on the terminal, all from the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvbench.compare import deltas
from kvbench.compare.comparison import Comparison
from kvbench.compare.findings import Change
from kvbench.compare.tables import (
    Grid,
    closing_lines,
    grids,
    headline,
    run_lines,
    setting_lines,
)
from kvbench.report.markdown import table

STYLES: Mapping[str, str] = {
    Change.NEWLY_FAILING.value: "bold red",
    Change.STILL_FAILING.value: "red",
    Change.NEWLY_PASSING.value: "green",
    Change.NEWLY_PROVED.value: "green",
    Change.NEWLY_UNPROVED.value: "yellow",
    deltas.FEWER: "bold red",
    deltas.SLOWER: "bold red",
    deltas.FASTER: "green",
}
EXIT_STYLES = {0: "bold green", 1: "bold red"}
STRONG = frozenset({Change.NEWLY_FAILING.value, deltas.FEWER, deltas.SLOWER})
"""Words that stand out in Markdown."""


def plain_line(text: str) -> str:
    """Text of an engine or a scenario on one line, with nothing in it that reads as HTML."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.splitlines()))


def as_json(comparison: Comparison) -> str:
    """The whole comparison: sorted keys, one newline at the end, nothing cut and nothing hidden."""
    tree = msgspec.to_builtins(comparison)
    return json.dumps(tree, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _markdown_grid(grid: Grid) -> list[str]:
    lines = ["", f"### {grid.title}", ""]
    if grid.rows:
        heads = [head.replace("|", "\\|") for head in grid.heads]
        rows = [[f"**{c}**" if c in STRONG else c for c in row] for row in grid.rows]
        lines += [*table(heads, rows), ""]
    return lines + [f"- {plain_line(each)}" for each in grid.under]


def as_markdown(comparison: Comparison, *, every: bool = False) -> str:
    """For a pull request."""
    lines = [f"**{headline(comparison)}** (exit code {comparison.exit_code})", ""]
    for facts in comparison.runs:
        first, *rest = (plain_line(each) for each in run_lines(facts))
        lines += [f"- {first}", *(f"  - {each}" for each in rest)]
    for against in comparison.against:
        lines += ["", f"## {against.other} against A", ""]
        lines += [f"- {plain_line(each)}" for each in setting_lines(against)]
        for grid in grids(comparison, against, every=every):
            lines += _markdown_grid(grid)
    lines += ["", *(f"- {each}" for each in closing_lines(comparison))]
    return "\n".join(lines) + "\n"


def _narrow(grid: Grid) -> Grid:
    """Without the column of stages where there is but one: terminals are narrow."""
    if "stage" not in grid.heads:
        return grid
    column = grid.heads.index("stage")
    stages = {row[column] for row in grid.rows}
    if len(stages) != 1:
        return grid
    return grid._replace(
        title=f"{grid.title}, stage {stages.pop()}",
        heads=(*grid.heads[:column], *grid.heads[column + 1 :]),
        rows=[(*row[:column], *row[column + 1 :]) for row in grid.rows],
    )


def _show_grid(grid: Grid, console: Console) -> None:
    grid = _narrow(grid)
    console.print(f"\n[bold]{escape(grid.title)}[/bold]")
    if grid.rows:
        shown = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
        for head in grid.heads:
            shown.add_column(Text(head), overflow="fold")
        for row in grid.rows:
            shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
        console.print(shown)
    for line in grid.under:
        console.print(Text(line, style="dim"))


def show(comparison: Comparison, console: Console, *, every: bool = False) -> None:
    """Print a comparison: the answer first."""
    style = EXIT_STYLES.get(comparison.exit_code, "bold yellow")
    console.print(Text(f"{headline(comparison)} (exit code {comparison.exit_code})", style=style))
    for facts in comparison.runs:
        first, *rest = run_lines(facts)
        console.print(Text(first, style="bold"))
        for line in rest:
            console.print(Text(f"   {line}"))
    for against in comparison.against:
        console.print(f"\n[bold underline]{against.other} against A[/bold underline]")
        for line in setting_lines(against):
            console.print(Text(line))
        for grid in grids(comparison, against, every=every):
            _show_grid(grid, console)
    console.print()
    for line in closing_lines(comparison):
        console.print(Text(line, style="dim"))

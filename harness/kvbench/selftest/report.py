"""The matrix as a table for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench.checks.finding import Outcome
from kvbench.report.terminal import STYLES
from kvbench.scenario.engines import FAKE_WORDS
from kvbench.selftest.execute import Seen
from kvbench.selftest.judgement import Matrix, RowResult
from kvbench.verdict import SEVERITY

WITNESSES: Final = (
    "counters",
    "usage",
    "tokens",
    "logprobs",
    "events",
    "liveness",
    "processes",
    "settings",
    "samples",
)
_KEPT: Final = ("check", "outcome", "witness", "phase", "prompts", "reason")
_MARKS: Final = {
    "pass": "·",
    "fail": "FAIL",
    "error": "ERROR",
    "aborted": "abort",
    "invalid": "inval",
    "inconclusive": "open",
    "skipped": "skip",
}


def summary(matrix: Matrix) -> list[str]:
    """The numbers that count."""
    return [
        (
            f"faults: {matrix.caught} of {len(matrix.faults)} rows ended in the expected verdict, "
            f"by the expected check ({len(matrix.fault_ids())} fault models)"
        ),
        f"false alarms: {matrix.false_alarms} in {matrix.harmless_runs} harmless runs",
        f"time: {matrix.wall_s:.0f} s",
    ]


def show(matrix: Matrix, console: Console) -> None:
    """Print the rows, what was wrong with them, and the summary."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("row", "what happens", "expected", "seen", "by", ""):
        table.add_column(head, overflow="fold")
    for result in matrix.results:
        style = STYLES[result.runs[0].outcome]
        table.add_row(
            result.row.name,
            escape(result.row.title),
            result.row.outcome.value,
            f"[{style}]{_seen(result)}[/{style}]",
            escape(_by(result)),
            "[green]ok[/green]" if result.is_right else "[bold red]WRONG[/bold red]",
        )
    console.print(table)
    for result in matrix.results:
        for problem in result.problems:
            console.print(f"[bold red]{result.row.name}[/bold red]: {escape(problem)}")
            console.print(f"  record: {escape(result.runs[0].record)}")
    for line in summary(matrix):
        console.print(line)


def _seen(result: RowResult) -> str:
    """What came out; a fault that only warns ends in a pass with a note."""
    is_warning = result.row.kind == "fault" and result.row.outcome is Outcome.PASS
    return f"{result.seen}, with a note" if is_warning else result.seen


def _by(result: RowResult) -> str:
    return ", ".join(dict.fromkeys(expected.check for expected in result.row.findings)) or "-"


def markdown(matrix: Matrix, machine: str) -> str:
    """The matrix for the README and the committed reference."""
    lines = [
        "# Self-test matrix",
        "",
        (
            f"> **{FAKE_WORDS}.** It shows which check fires on which fault, and that none fires "
            "on a healthy run."
        ),
        "",
        *(f"- {line}" for line in summary(matrix)),
        f"- machine: {machine}",
        "",
        (
            "A cell is the worst that a witness said: · pass, FAIL, ERROR, abort(ed), inval(id), "
            "open (inconclusive), skip(ped); empty: that witness said nothing."
        ),
        "",
        "| row | what happens | expected | seen | by | " + " | ".join(WITNESSES) + " |",
        "|---" * (5 + len(WITNESSES)) + "|",
    ]
    for result in matrix.results:
        worst = result.worst_by_witness()
        cells = [_MARKS[worst[name].value] if name in worst else "" for name in WITNESSES]
        mark = "" if result.is_right else " **WRONG**"
        words = [result.row.name, result.row.title, result.row.outcome.value]
        words += [_seen(result) + mark, _by(result), *cells]
        lines.append("| " + " | ".join(word.replace("|", "\\|") for word in words) + " |")
    return "\n".join(lines) + "\n"


def document(matrix: Matrix) -> dict[str, Any]:
    """The same for machines."""
    return {
        "fake_engine": True,
        "right": matrix.is_right,
        "caught": matrix.caught,
        "faulty_rows": len(matrix.faults),
        "false_alarms": matrix.false_alarms,
        "harmless_runs": matrix.harmless_runs,
        "wall_s": round(matrix.wall_s, 1),
        "rows": [_row(result) for result in matrix.results],
    }


def _row(result: RowResult) -> dict[str, Any]:
    return {
        "name": result.row.name,
        "title": result.row.title,
        "kind": result.row.kind,
        "expected": result.row.outcome.value,
        "expected_findings": [e.model_dump(mode="json") for e in result.row.findings],
        "right": result.is_right,
        "problems": list(result.problems),
        "witnesses": {name: worst.value for name, worst in result.worst_by_witness().items()},
        "runs": [
            {
                "outcome": run.outcome.value,
                "wall_s": round(run.wall_s, 2),
                "findings": [_finding(seen) for seen in run.findings if not _is_quiet(seen)],
            }
            for run in result.runs
        ],
    }


def _is_quiet(seen: Seen) -> bool:
    return seen.outcome is Outcome.PASS and not seen.notes


def _finding(seen: Seen) -> dict[str, Any]:
    found = msgspec.to_builtins(seen)
    return {key: found[key] for key in _KEPT}


def compact(document: dict[str, Any]) -> str:
    """One line a fault model, from the document: the table of the README."""
    models: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        if row["kind"] == "fault":
            models.setdefault(row["name"].split()[0], []).append(row)
    heads = ["fault", "what happens (first variant)", "rows", "verdict", *WITNESSES]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, rows in models.items():
        right = sum(row["right"] for row in rows)
        verdicts = ", ".join(dict.fromkeys(row["expected"] for row in rows))
        cells = [_worst_mark([row["witnesses"].get(word) for row in rows]) for word in WITNESSES]
        words = [name, rows[0]["title"], f"{right}/{len(rows)}", verdicts, *cells]
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def _worst_mark(outcomes: list[str | None]) -> str:
    said = [Outcome(outcome) for outcome in outcomes if outcome is not None]
    return _MARKS[min(said, key=SEVERITY.index).value] if said else ""


def render_json(matrix: Matrix) -> str:
    """The document as text."""
    return json.dumps(document(matrix), indent=1, sort_keys=True) + "\n"

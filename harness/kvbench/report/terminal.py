"""The terminal report: the verdict first, then the phases, what was found, and what to do next.

Every word of it comes from the same rows as the Markdown report; narrow terminals fold the cells.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvbench.checks.common import SETUP
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger import Ledger
from kvbench.report.header import has_host_copies, is_fake
from kvbench.report.markdown import not_proved
from kvbench.report.tables import PhaseRow, Rate, phase_rows
from kvbench.report.text import MISSING, milliseconds, nats, share, whole
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.scenario.engines import FAKE_WORDS
from kvbench.verdict import Verdict

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.ERROR: "bold red",
    Outcome.ABORTED: "red",
    Outcome.INVALID: "yellow",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.SKIPPED: "yellow",
}
MAX_PROBLEMS = 12
"""Findings other than passes that are printed; the rest is counted and stands in the report."""


def _style(word: str) -> str:
    return next((style for outcome, style in STYLES.items() if outcome.value == word), "")


HEADS = ("arm", "phase", "local", "external", "equal", "max |Δ|", "TTFT p50", "")
"""Columns; local and external are hit tokens / queried tokens, the shares stand in report.md."""


def _of_queries(value: Rate) -> str:
    return f"{whole(value.hits)}/{whole(value.queries)}" if value.queries is not None else MISSING


def _phases(rows: list[PhaseRow]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for head in HEADS:
        grid.add_column(head, overflow="fold")
    for row in rows:
        name = row.phase if row.engine is None else f"  engine {row.engine}"
        identical = "-" if row.identical is None else share(row.identical, row.answers)
        grid.add_row(
            row.arm,
            name,
            _of_queries(row.local),
            _of_queries(row.external),
            identical,
            nats(row.max_delta_nats),
            milliseconds(row.ttft_p50_s),
            Text(row.verdict, style=_style(row.verdict)),
        )
    return grid


def _lines() -> Table:
    """A word and a text that wraps beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True, min_width=12)
    grid.add_column(overflow="fold")
    return grid


def _add_finding(grid: Table, finding: Finding) -> None:
    place = " / ".join(word for word in (finding.stage, finding.arm, finding.phase) if word != "-")
    text = Text(finding.reason)
    if place:
        text.append(f"  ({place})", style="dim")
    grid.add_row(Text(finding.outcome.value, style=STYLES[finding.outcome]), text)


def _passes(verdict: Verdict) -> str:
    passed = [finding for finding in verdict.findings if finding.outcome is Outcome.PASS]
    claims = dict.fromkeys(finding.claim for finding in passed if finding.claim != SETUP)
    return f"{len(passed)} checks passed ({', '.join(claims) or 'set-up only'})"


def next_steps(ledger: Ledger, verdict: Verdict) -> list[str]:
    """What a person can do now."""
    checks = {f.check for f in verdict.findings if f.outcome is not Outcome.PASS}
    steps = []
    if verdict.outcome is Outcome.FAIL:
        steps.append("the findings name prompt, phase and journal line; report.md has every prompt")
    if verdict.outcome in (Outcome.ERROR, Outcome.ABORTED):
        logs = [life.started.log for life in ledger.lives if life.failed and life.started.log]
        steps += [f"read the server's log in the record: {log}" for log in logs]
    if "settings_effective" in checks or "connector_effective" in checks:
        steps.append("compare engine and connector of the scenario with the settings named above")
    if "record_sealed" in checks:
        steps.append("judge the record as it was written, or run the scenario again")
    if ledger.is_interrupted:
        steps.append("run the scenario again; an interrupted run proves nothing")
    return steps


def show(ledger: Ledger, verdict: Verdict, console: Console) -> None:
    """Print the report of a record."""
    style = STYLES[verdict.outcome]
    console.print()
    console.print(
        f"[{style}]{verdict.outcome.value.upper()}[/{style}] {escape(ledger.run.scenario_name)}"
        f" (exit code {verdict.exit_code})"
    )
    if is_fake(ledger):
        console.print(f"[bold yellow]{FAKE_WORDS}[/bold yellow]")
    if has_host_copies(ledger):
        console.print(f"[dim]{HOST_COPY_NOTE}[/dim]")
    rows = phase_rows(ledger, verdict)
    for stage in dict.fromkeys(row.stage for row in rows):
        console.print(f"\n[bold]{escape(stage)}[/bold]")
        console.print(_phases([row for row in rows if row.stage == stage]))
    console.print()
    grid = _lines()
    problems = [f for f in verdict.findings if f.outcome is not Outcome.PASS]
    for finding in problems[:MAX_PROBLEMS]:
        _add_finding(grid, finding)
    if len(problems) > MAX_PROBLEMS:
        grid.add_row("", f"and {len(problems) - MAX_PROBLEMS} more in report.md")
    grid.add_row(Text("pass", style=STYLES[Outcome.PASS]), Text(_passes(verdict)))
    for line in not_proved(ledger, verdict):
        grid.add_row(Text("not proved", style="dim"), Text(line, style="dim"))
    for step in next_steps(ledger, verdict):
        grid.add_row("next", Text(step))
    console.print(grid)

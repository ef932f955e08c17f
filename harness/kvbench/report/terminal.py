"""The terminal report: the verdict first, then the phases, what was found, and what to do next.

Every word of it comes from the same rows as the Markdown report; narrow terminals fold the cells.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench.checks.common import SETUP
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger import Ledger
from kvbench.report.header import has_host_copies
from kvbench.report.markdown import not_proved
from kvbench.report.tables import PhaseRow, phase_rows
from kvbench.report.text import milliseconds, nats, rate, share
from kvbench.scenario.connectors import HOST_COPY_NOTE
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


def _phases(rows: list[PhaseRow]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in (
        "arm",
        "phase",
        "local hits",
        "external hits",
        "identical",
        "max |Δ|",
        "TTFT p50",
        "",
    ):
        grid.add_column(head, overflow="fold")
    for row in rows:
        name = row.phase if row.engine is None else f"  engine {row.engine}"
        identical = "-" if row.identical is None else share(row.identical, row.answers)
        style = _style(row.verdict)
        word = f"[{style}]{row.verdict}[/{style}]" if style else row.verdict
        grid.add_row(
            row.arm,
            name,
            rate(row.local),
            rate(row.external),
            identical,
            nats(row.max_delta_nats),
            milliseconds(row.ttft_p50_s),
            word,
        )
    return grid


def _show_finding(console: Console, finding: Finding) -> None:
    style = STYLES[finding.outcome]
    place = " / ".join(word for word in (finding.stage, finding.arm, finding.phase) if word != "-")
    console.print(
        f"[{style}]{finding.outcome.value:>12}[/{style}]  {escape(finding.reason)}"
        + (f"  [dim]({escape(place)})[/dim]" if place else "")
    )


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
        logs = [life.started.log for life in ledger.lives if life.failed]
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
    if has_host_copies(ledger):
        console.print(f"[dim]{HOST_COPY_NOTE}[/dim]")
    rows = phase_rows(ledger, verdict)
    for stage in dict.fromkeys(row.stage for row in rows):
        console.print(f"\n[bold]{escape(stage)}[/bold]")
        console.print(_phases([row for row in rows if row.stage == stage]))
    console.print()
    problems = [f for f in verdict.findings if f.outcome is not Outcome.PASS]
    for finding in problems[:MAX_PROBLEMS]:
        _show_finding(console, finding)
    if len(problems) > MAX_PROBLEMS:
        console.print(f"              and {len(problems) - MAX_PROBLEMS} more in report.md")
    console.print(f"[green]{'pass':>12}[/green]  {escape(_passes(verdict))}")
    for line in not_proved(ledger, verdict):
        console.print(f"[dim]{'not proved':>12}  {escape(line)}[/dim]")
    for step in next_steps(ledger, verdict):
        console.print(f"{'next':>12}  {escape(step)}")

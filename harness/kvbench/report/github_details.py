"""The folded parts of a pull request's block: findings with their evidence, logs, notes, commands.

They are ranked, because a comment has a limit: what explains a failure goes last.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from kvbench.checks.finding import Finding, Outcome
from kvbench.events import LifeFailed
from kvbench.ledger import Ledger, Life
from kvbench.report.fitting import Part
from kvbench.report.gfm import bold, clean, clipped, code, fence, item, text
from kvbench.report.github_blocks import verdict_markup
from kvbench.verdict import Verdict

VITAL, PROBLEMS, LOGS, NOTES, PASSES, COMMANDS = 1, 3, 4, 5, 8, 9
"""Ranks: the higher goes the sooner."""
MAX_LOG_LINES: Final = 40
MAX_LOG_LINE_CHARACTERS: Final = 300
MAX_EVIDENCE: Final = 6


def place_words(finding: Finding) -> str:
    """Where it was found, as markup."""
    words = [word for word in (finding.stage, finding.arm, finding.phase) if word != "-"]
    return text(" / ".join(words) or "run", most=120)


def finding_words(finding: Finding, *, most: int = 700) -> str:
    """A finding as an item of a list, its reason at most so many characters long."""
    outcome = finding.outcome.value
    mark = bold("FAIL") if finding.outcome is Outcome.FAIL else verdict_markup(outcome)
    reason = text(finding.reason, most=most)
    return f"- {mark} {code(finding.check)} ({place_words(finding)}): {reason}"


def _evidence_words(finding: Finding) -> str:
    shown = ", ".join(code(each) for each in finding.evidence[:MAX_EVIDENCE])
    rest = len(finding.evidence) - MAX_EVIDENCE
    return f"{shown} and {rest} more" if rest > 0 else shown


def _full(finding: Finding) -> str:
    """The item with what was expected and seen, where it is written, and its notes."""
    lines = [finding_words(finding)]
    if finding.outcome is not Outcome.PASS:
        if finding.expected or finding.observed:
            expected, observed = finding.expected or "n/a", finding.observed or "n/a"
            lines.append(f"  - expected {text(expected)}; observed {text(observed)}")
        if finding.evidence:
            lines.append(f"  - evidence: {_evidence_words(finding)}")
    lines += [f"  - note: {text(note)}" for note in finding.notes]
    return "\n".join(lines)


def _listed(summary: str, rows: Sequence[str], what: str, rank: int) -> list[Part]:
    if not rows:
        return []
    return [Part((), tuple(rows), ("",), what, rank, fold=f"{summary} ({len(rows):,})")]


def _log_part(life: Life, failed: LifeFailed) -> Part:
    lines = clean(failed.log_tail).splitlines()[-MAX_LOG_LINES:]
    shown = [clipped(line, MAX_LOG_LINE_CHARACTERS) for line in lines]
    opening, *rows, closing = fence(shown, "text")
    status = "n/a" if failed.exit_status is None else failed.exit_status
    phase = f"in {text(failed.phase, most=60)}" if failed.phase else "at the start"
    name = f"{text(life.id)} ({text(life.arm_words, most=60)})"
    log = f"The whole log: {code(life.started.log)} in the record." if life.started.log else ""
    message = f"{item(failed.message, most=700)} (exit status {status}). {log}"
    return Part(
        head=(message, "", opening),
        rows=tuple(rows),
        tail=(closing, ""),
        what=f"log lines of {name}",
        rank=LOGS,
        fold=f"Last log lines of {name}, which failed {phase}",
        keeps_end=True,
    )


def _command_rows(ledger: Ledger) -> list[str]:
    """What each server was started with; an environment only where the scenario sets one."""
    rows = []
    for life in ledger.lives:
        env = [f"{name}={value}" for name, value in sorted(life.started.env.items())]
        words = clipped(clean(shlex.join([*env, *life.started.argv])), 3_000)
        rows += [f"# {life.id} ({clean(life.arm_words)})", words.replace("\n", " ")]
    return rows


def command_parts(ledger: Ledger) -> list[Part]:
    """The commands of the servers, as they were recorded."""
    if not ledger.lives:
        return []
    opening, *rows, closing = fence(_command_rows(ledger), "sh")
    fold = "Commands of the servers, secrets masked"
    what = "commands of the servers"
    return [Part((opening,), tuple(rows), (closing, ""), what, COMMANDS, fold=fold)]


def detail_parts(ledger: Ledger, verdict: Verdict) -> list[Part]:
    """Everything that explains, in the order in which a reader asks for it.

    Skipped phases are not among it: they stand, a line a reason, in what is not proved.
    """
    quiet = (Outcome.PASS, Outcome.SKIPPED)
    problems = [f for f in verdict.findings if f.outcome not in quiet]
    passes = [f for f in verdict.findings if f.outcome is Outcome.PASS]
    unclaimed = [_full(f) for f in verdict.unclaimed]
    notes = list(ledger.scenario.notes) if ledger.scenario is not None else []
    notes += [note.text for _, note in ledger.notes]
    logs = [_log_part(life, failed) for life in ledger.lives for _, failed in life.failed]
    return [
        *_listed("Findings with evidence", [_full(f) for f in problems], "findings", PROBLEMS),
        *logs,
        *_listed("Notes", [f"- {item(note)}" for note in notes], "notes", NOTES),
        *_listed("Not claimed, so notes only", unclaimed, "notes on what is not claimed", NOTES),
        *_listed("Passed checks", [_full(f) for f in passes], "passed checks", PASSES),
    ]

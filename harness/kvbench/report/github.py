"""The block for a pull request: verdict, conditions, tables, folded details, what is not proved.

A pure function of the record, like the report, of which it is the part that a reviewer reads: what
is cut to fit into a comment is said, and stands whole in `report.md`. Nothing that a scenario or a
log says can notify anybody or break a table (`gfm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvbench.checks.common import SETUP
from kvbench.checks.finding import Finding, Outcome
from kvbench.events import SCHEMA_VERSION
from kvbench.ledger import Ledger
from kvbench.report import provenance
from kvbench.report.fitting import LIMIT_BYTES, Part, cut_words, document, fitted, size_bytes
from kvbench.report.gfm import Column, bold, code, fence, item, table_head, table_row, text
from kvbench.report.github_accuracy import band_parts, prompt_parts
from kvbench.report.github_blocks import verdict_markup
from kvbench.report.github_details import (
    VITAL,
    command_parts,
    detail_parts,
    finding_words,
    place_words,
)
from kvbench.report.github_phases import phase_parts
from kvbench.report.github_tools import agent_parts, evaluation_parts
from kvbench.report.header import has_host_copies, is_fake
from kvbench.report.markdown import not_proved
from kvbench.report.tables import band_rows, phase_rows, prompt_rows
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.scenario.engines import FAKE_WORDS
from kvbench.scenario.models import Claim
from kvbench.verdict import SEVERITY, Verdict

MARKS: Final = {Outcome.PASS: "✅", Outcome.FAIL: "❌", Outcome.ERROR: "❌"}
DOUBT: Final = "⚠️"
MAX_OPEN_FINDINGS: Final = 5
"""Findings that are no pass and stand in the open; all of them are folded below."""
MAX_REASON_CHARACTERS: Final = 500
MAX_OPEN_CHARACTERS: Final = 300
RESERVED_BYTES: Final = 2_000
"""for the footer's list of what was cut"""


# ---- the verdict -----------------------------------------------------------------------------


def _reason(verdict: Verdict) -> str:
    """One sentence: the finding that decided, or what the passes prove."""
    first = verdict.first
    if first is None:
        return "nothing was checked"
    if verdict.outcome is not Outcome.PASS:
        place = place_words(first)
        return f"{text(first.reason, most=MAX_REASON_CHARACTERS)} ({place})"
    claims = dict.fromkeys(str(f.claim) for f in verdict.findings if f.claim != SETUP)
    return f"{len(verdict.findings)} checks passed; proved: {text(', '.join(claims))}"


def _failures(ledger: Ledger) -> list[str]:
    """Why engines ended, which the finding about the whole run does not repeat."""
    failed = [(life, each) for life in ledger.lives for _, each in life.failed]
    lines = [
        f"- {text(life.id)} ({text(life.arm_words, most=60)}): "
        f"{text(each.message, most=MAX_REASON_CHARACTERS)}"
        for life, each in failed[:MAX_OPEN_FINDINGS]
    ]
    rest = len(failed) - len(lines)
    return [*lines, *([f"- and {rest} more"] if rest else []), ""] if lines else []


def _alerts(ledger: Ledger) -> list[str]:
    """What a reader must know before any number."""
    found = []
    if is_fake(ledger):
        found.append(("CAUTION", bold(text(FAKE_WORDS))))
    if ledger.is_interrupted:
        found.append(("WARNING", "The run was interrupted: this is what was measured until then."))
    if ledger.seal.state == "broken":
        files = text(", ".join(ledger.seal.files), most=300)
        found.append(("WARNING", f"The record was changed after the run: {files}"))
    if faults := provenance.injected_faults(ledger):
        found.append(("WARNING", f"Faults were injected on purpose: {text('; '.join(faults))}"))
    if has_host_copies(ledger):
        found.append(("NOTE", text(HOST_COPY_NOTE)))
    return [line for kind, words in found for line in (f"> [!{kind}]", f"> {words}", "")]


def _head(ledger: Ledger, verdict: Verdict) -> Part:
    mark = MARKS.get(verdict.outcome, DOUBT)
    name = text(ledger.run.scenario_name, most=80)
    title = text(ledger.scenario.title, most=200) if ledger.scenario is not None else ""
    lines = [
        f"## {mark} {verdict.outcome.value.upper()}: {name}",
        "",
        f"{bold(_reason(verdict))} (exit code {verdict.exit_code})",
        "",
    ]
    lines += [f"Scenario: {title}", ""] if title else []
    return Part((*lines, *_failures(ledger), *_alerts(ledger)))


# ---- claims ----------------------------------------------------------------------------------

CLAIM_COLUMNS: Final = (
    Column("stage", right=False),
    Column("claim", right=False),
    Column("verdict", right=False),
    Column("checks passed"),
    Column("why", right=False),
)


def _claim_cells(stage: str, claim: str, findings: Sequence[Finding]) -> list[str]:
    worst = min(findings, key=lambda finding: SEVERITY.index(finding.outcome))
    passed = sum(finding.outcome is Outcome.PASS for finding in findings)
    why = "" if worst.outcome is Outcome.PASS else text(worst.reason, most=200)
    name = "set-up of the measurement" if claim == SETUP else text(claim)
    cells = [text(stage, most=60), name, verdict_markup(worst.outcome.value)]
    return [*cells, f"{passed}/{len(findings)}", why]


def _claims(verdict: Verdict) -> Part:
    """What each stage set out to prove, and what came of it."""
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in verdict.findings:
        stages = [stage for stage in finding.stage.split("+") if stage != "-"] or ["whole run"]
        for stage in stages:
            grouped.setdefault((stage, str(finding.claim)), []).append(finding)
    order = [*map(str, Claim), SETUP]
    ordered = sorted(grouped.items(), key=lambda each: (each[0][0], order.index(each[0][1])))
    cells = [_claim_cells(stage, claim, findings) for (stage, claim), findings in ordered]
    shown = len(CLAIM_COLUMNS) if any(row[-1] for row in cells) else len(CLAIM_COLUMNS) - 1
    rows = tuple(table_row(row[:shown]) for row in cells)
    return Part((*table_head(CLAIM_COLUMNS[:shown]),), rows, ("",), "claims", VITAL)


def _open_findings(verdict: Verdict) -> list[Part]:
    """What is no pass, each check once per arm; the other phases in which it says so are named."""
    grouped: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in verdict.findings:
        if finding.outcome not in (Outcome.PASS, Outcome.SKIPPED):
            key = (finding.outcome.value, finding.check, finding.stage, finding.arm)
            grouped.setdefault(key, []).append(finding)
    if not grouped:
        return []
    rows = [_alike(findings) for findings in list(grouped.values())[:MAX_OPEN_FINDINGS]]
    rest = len(grouped) - len(rows)
    tail = (f"- and {rest} more, folded below",) if rest else ()
    is_defect = verdict.outcome in (Outcome.FAIL, Outcome.ERROR, Outcome.ABORTED)
    head = ("### What is wrong" if is_defect else "### Why it proves too little", "")
    return [Part(head, tuple(rows), (*tail, ""), "what is wrong", VITAL)]


def _alike(findings: Sequence[Finding]) -> str:
    """One finding, and where the same check says the like."""
    words = finding_words(findings[0], most=MAX_OPEN_CHARACTERS)
    phases = dict.fromkeys(each.phase for each in findings[1:])
    return f"{words}; likewise in {text(', '.join(phases), most=120)}" if phases else words


# ---- conditions ------------------------------------------------------------------------------


def _conditions(ledger: Ledger) -> Part:
    columns = (Column("what", right=False), Column("as recorded", right=False))
    rows = [table_row([fact.name, fact.value]) for fact in provenance.facts(ledger)]
    shell = fence(provenance.commands(ledger), "sh")
    note = "To measure it again, from the record or as it was typed (secrets stay masked):"
    head = ("### Conditions", "", *table_head(columns))
    return Part(head, tuple(rows), ("", note, "", *shell, ""), "conditions", VITAL)


# ---- the end ---------------------------------------------------------------------------------


def _unproved(ledger: Ledger, verdict: Verdict) -> Part:
    lines = [f"- {item(line, most=MAX_REASON_CHARACTERS)}" for line in not_proved(ledger, verdict)]
    rows = tuple(lines) or ("- nothing is left open",)
    return Part(("### Not proved", ""), rows, ("",), "what is not proved", VITAL)


def _footer(ledger: Ledger, parts: Sequence[Part]) -> list[str]:
    record = provenance.record_folder(ledger)
    whole = f"{code('report.md')} in the record, or {code(f'kvbench report {record}')}"
    schema = ledger.run.schema
    words = [f"record {code(record)}", f"seal {ledger.seal.state}", f"journal schema {schema}"]
    if schema != SCHEMA_VERSION:
        words.append(f"read with schema {SCHEMA_VERSION}")
    lines = []
    if gone := cut_words(parts):
        listed = "; ".join(gone)
        lines = [f"{bold('Cut to fit into a comment:')} {listed}. Whole: {whole}.", ""]
    words.append(f"all tables: {whole}")
    return [*lines, f"<sub>{' · '.join(words)}</sub>"]


def _parts(ledger: Ledger, verdict: Verdict) -> list[Part]:
    """All parts in their order: the tables of the stages, then everything that is folded."""
    phases = phase_rows(ledger, verdict)
    hits = phase_parts(ledger, phases)
    tools = [*evaluation_parts(ledger, phases), *agent_parts(ledger, phases)]
    bands = band_parts(ledger, band_rows(ledger))
    sections = (("Hits per phase", hits), ("Evaluations and load", tools), ("Accuracy", bands))
    parts = [_head(ledger, verdict), _claims(verdict), *_open_findings(verdict)]
    parts.append(_conditions(ledger))
    for title, group in sections:
        shown = [part for part in group if not part.fold]
        parts += [Part((f"### {title}", "")), *shown] if shown else []
    parts.append(Part(("### Details", "")))
    parts += detail_parts(ledger, verdict)
    parts += prompt_parts(prompt_rows(ledger, verdict))
    parts += sorted((each for each in (*hits, *bands) if each.fold), key=lambda each: each.rank)
    parts += [*command_parts(ledger), _unproved(ledger, verdict)]
    return parts


def render(ledger: Ledger, verdict: Verdict, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """The block as GitHub's Markdown, at most `limit_bytes` long in UTF-8."""
    parts = _parts(ledger, verdict)
    lines = [*document(parts), *_footer(ledger, parts)]
    reserved = 0
    while size_bytes(lines) > limit_bytes and reserved < limit_bytes:
        reserved += RESERVED_BYTES  # the footer says what was cut, and grows with it
        kept = fitted(parts, limit_bytes=limit_bytes - reserved)
        lines = [*document(kept), *_footer(ledger, kept)]
    return "\n".join(lines) + "\n"

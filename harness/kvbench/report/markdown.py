"""The Markdown report: T0 header, T1 phases, prompts, T4 accuracy bands, findings, what is not
proved.

A pure function of the record, so the same record gives the same bytes. Also of one that was
interrupted: it then shows what was measured until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger import Ledger
from kvbench.report.header import has_host_copies, is_fake, life_facts, run_facts
from kvbench.report.tables import BandRow, PhaseRow, PromptRow, band_rows, phase_rows, prompt_rows
from kvbench.report.text import MISSING, milliseconds, nats, one_line, rate, share, whole
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.scenario.engines import FAKE_WORDS
from kvbench.verdict import Verdict

MARKS = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "**FAIL**",
    Outcome.INCONCLUSIVE: "inconclusive",
    Outcome.INVALID: "invalid",
    Outcome.ABORTED: "aborted",
    Outcome.ERROR: "**error**",
    Outcome.SKIPPED: "skipped",
}


def _line(text: str) -> str:
    """Text of an engine or a scenario on one line, with nothing in it that reads as HTML."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line(text))


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(' --- ' for _ in heads)}|"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return lines


PHASE_HEADS = (
    "arm",
    "phase",
    "requests",
    "prompt tokens",
    "max possible hit",
    "local hits/queries",
    "external hits/queries",
    "computed tokens",
    "cached_tokens (usage)",
    "preemptions",
    "identical to fresh",
    "first divergence",
    "max \\|Δ logprob\\| (nats)",
    "TTFT p50",
    "verdict",
)


def _phase_cells(row: PhaseRow) -> tuple[str, ...]:
    name = row.phase if row.engine is None else f"{row.phase}, engine {row.engine}"
    return (
        row.arm,
        name,
        whole(row.requests if row.engine is None else None),
        whole(row.prompt_tokens),
        whole(row.max_hit_tokens),
        rate(row.local),
        rate(row.external),
        whole(row.computed_tokens),
        whole(row.cached_tokens),
        whole(row.preemptions),
        "-" if row.identical is None else share(row.identical, row.answers),
        "-" if row.first_divergence is None else str(row.first_divergence),
        nats(row.max_delta_nats),
        milliseconds(row.ttft_p50_s),
        row.verdict,
    )


def _prompt_table(rows: Sequence[PromptRow]) -> list[str]:
    phases = list(dict.fromkeys(phase for row in rows for phase in row.hits))
    heads = ["prompt", "prompt tokens", "max possible hit", *phases]
    heads += ["max \\|Δ logprob\\| against GPU hit", "verdict"]
    cells = [
        [
            row.prompt,
            whole(row.prompt_tokens),
            whole(row.max_hit_tokens),
            *(row.hits.get(phase, MISSING) for phase in phases),
            nats(row.max_delta_nats),
            row.verdict,
        ]
        for row in rows
    ]
    return table(heads, cells)


BAND_HEADS = (
    "arm",
    "concurrency",
    "comparison",
    "prompts",
    "prompt tokens",
    "positions",
    "top-1 equal",
    "tokens equal",
    "first divergence",
    "max \\|Δ logprob\\|",
    "mean \\|Δ logprob\\|",
    "missing from top-k",
    "band",
    "inside band?",
)


def _band_cells(row: BandRow) -> tuple[str, ...]:
    lengths = MISSING if row.prompt_tokens is None else "–".join(map(str, row.prompt_tokens))
    return (
        row.arm,
        str(row.concurrency),
        row.comparison,
        str(row.prompts),
        lengths,
        str(row.positions),
        f"{row.top1_equal}/{row.top1_total}",
        f"{row.tokens_equal}/{row.answers}",
        "-" if row.first_divergence is None else str(row.first_divergence),
        nats(row.max_nats),
        nats(row.mean_nats),
        str(row.missing),
        nats(row.band_nats),
        row.inside,
    )


def _finding_lines(finding: Finding) -> list[str]:
    place = " / ".join(word for word in (finding.stage, finding.arm, finding.phase) if word != "-")
    head = f"- {MARKS[finding.outcome]} `{finding.check}` ({place or 'run'}): {finding.reason}"
    lines = [_line(head)]
    if finding.outcome is not Outcome.PASS:
        if finding.expected or finding.observed:
            expected, observed = finding.expected or MISSING, finding.observed or MISSING
            lines.append(_line(f"  - expected {expected}; observed {observed}"))
        if finding.evidence:
            lines.append(f"  - evidence: {', '.join(finding.evidence)}")
    lines += [_line(f"  - note: {note}") for note in finding.notes]
    return lines


def _skipped_lines(verdict: Verdict) -> list[str]:
    """Skipped phases, one line a reason: a dead engine skips all that was left."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for finding in verdict.findings:
        if finding.outcome is Outcome.SKIPPED:
            what, _, why = finding.reason.partition(" was skipped: ")
            by_reason.setdefault((finding.arm, why), []).append(what)
    return [
        one_line(f"setup: arm {arm}: {len(what)} skipped ({', '.join(what)}): {why}")
        for (arm, why), what in by_reason.items()
    ]


def not_proved(ledger: Ledger, verdict: Verdict) -> list[str]:
    """What a reader must not conclude from this run, one plain line each, with no markup."""
    lines = [
        one_line(f"{finding.claim}: {finding.reason}")
        for finding in verdict.findings
        if finding.outcome in (Outcome.INCONCLUSIVE, Outcome.INVALID)
    ]
    lines += _skipped_lines(verdict)
    for stage in dict.fromkeys(stage for stage, _ in ledger.pairs):
        claimed = {str(claim) for claim in ledger.claims(stage)}
        missing = [
            c
            for c in ("alive", "hits", "identity", "logprobs", "score", "performance")
            if c not in claimed
        ]
        if ledger.control_of(stage) is None and "identity" in claimed:
            why = "an answer that is wrong from its first fresh run on cannot be seen"
            lines.append(f"identity: no control arm ran in stage {stage}: {why}")
        if missing:
            lines.append(f"not claimed by stage {stage}: {', '.join(missing)}")
    if is_fake(ledger):
        lines.append(f"anything about vLLM: {FAKE_WORDS}")
    if has_host_copies(ledger):
        lines.append(f"speed: {HOST_COPY_NOTE}")
    return lines


def _header(ledger: Ledger, verdict: Verdict) -> list[str]:
    scenario = ledger.scenario
    title = scenario.title if scenario is not None else ledger.run.scenario_name
    lines = [
        f"# {_line(title)}",
        "",
        f"**{verdict.outcome.value.upper()}** (exit code {verdict.exit_code})",
    ]
    if verdict.first is not None and verdict.outcome is not Outcome.PASS:
        lines[-1] += _line(f": {verdict.first.reason}")
    if ledger.is_interrupted:
        lines += ["", "The run was interrupted; this is what was measured until then."]
    lines += ["", "## What was measured", ""]
    lines += [f"- {name}: {words}" for name, words in run_facts(ledger)]
    for life in ledger.lives:
        lines.append(f"- server {life.id} (arms: {', '.join(life.arms) or '-'})")
        lines += [f"  - {name}: {words}" for name, words in life_facts(ledger, life)]
    return lines


def _phases(rows: Sequence[PhaseRow]) -> list[str]:
    lines = []
    for stage in dict.fromkeys(row.stage for row in rows):
        cells = [_phase_cells(row) for row in rows if row.stage == stage]
        lines += ["", f"## Phases of stage {stage}", "", *table(PHASE_HEADS, cells)]
    return lines


def _prompts(rows: Sequence[PromptRow]) -> list[str]:
    lines = []
    for key in dict.fromkeys((row.stage, row.arm, row.concurrency) for row in rows):
        stage, arm, concurrency = key
        mine = [row for row in rows if (row.stage, row.arm, row.concurrency) == key]
        lines += ["", f"## Prompts: stage {stage}, arm {arm}, concurrency {concurrency}", ""]
        lines += ["Hit tokens as local + external.", "", *_prompt_table(mine)]
    return lines


def _bands(rows: Sequence[BandRow]) -> list[str]:
    lines = []
    for stage in dict.fromkeys(row.stage for row in rows):
        cells = [_band_cells(row) for row in rows if row.stage == stage]
        lines += ["", f"## Accuracy bands of stage {stage}", "", *table(BAND_HEADS, cells)]
    return lines


def render(ledger: Ledger, verdict: Verdict) -> str:
    """The whole report."""
    lines = _header(ledger, verdict)
    if is_fake(ledger):
        lines += ["", f"> **{FAKE_WORDS}**"]
    if has_host_copies(ledger):
        lines += ["", f"> {HOST_COPY_NOTE}"]
    lines += _phases(phase_rows(ledger, verdict))
    lines += _prompts(prompt_rows(ledger, verdict))
    lines += _bands(band_rows(ledger))
    lines += ["", "## Findings", ""]
    lines += [line for finding in verdict.findings for line in _finding_lines(finding)]
    if verdict.unclaimed:
        lines += ["", "Not claimed, so notes only:", ""]
        lines += [line for finding in verdict.unclaimed for line in _finding_lines(finding)]
    lines += ["", "## Not proved", ""]
    lines += [f"- {_line(line)}" for line in not_proved(ledger, verdict)] or [
        "- nothing is left open"
    ]
    notes = list(ledger.scenario.notes) if ledger.scenario is not None else []
    notes += [note.text for _, note in ledger.notes]
    if notes:
        lines += ["", "## Notes", "", *(_line(f"- {note}") for note in notes)]
    return "\n".join(lines) + "\n"

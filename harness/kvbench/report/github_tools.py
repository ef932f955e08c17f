"""T2 and T3 for a pull request: rounds of an evaluation, and runs of AIPerf.

Three hit rates never share a name: the trace's own, the client's, and the server's per tier, whose
window has the warm-up in it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from kvbench.ledger import Ledger, Window
from kvbench.ledger.aiperf import CACHED_TOTAL, PROMPT_TOTAL, AgentRun
from kvbench.ledger.evaluation import FilterName, Round, rounds_of
from kvbench.ledger.fields import Field
from kvbench.report.fitting import Part
from kvbench.report.gfm import Column, bold, table_head, table_row, text
from kvbench.report.github_blocks import OPEN, Block, verdict_markup
from kvbench.report.numbers import NO_BREAK, count, of, rate_of
from kvbench.report.tables import PhaseRow, Rate
from kvbench.report.text import MISSING

MAX_RUNS_SIDE_BY_SIDE: Final = 4
Rows = dict[tuple[str, str, str], PhaseRow]
"""Rows of T1 by stage, arm and phase: the server's counters and the verdict of a window."""


def rows_by_place(rows: Sequence[PhaseRow]) -> Rows:
    """The rows over all engines."""
    return {(row.stage, row.arm, row.phase): row for row in rows if row.engine is None}


def _row_of(window: Window, rows: Rows) -> PhaseRow | None:
    return rows.get((window.stage, window.arm, window.label))


def _server_rates(window: Window, rows: Rows) -> tuple[str, str]:
    row = _row_of(window, rows)
    local, external = (row.local, row.external) if row else (Rate(None, None), Rate(None, None))
    return rate_of(local), rate_of(external)


def _verdict(window: Window, rows: Rows) -> str:
    row = _row_of(window, rows)
    return verdict_markup(row.verdict) if row is not None else MISSING


# ---- T2 --------------------------------------------------------------------------------------

SCORE_COLUMNS: Final = (
    Column("round", right=False),
    Column("answered/asked"),
    Column("strict match (± se)"),
    Column("flexible match (± se)"),
    Column("unreadable: strict, flexible"),
    Column("cut, empty"),
    Column("since round 1: turned wrong, right"),
    Column("verdict", right=False),
)
TIER_COLUMNS: Final = (
    Column("round", right=False),
    Column("concurrency"),
    Column("reset before", right=False),
    Column("local hits/queries (tokens)"),
    Column("external hits/queries (tokens)"),
    Column("preemptions"),
)


def _score(each: Round, name: FilterName) -> str:
    found = each.filter(name)
    share, error = found.score, found.standard_error
    if share is None or error is None:
        return MISSING
    return f"{found.correct}/{found.scored} ({share:.3f}{NO_BREAK}±{NO_BREAK}{error:.3f})"


def _turned(first: Round, later: Round) -> str:
    """Questions whose answer turned wrong and right by the filter that scored them."""
    if first is later:
        return "-"
    name: FilterName = "strict" if later.filter("strict").scored else "flexible"
    pairs = [
        (first.by_doc[doc].correct(name), sample.correct(name))
        for doc, sample in later.by_doc.items()
        if doc in first.by_doc
    ]
    if not pairs or any(None in pair for pair in pairs):
        return MISSING
    wrong = sum(before is True and after is False for before, after in pairs)
    right = sum(before is False and after is True for before, after in pairs)
    return f"{wrong}, {right}"


def _score_row(each: Round, first: Round, rows: Rows) -> str:
    strict, flexible = each.filter("strict"), each.filter("flexible")
    invalid = [count(one.invalid if one.scored else None) for one in (strict, flexible)]
    return table_row(
        [
            _round_name(each),
            f"{count(len(each.by_doc))}/{count(each.asked)}",
            _score(each, "strict"),
            _score(each, "flexible"),
            ", ".join(invalid),
            f"{count(len(each.truncated))}, {count(len(each.empty))}",
            _turned(first, each),
            _verdict(each.window, rows),
        ]
    )


def _round_name(each: Round) -> str:
    name = str(each.number)
    return name if each.window.is_complete else f"{name} ({bold('unfinished')})"


def _resets(window: Window) -> str:
    """Tiers that the window's plan empties before it; the reset has a window of its own."""
    return text(window.planned.reset) if window.planned is not None else MISSING


def _tier_row(each: Round, rows: Rows) -> str:
    local, external = _server_rates(each.window, rows)
    row = _row_of(each.window, rows)
    return table_row(
        [
            _round_name(each),
            count(each.window.concurrency),
            _resets(each.window),
            local,
            external,
            count(row.preemptions if row is not None else None),
        ]
    )


def _task(rounds: Sequence[Round]) -> str:
    done = next((each.done for each in rounds if each.done is not None), None)
    if done is None:
        return ""
    shots = f"{MISSING if done.shots is None else done.shots} shots ({done.shots_kind or MISSING})"
    return ": " + text(f"{done.task} {done.task_version or MISSING}, {shots}")


def evaluation_parts(ledger: Ledger, rows: Sequence[PhaseRow]) -> list[Part]:
    """T2: per arm the rounds of an evaluation, what their scores are made of, and what hit."""
    parts = []
    placed = rows_by_place(rows)
    for stage, arm in ledger.pairs:
        windows = [each for each in ledger.windows if (each.stage, each.arm) == (stage, arm)]
        rounds = [each for window in windows for each in rounds_of(window)]
        if not rounds:
            continue
        block = Block(stage, arm)
        scores = [_score_row(each, rounds[0], placed) for each in rounds]
        tiers = [_tier_row(each, placed) for each in rounds]
        title = f"{bold(block.words)} ({ledger.role(arm)}){_task(rounds)}"
        head = (title, "", *table_head(SCORE_COLUMNS))
        parts.append(Part(head, tuple(scores), ("",), f"rounds of {block.words}", OPEN))
        what = f"tiers in the rounds of {block.words}"
        parts.append(Part(tuple(table_head(TIER_COLUMNS)), tuple(tiers), ("",), what, OPEN))
    return parts


# ---- T3 --------------------------------------------------------------------------------------


class AgentWindow(NamedTuple):
    """A run of AIPerf, and the window in which it ran."""

    run: AgentRun
    window: Window


Say = Callable[[AgentWindow, Rows], str]


def _field(found: Field[Any]) -> str:
    if isinstance(found.value, bool):
        return str(found.value).lower()
    return text(f"{found.value:,.4g}" if isinstance(found.value, float) else found.words)


def _metrics(unit: str, tag: str, *statistics: str) -> Say:
    """Statistics of a metric with their unit; where one is missing, why."""

    def say(each: AgentWindow, _: Rows) -> str:
        fields = [each.run.metric(tag, name) for name in statistics or ("avg",)]
        if not any(field.is_present for field in fields):
            return _field(fields[0])
        return f"{' / '.join(_field(field) for field in fields)} {unit}".strip()

    return say


def _requests(each: AgentWindow, _: Rows) -> str:
    run = each.run
    failed, records = run.metric("error_request_count"), run.records.is_present
    errors = sum(record.error is not None for record in run.profiled)
    cancelled = sum(record.was_cancelled for record in run.profiled)
    done = count(len(run.succeeded) if records else None)
    wrong = count(errors if records else failed.value)
    return f"{done} / {wrong} / {count(cancelled if records else None)}"


def _overflows(each: AgentWindow, _: Rows) -> str:
    """AIPerf names them only where there were any."""
    found = each.run.metric("skipped_context_overflow_count")
    if each.run.summary.is_present and found.state.value == "absent":
        return "none named"
    return _field(found)


def _cache_read(each: AgentWindow, _: Rows) -> str:
    cached, prompt = each.run.metric(CACHED_TOTAL), each.run.metric(PROMPT_TOTAL)
    if cached.value is None or prompt.value is None:
        return _field(cached if cached.value is None else prompt)
    return of(cached.value, prompt.value)


def _with_field(each: AgentWindow, _: Rows) -> str:
    if not each.run.records.is_present:
        return MISSING
    carrying = sum(record.cached_tokens.is_present for record in each.run.succeeded)
    return of(carrying, len(each.run.succeeded))


def _preemptions(each: AgentWindow, rows: Rows) -> str:
    row = _row_of(each.window, rows)
    return count(row.preemptions if row is not None else None)


AGENT_ROWS: Final[tuple[tuple[str, Say], ...]] = (
    ("verdict", lambda each, rows: _verdict(each.window, rows)),
    ("locked scenario", lambda each, _: _field(each.run.scenario)),
    ("preset", lambda each, _: text(each.run.done.preset or MISSING)),
    ("submission_valid", lambda each, _: _field(each.run.submission_valid)),
    ("reasons against it", lambda each, _: _reasons(each)),
    ("duration", _metrics("s", "benchmark_duration")),
    ("requests: done / failed / cancelled", _requests),
    ("longer than the model takes", _overflows),
    ("theoretical hit of the trace", _metrics("%", "theoretical_prefix_cache_hit")),
    ("client: cached / prompt tokens (AIPerf)", _cache_read),
    ("client: records with the cached field", _with_field),
    ("server: local hits/queries", lambda each, rows: _server_rates(each.window, rows)[0]),
    ("server: external hits/queries", lambda each, rows: _server_rates(each.window, rows)[1]),
    ("requests per second", _metrics("", "request_throughput")),
    ("output tokens per second", _metrics("", "output_token_throughput")),
    ("all tokens per second", _metrics("", "total_token_throughput")),
    ("TTFT p50 / p90 / p99", _metrics("ms", "time_to_first_token", "p50", "p90", "p99")),
    ("inter-token latency p50 / p90", _metrics("ms", "inter_token_latency", "p50", "p90")),
    ("whole request p50 / p90", _metrics("ms", "request_latency", "p50", "p90")),
    ("effective concurrency", _metrics("", "effective_concurrency")),
    ("preemptions", _preemptions),
)
WINDOW_NOTE: Final = (
    "The client's figures are those of the profiled requests; the server's window has the warm-up "
    "in it as well, so one is never subtracted from the other."
)


def _reasons(each: AgentWindow) -> str:
    found = each.run.submission_reasons
    return _field(found) if found.value is None else text(", ".join(found.value) or "none")


def _chunks(runs: Sequence[AgentWindow]) -> Iterator[list[AgentWindow]]:
    left = iter(runs)
    while chunk := list(islice(left, MAX_RUNS_SIDE_BY_SIDE)):
        yield chunk


def agent_parts(ledger: Ledger, rows: Sequence[PhaseRow]) -> list[Part]:
    """T3: runs of AIPerf side by side, per stage."""
    placed = rows_by_place(rows)
    by_stage: dict[str, list[AgentWindow]] = {}
    for window in ledger.windows:
        if window.agent_run is not None:
            found = AgentWindow(window.agent_run, window)
            by_stage.setdefault(window.stage, []).append(found)
    parts = []
    for stage, runs in by_stage.items():
        for chunk in _chunks(runs):
            heads = [f"{each.window.arm}, {each.window.label}" for each in chunk]
            columns = [Column("", right=False), *(Column(text(h, most=60)) for h in heads)]
            lines = [
                table_row([name, *(say(each, placed) for each in chunk)])
                for name, say in AGENT_ROWS
            ]
            name = text(stage, most=60)
            head = (bold(f"stage {name}"), "", *table_head(columns))
            tail = ("", WINDOW_NOTE, "")
            parts.append(Part(head, tuple(lines), tail, f"AIPerf in stage {name}", OPEN))
    return parts

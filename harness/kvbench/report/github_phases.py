"""T1 for a pull request: per arm and concurrency what hit where, narrow enough to be read at once.

The columns that decide stand in the open; counts and times, engine by engine, KV events and a
control arm that shows nothing are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvbench.checks.finding import Outcome
from kvbench.ledger import Ledger, Window
from kvbench.report.fitting import Part
from kvbench.report.gfm import Column, bold, table_row, text
from kvbench.report.github_blocks import (
    CONTROL,
    COUNTS,
    DELTA,
    ENGINES,
    OPEN,
    Block,
    Named,
    merged,
    table_part,
    verdict_markup,
    without_concurrency,
)
from kvbench.report.numbers import NO_BREAK, count, rate_of
from kvbench.report.tables import PhaseRow
from kvbench.report.text import milliseconds, nats, share

PHASE_COLUMNS: Final = (
    Column("phase", right=False),
    Column("max possible hit"),
    Column("local hits/queries"),
    Column("external hits/queries"),
    Column("identical to fresh"),
    Column(DELTA),
    Column("verdict", right=False),
)
COUNT_COLUMNS: Final = (
    Column("phase", right=False),
    Column("requests"),
    Column("prompt tokens"),
    Column("computed tokens"),
    Column("cached_tokens (usage)"),
    Column("preemptions"),
    Column("first divergence (position)"),
    Column("TTFT p50"),
)
ENGINE_COLUMNS: Final = (
    Column("phase", right=False),
    Column("engine"),
    Column("prompt tokens"),
    Column("local hits/queries"),
    Column("external hits/queries"),
    Column("computed tokens"),
    Column("preemptions"),
)
EVENT_COLUMNS: Final = (
    Column("phase", right=False),
    Column("blocks stored in the tier"),
    Column("removed from the tier"),
    Column("removed on the device"),
)


def _phase_cells(row: PhaseRow) -> tuple[str, ...]:
    return (
        count(row.max_hit_tokens),
        rate_of(row.local),
        rate_of(row.external),
        "-" if row.identical is None else share(row.identical, row.answers),
        nats(row.max_delta_nats),
        verdict_markup(row.verdict),
    )


def _phase_rows(rows: Sequence[PhaseRow], concurrency: int | None) -> list[str]:
    named = [
        Named(without_concurrency(row.phase, concurrency), _phase_cells(row))
        for row in rows
        if row.engine is None
    ]
    return [table_row([name, *first.cells]) for name, first in merged(named)]


def _engine_rows(rows: Sequence[PhaseRow], concurrency: int | None) -> list[str]:
    return [
        table_row(
            [
                text(without_concurrency(row.phase, concurrency)),
                text(row.engine),
                count(row.prompt_tokens),
                rate_of(row.local),
                rate_of(row.external),
                count(row.computed_tokens),
                count(row.preemptions),
            ]
        )
        for row in rows
        if row.engine is not None
    ]


def _event_row(ledger: Ledger, window: Window, phase: str) -> str:
    """Blocks that moved in a window; n/a where events are lost or nobody published any."""
    found = (ledger.kv_events or {}).get(window.life)
    events = found.windows.get(window.id) if found is not None else None
    kinds = (("BlockStored", True), ("BlockRemoved", True), ("BlockRemoved", False))
    numbers = [
        None if events is None or events.lossy_engines else events.blocks_of(name, host=host)
        for name, host in kinds
    ]
    return table_row([text(phase), *map(count, numbers)])


def _count_row(row: PhaseRow, phase: str) -> str:
    return table_row(
        [
            text(phase),
            count(row.requests),
            count(row.prompt_tokens),
            count(row.computed_tokens),
            count(row.cached_tokens),
            count(row.preemptions),
            "-" if row.first_divergence is None else count(row.first_divergence),
            milliseconds(row.ttft_p50_s).replace(" ", NO_BREAK),
        ]
    )


def _windows_by_place(ledger: Ledger) -> dict[tuple[str, str, str], Window]:
    return {
        (window.stage, window.arm, window.label): window
        for window in ledger.windows
        if not window.is_proof
    }


def _blocks(
    rows: Sequence[PhaseRow], windows: dict[tuple[str, str, str], Window]
) -> list[tuple[Block, list[PhaseRow]]]:
    """Rows by stage, arm and concurrency; phases that a tool drove stand in T2 and T3."""
    found: dict[Block, list[PhaseRow]] = {}
    for row in rows:
        window = windows.get((row.stage, row.arm, row.phase))
        if window is not None and window.is_tool_driven:
            continue
        concurrency = window.concurrency if window is not None else None
        found.setdefault(Block(row.stage, row.arm, concurrency), []).append(row)
    return list(found.items())


def _is_quiet_control(ledger: Ledger, block: Block, rows: Sequence[PhaseRow]) -> bool:
    """A control arm without a word against it need not stand in the open."""
    return ledger.role(block.arm) == "control" and all(
        row.verdict == Outcome.PASS.value and row.identical in (None, row.answers) for row in rows
    )


def phase_parts(ledger: Ledger, rows: Sequence[PhaseRow]) -> list[Part]:
    """T1: per arm and concurrency what hit where, and whether the answers are the same."""
    windows = _windows_by_place(ledger)
    blocks = _blocks(rows, windows)
    parts = []
    for block, mine in blocks:
        is_quiet = _is_quiet_control(ledger, block, mine)
        parts.append(
            table_part(
                f"{bold(block.words)} ({ledger.role(block.arm)}), hits in tokens",
                PHASE_COLUMNS,
                _phase_rows(mine, block.concurrency),
                f"phases of {block.words}",
                rank=CONTROL if is_quiet else OPEN,
                fold="Phases of the control" if is_quiet else "",
            )
        )
    parts += [_engines_part(block, mine) for block, mine in blocks]
    parts += [_counts_part(block, mine) for block, mine in blocks]
    if ledger.kv_events:
        parts += [_events_part(ledger, block, mine, windows) for block, mine in blocks]
    return [part for part in parts if part.rows]


def _engines_part(block: Block, rows: Sequence[PhaseRow]) -> Part:
    """Empty where a server has one engine."""
    lines = _engine_rows(rows, block.concurrency)
    what = f"engines of {block.words}"
    fold = "Engine by engine"
    return table_part(bold(block.words), ENGINE_COLUMNS, lines, what, rank=ENGINES, fold=fold)


def _counts_part(block: Block, rows: Sequence[PhaseRow]) -> Part:
    lines = [
        _count_row(row, without_concurrency(row.phase, block.concurrency))
        for row in rows
        if row.engine is None
    ]
    what = f"counts and times of {block.words}"
    fold = "Requests, computed tokens, preemptions, times"
    return table_part(bold(block.words), COUNT_COLUMNS, lines, what, rank=COUNTS, fold=fold)


def _events_part(
    ledger: Ledger,
    block: Block,
    rows: Sequence[PhaseRow],
    windows: dict[tuple[str, str, str], Window],
) -> Part:
    lines = [
        _event_row(ledger, window, without_concurrency(row.phase, block.concurrency))
        for row in rows
        if row.engine is None
        and (window := windows.get((row.stage, row.arm, row.phase))) is not None
    ]
    what = f"KV events of {block.words}"
    fold = "Blocks by KV events"
    return table_part(bold(block.words), EVENT_COLUMNS, lines, what, rank=COUNTS, fold=fold)

"""T1 and T4 for a pull request: a block per arm, narrow enough to be read without scrolling.

The columns that decide stand in the open; counts and times, per-prompt rows and the control arm are
folded. Runs of a phase that say the same share a row: each of them measured what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kvbench.checks.finding import Outcome
from kvbench.ledger import Ledger, Window
from kvbench.report.fitting import Part
from kvbench.report.gfm import Column, bold, code, table_head, table_row, text
from kvbench.report.numbers import NO_BREAK, count, rate_of
from kvbench.report.tables import BandRow, PhaseRow, PromptRow
from kvbench.report.text import MISSING, milliseconds, nats, share
from kvbench.verdict import SEVERITY

OPEN, CONTROL, ENGINES, PROMPTS, COUNTS = 2, 3, 4, 6, 7
"""Ranks of the tables: the higher goes the sooner."""

_EXPECTED = re.compile(r"(?P<seen>.+?)(?P<unit> cached)? \(expected (?P<wanted>.+)\)")
_RUN = re.compile(r"^(?P<kind>.+)-(?P<run>[0-9]+)$")
_DELTA: Final = "max &#124;Δ&nbsp;logprob&#124; (nats)"
_ORDER: Final = {outcome.value: place for place, outcome in enumerate(SEVERITY)}


class Block(NamedTuple):
    """A stage, an arm and a concurrency: what one table is about."""

    stage: str
    arm: str
    concurrency: int | None = None

    @property
    def words(self) -> str:
        """Its name, as markup."""
        words = f"stage {text(self.stage, most=60)}, arm {text(self.arm, most=60)}"
        return words if self.concurrency is None else f"{words}, concurrency {self.concurrency}"


def _block_of(row: PromptRow | BandRow) -> Block:
    return Block(row.stage, row.arm, row.concurrency)


def verdict_markup(word: str) -> str:
    """A verdict; what is no pass stands out."""
    return word if word == Outcome.PASS.value else bold(text(word))


def _without_concurrency(label: str, concurrency: int | None) -> str:
    return label.removesuffix(f" c{concurrency}") if concurrency is not None else label


class Named(NamedTuple):
    """A row or a column: the label of its phase, and its cells."""

    label: str
    cells: tuple[str, ...]

    @property
    def run(self) -> tuple[str, int] | None:
        """Kind and number of its run; None where it is no numbered one."""
        found = _RUN.match(self.label)
        return (found["kind"], int(found["run"])) if found is not None else None

    def follows(self, other: Named) -> bool:
        """True for the next run of the same kind, if it says the same."""
        if self.run is None or other.run is None or self.cells != other.cells:
            return False
        return self.run == (other.run[0], other.run[1] + 1)


def merged(rows: Sequence[Named]) -> Iterator[tuple[str, Named]]:
    """(name as markup, first of them) of neighbouring runs that say the same: `hot-1..2`."""
    held: list[Named] = []
    for row in rows:
        if held and not row.follows(held[-1]):
            yield _run_name(held), held[0]
            held = []
        held.append(row)
    if held:
        yield _run_name(held), held[0]


def _run_name(rows: Sequence[Named]) -> str:
    first, last = rows[0], rows[-1]
    number = "" if first is last or last.run is None else f"..{last.run[1]}"
    return text(f"{first.label}{number}")


# ---- T1 --------------------------------------------------------------------------------------

PHASE_COLUMNS: Final = (
    Column("phase", right=False),
    Column("max possible hit"),
    Column("local hits/queries"),
    Column("external hits/queries"),
    Column("identical to fresh"),
    Column(_DELTA),
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
        Named(_without_concurrency(row.phase, concurrency), _phase_cells(row))
        for row in rows
        if row.engine is None
    ]
    return [table_row([name, *first.cells]) for name, first in merged(named)]


def _engine_rows(rows: Sequence[PhaseRow], concurrency: int | None) -> list[str]:
    return [
        table_row(
            [
                text(_without_concurrency(row.phase, concurrency)),
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


def _event_cells(ledger: Ledger, window: Window | None) -> list[str]:
    found = (ledger.kv_events or {}).get(window.life) if window is not None else None
    events = found.windows.get(window.id) if found is not None and window is not None else None
    if events is None or events.lossy_engines:
        return [MISSING] * len(EVENT_COLUMNS)
    kinds = (("BlockStored", True), ("BlockRemoved", True), ("BlockRemoved", False))
    return [count(events.blocks_of(name, host=host)) for name, host in kinds]


def _count_row(ledger: Ledger, row: PhaseRow, window: Window | None, phase: str) -> str:
    cells = [
        text(phase),
        count(row.requests),
        count(row.prompt_tokens),
        count(row.computed_tokens),
        count(row.cached_tokens),
        count(row.preemptions),
        "-" if row.first_divergence is None else count(row.first_divergence),
        milliseconds(row.ttft_p50_s).replace(" ", NO_BREAK),
    ]
    return table_row(cells + (_event_cells(ledger, window) if ledger.kv_events else []))


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
    is_control = ledger.role(block.arm) == "control"
    return is_control and all(row.verdict == Outcome.PASS.value for row in rows)


def _table(
    title: str, columns: Sequence[Column], rows: Sequence[str], what: str, *, rank: int, fold: str
) -> Part:
    head = (title, "", *table_head(columns))
    return Part(head, tuple(rows), ("",), what=what, rank=rank, fold=fold)


def phase_parts(ledger: Ledger, rows: Sequence[PhaseRow]) -> list[Part]:
    """T1: per arm and concurrency what hit where, and whether the answers are the same."""
    windows = _windows_by_place(ledger)
    blocks = _blocks(rows, windows)
    parts = []
    for block, mine in blocks:
        is_quiet = _is_quiet_control(ledger, block, mine)
        parts.append(
            _table(
                f"{bold(block.words)} ({ledger.role(block.arm)}), hits in tokens",
                PHASE_COLUMNS,
                _phase_rows(mine, block.concurrency),
                f"phases of {block.words}",
                rank=CONTROL if is_quiet else OPEN,
                fold="Phases of the control" if is_quiet else "",
            )
        )
    parts += [_engines_part(block, mine) for block, mine in blocks]
    parts += [_counts_part(ledger, block, mine, windows) for block, mine in blocks]
    return [part for part in parts if part.rows]


def _engines_part(block: Block, rows: Sequence[PhaseRow]) -> Part:
    """Empty where a server has one engine."""
    lines = _engine_rows(rows, block.concurrency)
    what = f"engines of {block.words}"
    fold = "Engine by engine"
    return _table(bold(block.words), ENGINE_COLUMNS, lines, what, rank=ENGINES, fold=fold)


def _counts_part(
    ledger: Ledger,
    block: Block,
    rows: Sequence[PhaseRow],
    windows: dict[tuple[str, str, str], Window],
) -> Part:
    columns = [*COUNT_COLUMNS, *(EVENT_COLUMNS if ledger.kv_events else ())]
    lines = [
        _count_row(
            ledger,
            row,
            windows.get((row.stage, row.arm, row.phase)),
            _without_concurrency(row.phase, block.concurrency),
        )
        for row in rows
        if row.engine is None
    ]
    what = f"counts and times of {block.words}"
    fold = "Requests, computed tokens, preemptions, times"
    return _table(bold(block.words), columns, lines, what, rank=COUNTS, fold=fold)


# ---- prompts ---------------------------------------------------------------------------------


def _columns_of(rows: Sequence[PromptRow], concurrency: int) -> list[tuple[str, str]]:
    """(phase, head) of each column; runs in which all prompts say the same share the first's."""
    phases = {_without_concurrency(phase, concurrency): phase for row in rows for phase in row.hits}
    named = [
        Named(label, tuple(_hit(row, phase) for row in rows)) for label, phase in phases.items()
    ]
    return [(phases[first.label], name) for name, first in merged(named)]


def _hit(row: PromptRow, label: str) -> str:
    """Hits of a prompt in a phase; with what was expected where that is not written the same."""
    words = row.hits.get(label, MISSING)
    found = _EXPECTED.fullmatch(words)
    if found is None:
        return text(words)
    if found["seen"] == found["wanted"]:
        return text(f"{found['seen']}{found['unit'] or ''}")
    is_wrong = row.verdict == Outcome.FAIL.value and found["wanted"] != MISSING
    return bold(text(words)) if is_wrong else text(words)


def prompt_parts(rows: Sequence[PromptRow]) -> list[Part]:
    """Per prompt of each tested arm what hit where; what is no pass stands first."""
    parts = []
    for block, group in groupby(rows, key=_block_of):
        mine = sorted(group, key=lambda row: _ORDER.get(row.verdict, 0))
        columns = _columns_of(mine, mine[0].concurrency)
        heads = [
            Column("prompt", right=False),
            Column("tokens"),
            Column("max possible hit"),
            *(Column(name) for _, name in columns),
            Column(_DELTA),
            Column("verdict", right=False),
        ]
        lines = [
            table_row(
                [
                    code(row.prompt),
                    count(row.prompt_tokens),
                    count(row.max_hit_tokens),
                    *(_hit(row, label) for label, _ in columns),
                    nats(row.max_delta_nats),
                    verdict_markup(row.verdict),
                ]
            )
            for row in mine
        ]
        title = (
            f"{bold(block.words)}, hit tokens as local + external; "
            "log-probabilities against a GPU hit"
        )
        what = f"prompts of {block.words}"
        parts.append(_table(title, heads, lines, what, rank=PROMPTS, fold="Prompt by prompt"))
    return parts


# ---- T4 --------------------------------------------------------------------------------------

BAND_COLUMNS: Final = (
    Column("comparison", right=False),
    Column("answers equal"),
    Column("positions equal"),
    Column(_DELTA),
    Column("mean"),
    Column("band"),
    Column("inside the band?", right=False),
)
BAND_COUNT_COLUMNS: Final = (
    Column("comparison", right=False),
    Column("prompts"),
    Column("prompt tokens"),
    Column("positions"),
    Column("first divergence (position)"),
    Column("missing from top-k"),
)


def _inside(row: BandRow) -> str:
    return bold("NO") if row.inside == "no" else row.inside


def _band_row(row: BandRow) -> str:
    return table_row(
        [
            text(row.comparison),
            f"{count(row.tokens_equal)}/{count(row.answers)}",
            f"{count(row.top1_equal)}/{count(row.top1_total)}",
            nats(row.max_nats),
            nats(row.mean_nats),
            nats(row.band_nats),
            _inside(row),
        ]
    )


def _band_count_row(row: BandRow) -> str:
    lengths = row.prompt_tokens
    spread = MISSING if lengths is None else "–".join(dict.fromkeys(count(n) for n in lengths))
    return table_row(
        [
            text(row.comparison),
            count(row.prompts),
            spread,
            count(row.positions),
            "-" if row.first_divergence is None else count(row.first_divergence),
            count(row.missing),
        ]
    )


def band_parts(ledger: Ledger, rows: Sequence[BandRow]) -> list[Part]:
    """T4: what is noise in this run, and whether the hits lie inside of it."""
    shown: list[Part] = []
    quiet: list[Part] = []
    counts: list[Part] = []
    for block, group in groupby(rows, key=_block_of):
        mine = list(group)
        is_control = ledger.role(block.arm) == "control"
        part = _table(
            bold(block.words),
            BAND_COLUMNS,
            [_band_row(row) for row in mine],
            f"accuracy of {block.words}",
            rank=CONTROL if is_control else OPEN,
            fold="Accuracy of the control" if is_control else "",
        )
        (quiet if is_control else shown).append(part)
        numbers = [_band_count_row(row) for row in mine]
        what = f"what was compared in {block.words}"
        fold = "What the accuracy was taken from: prompts, positions"
        counts.append(
            _table(bold(block.words), BAND_COUNT_COLUMNS, numbers, what, rank=COUNTS, fold=fold)
        )
    return [*shown, *quiet, *counts]

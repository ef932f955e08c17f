"""Per prompt what hit, and T4: what is noise in this run, and whether the hits lie inside of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from kvbench.checks.finding import Outcome
from kvbench.ledger import Ledger
from kvbench.report.fitting import Part
from kvbench.report.gfm import Column, bold, code, table_row, text
from kvbench.report.github_blocks import (
    CONTROL,
    COUNTS,
    DELTA,
    OPEN,
    PROMPTS,
    Block,
    Named,
    merged,
    table_part,
    verdict_markup,
    without_concurrency,
)
from kvbench.report.numbers import count
from kvbench.report.tables import BandRow, PromptRow
from kvbench.report.text import MISSING, nats
from kvbench.verdict import SEVERITY

_EXPECTED = re.compile(r"(?P<seen>.+?)(?P<unit> cached)? \(expected (?P<wanted>.+)\)")
_ORDER: Final = {outcome.value: place for place, outcome in enumerate(SEVERITY)}


def _block_of(row: PromptRow | BandRow) -> Block:
    return Block(row.stage, row.arm, row.concurrency)


# ---- prompts ---------------------------------------------------------------------------------


def _columns_of(rows: Sequence[PromptRow], concurrency: int) -> list[tuple[str, str]]:
    """(phase, head) of each column; runs in which all prompts say the same share the first's."""
    phases = {without_concurrency(phase, concurrency): phase for row in rows for phase in row.hits}
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
            Column(DELTA),
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
        parts.append(table_part(title, heads, lines, what, rank=PROMPTS, fold="Prompt by prompt"))
    return parts


# ---- T4 --------------------------------------------------------------------------------------

BAND_COLUMNS: Final = (
    Column("comparison", right=False),
    Column("answers equal"),
    Column("positions equal"),
    Column(DELTA),
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
        part = table_part(
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
            table_part(bold(block.words), BAND_COUNT_COLUMNS, numbers, what, rank=COUNTS, fold=fold)
        )
    return [*shown, *quiet, *counts]

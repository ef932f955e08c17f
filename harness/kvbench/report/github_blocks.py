"""What the tables of a pull request's block share: names, ranks, and rows of equal runs.

Runs of a phase that say the same share a row: each of them measured what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvbench.checks.finding import Outcome
from kvbench.report.fitting import Part
from kvbench.report.gfm import Column, bold, table_head, text

OPEN, CONTROL, ENGINES, PROMPTS, COUNTS = 2, 3, 4, 6, 7
"""Ranks of the tables: the higher goes the sooner."""
DELTA: Final = "max &#124;Δ&nbsp;logprob&#124; (nats)"

_RUN = re.compile(r"^(?P<kind>.+)-(?P<run>[0-9]+)$")


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


def verdict_markup(word: str) -> str:
    """A verdict; what is no pass stands out."""
    return word if word == Outcome.PASS.value else bold(text(word))


def without_concurrency(label: str, concurrency: int | None) -> str:
    """The label of a window in a table that is about one concurrency."""
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


def table_part(
    title: str, columns: Sequence[Column], rows: Sequence[str], what: str, *, rank: int, fold: str
) -> Part:
    """A titled table whose rows may be left out; in the open where `fold` is empty."""
    head = (title, "", *table_head(columns))
    return Part(head, tuple(rows), ("",), what=what, rank=rank, fold=fold)

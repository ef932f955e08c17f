"""A document that must not grow beyond a limit: parts with rows, of which the least important go.

Sizes are bytes in UTF-8, which is never less than what GitHub counts in characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

HARD_LIMIT_CHARACTERS: Final = 65_536
"""of a comment or the text of a pull request; GitHub refuses a longer one"""
LIMIT_BYTES: Final = 60_000
MAX_LISTED: Final = 12


@dataclass(frozen=True)
class Part:
    """A block of lines whose rows may be left out."""

    head: tuple[str, ...]
    rows: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    what: str = ""
    """what the rows are, as markup, for the sentence that says how many are missing"""
    rank: int = 0
    """the higher, the sooner rows go; 0: this part stays whole"""
    fold: str = ""
    """summary of the fold in which it lies; neighbours with the same one share it"""
    keeps_end: bool = False
    """rows go from the beginning: the last lines of a log say most"""
    left_out: int = 0

    @property
    def lines(self) -> list[str]:
        """What is printed; nothing where all rows went."""
        if self.left_out and not self.rows:
            return []
        gap = self._gap() if self.left_out else []
        return [*self.head, *self.rows, *self.tail, *gap]

    def _gap(self) -> list[str]:
        total = self.left_out + len(self.rows)
        which = "first" if self.keeps_end else "last"
        words = f"Left out of {self.what}: the {which} {self.left_out:,} of {total:,}."
        return [f"<sub>{words}</sub>", ""]

    def without(self, count: int) -> Part:
        """The part with so many rows fewer."""
        kept = self.rows[count:] if self.keeps_end else self.rows[: len(self.rows) - count]
        return replace(self, rows=kept, left_out=self.left_out + count)

    def shortened(self, excess_bytes: int) -> Part:
        """The part with as few rows left out as save so many bytes, or with none left."""
        full = size_bytes(self.lines)
        low, high = 1, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            if full - size_bytes(self.without(middle).lines) >= excess_bytes:
                high = middle
            else:
                low = middle + 1
        return self.without(low)


def size_bytes(lines: Iterable[str]) -> int:
    """Length of the lines in UTF-8, with their line ends."""
    return sum(len(line.encode()) + 1 for line in lines)


def document(parts: Sequence[Part]) -> list[str]:
    """All lines, with the folds around the parts that lie in them."""
    lines: list[str] = []
    shown = (part for part in parts if part.lines)
    for fold, group in groupby(shown, key=lambda part: part.fold):
        inner = [line for part in group for line in part.lines]
        if fold:
            lines += ["<details>", f"<summary>{fold}</summary>", "", *inner, "</details>", ""]
        else:
            lines += inner
    return lines


def cut_words(parts: Sequence[Part]) -> list[str]:
    """What was left out, part by part; empty where everything is there."""
    gone = [part for part in parts if part.left_out]
    words = [
        f"{part.what} ({part.left_out:,} of {part.left_out + len(part.rows):,})"
        for part in gone[:MAX_LISTED]
    ]
    rest = sum(part.left_out for part in gone[MAX_LISTED:])
    return [*words, f"and {rest:,} rows of other tables"] if rest else words


def fitted(parts: Sequence[Part], *, limit_bytes: int) -> list[Part]:
    """The parts in their order, cut until they are within the limit: highest rank first, of equal
    ranks the last one first. Parts of rank 0 stay, so they must be short by themselves."""
    kept = list(parts)
    order = sorted(range(len(kept)), key=lambda place: (-kept[place].rank, -place))
    for place in order:
        excess = size_bytes(document(kept)) - limit_bytes
        if excess <= 0:
            break
        if kept[place].rank and kept[place].rows:
            kept[place] = kept[place].shortened(excess)
    return kept

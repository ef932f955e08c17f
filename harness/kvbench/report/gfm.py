"""GitHub's Markdown: text that cannot act, tables, folded parts.

A comment is not a page of its own: `@name` in it notifies a person, `#12` writes into another
thread, and a pipe or a `<` of a log breaks the table in which it stands. A backslash does not help
against the first two, because GitHub looks for them after it has rendered the Markdown, so what
could act is parted by a zero-width space or written as a character reference; both are inert in
Markdown and in raw HTML alike, where a backslash would be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

BREAK: Final = "&#8203;"
"""A zero-width space: invisible, and no name, number or address goes on behind it."""

MAX_CELL_CHARACTERS: Final = 400
"""A longer text of a log or a scenario is cut where it is printed; the record has the whole."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Control characters, and those that turn the direction of a text around."""
_ACTING = re.compile(
    r"""
      (?P<mark> [&<>`*\[\]\\|~$] | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9]) )
    | [@\#](?=[A-Za-z0-9])                         # mentions, e-mail addresses, issues
    | :(?=//) | (?<=www)\. | :(?=[a-z0-9_+-]+:)    # addresses, and :100: which is an emoji
    | (?<=\b[Gg][Hh])-(?=[0-9])                    # GH-12
    """,
    re.VERBOSE,
)
_NAMED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "<span>$</span>"}
_BLOCK_START = re.compile(r"^(?:[-+=#](?=[-+=#\s]|$)|[0-9]{1,9}(?P<point>[.)])(?=\s|$))")


def clean(text: str) -> str:
    """The text without colours, control characters and marks of direction; lines are kept."""
    return _INVISIBLE.sub("", _ANSI.sub("", text))


def one_line(text: str) -> str:
    """The cleaned text on one line."""
    return clean(" ".join(_ANSI.sub("", text).split()))


def clipped(text: str, most: int = MAX_CELL_CHARACTERS) -> str:
    """The text, or its beginning and a word that says that it was cut."""
    return text if len(text) <= most else f"{text[:most]}… (cut)"


def _inert(found: re.Match[str]) -> str:
    sign = found[0]
    if found["mark"]:
        return _NAMED.get(sign, f"&#{ord(sign)};")
    return f"{BREAK}{sign}" if sign == "." else f"{sign}{BREAK}"


def text(value: object, *, most: int = MAX_CELL_CHARACTERS) -> str:
    """Any text as inline Markdown or HTML that shows it and does nothing else."""
    return _ACTING.sub(_inert, clipped(one_line(str(value)), most))


def item(value: object, *, most: int = MAX_CELL_CHARACTERS) -> str:
    """`text` at the beginning of a block, where `1.`, `-` and `#` mean something, too."""
    return _BLOCK_START.sub(_as_reference, text(value, most=most))


def _as_reference(found: re.Match[str]) -> str:
    sign = found["point"] or found[0]
    return found[0].replace(sign, f"&#{ord(sign)};")


def code(value: object, *, most: int = MAX_CELL_CHARACTERS) -> str:
    """Any text as inline code. In HTML: in a code span of a table a pipe cannot be written safely,
    and a break would be shown."""
    return f"<code>{text(value, most=most)}</code>"


def bold(markup: str) -> str:
    """Markup in bold; no Markdown, whose stars do nothing beside some signs."""
    return f"<b>{markup}</b>"


class Column(NamedTuple):
    """Head of a column, as markup; numbers stand at the right."""

    head: str
    right: bool = True


def table_head(columns: Sequence[Column]) -> list[str]:
    """The two lines above the rows."""
    marks = ["---:" if column.right else ":---" for column in columns]
    return [table_row([column.head for column in columns]), table_row(marks)]


def table_row(cells: Iterable[str]) -> str:
    """One row; the cells are markup, thus without a pipe."""
    return f"| {' | '.join(cells)} |"


def fence(lines: Iterable[str], language: str = "") -> list[str]:
    """Lines as a block of code, whatever number of backticks is in them."""
    shown = list(lines)
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", *shown, mark]

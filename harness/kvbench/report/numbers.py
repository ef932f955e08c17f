"""Numbers for wide readers: grouped digits, binary sizes, rates with what they are made of."""

from __future__ import annotations

from typing import Final

from kvbench.report.tables import Rate
from kvbench.report.text import MISSING

NO_BREAK: Final = "\u00a0"
"""A space at which a narrow cell is not folded."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def count(value: float | None) -> str:
    """A count with its thousands grouped."""
    return MISSING if value is None else f"{round(value):,}"


def bytes_words(value: float | None) -> str:
    """A size in the largest binary unit of which there is one: `23.5 GiB`."""
    if value is None:
        return MISSING
    size, unit = float(value), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def of(part: float | None, whole: float | None) -> str:
    """`1,792/2,152 (83.3 %)`; without a share where there is nothing to divide by."""
    if part is None or whole is None:
        return MISSING
    share = f" ({100 * part / whole:.1f}{NO_BREAK}%)" if whole else ""
    return f"{count(part)}/{count(whole)}{share}"


def rate_of(value: Rate) -> str:
    """Hit tokens of queried tokens."""
    return of(value.hits, value.queries)

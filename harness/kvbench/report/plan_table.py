"""Aligned columns of plain text, and rows of equal runs drawn together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

INDENT = "  "
Row = tuple[str, ...]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table; a column of numbers is set to the right."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    is_number = [
        bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(header))
    ]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ]
        yield (INDENT + "  ".join(cells)).rstrip()


def merged_runs(rows: Sequence[tuple[str, int, Row]]) -> list[Row]:
    """Name each row `<kind>-<run>`, and neighbours that say the same `<kind>-<first>..<last>`."""
    merged: list[tuple[str, int, int, Row]] = []
    for kind, run, cells in rows:
        if merged and merged[-1][0] == kind and merged[-1][2] == run - 1 and merged[-1][3] == cells:
            merged[-1] = (kind, merged[-1][1], run, cells)
        else:
            merged.append((kind, run, run, cells))
    return [(run_name(kind, first, last), *cells) for kind, first, last, cells in merged]


def run_name(kind: str, first: int, last: int) -> str:
    """Return `fresh-1`, or `fresh-1..3` for several runs."""
    return f"{kind}-{first}" if first == last else f"{kind}-{first}..{last}"


def _is_number(cell: str) -> bool:
    return cell == "n/a" or cell.replace(",", "").isdecimal()

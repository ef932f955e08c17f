"""How numbers are written in every report: missing is n/a, a rate shows what it is made of."""

from __future__ import annotations

from kvbench.report.tables import Rate

MISSING = "n/a"


def one_line(text: str) -> str:
    """Text of an engine or a scenario without its line breaks."""
    return " ".join(text.splitlines())


def whole(value: int | None) -> str:
    """A count."""
    return MISSING if value is None else str(value)


def nats(value: float | None) -> str:
    """A log-probability difference; 0 is written as 0, because exactly 0 means bit-equal."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.3g}"


def milliseconds(value_s: float | None) -> str:
    """A time."""
    return MISSING if value_s is None else f"{value_s * 1000:.1f} ms"


def rate(value: Rate) -> str:
    """Hits / queries (percent)."""
    if value.hits is None or value.queries is None:
        return MISSING
    share = f" ({100 * value.hits / value.queries:.1f} %)" if value.queries else ""
    return f"{value.hits}/{value.queries}{share}"


def share(part: int | None, of: int) -> str:
    """n of m."""
    return MISSING if part is None or not of else f"{part}/{of}"

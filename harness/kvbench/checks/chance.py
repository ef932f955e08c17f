"""Tails of distributions, by scipy, which is loaded at the first use: it takes a second, and most
commands never ask.
"""

from __future__ import annotations

from typing import Any


def _stats() -> Any:
    from scipy import stats  # noqa: PLC0415 - see above

    return stats


def binomial_at_least(hits: int, trials: int, share: float) -> float:
    """Probability of so many hits or more in independent trials."""
    return float(_stats().binom.sf(hits - 1, trials, share))


def student_above(value: float, freedom: int) -> float:
    """Probability of a Student t above `value` with so many degrees of freedom."""
    return float(_stats().t.sf(value, df=freedom))


def fisher_more(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """One-sided p of Fisher's exact test: is `hits` of `trials` oftener than the other?"""
    table = [[hits, trials - hits], [other_hits, other_trials - other_hits]]
    return float(_stats().fisher_exact(table, alternative="greater")[1])

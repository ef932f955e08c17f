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


def sign_test_power(trials: int, changing: float, share: float, error_rate: float) -> float:
    """Chance that a one-sided sign test finds something, where a trial changes with the chance
    `changing`, and then in the tested direction with the chance `share`.
    """
    import numpy as np  # noqa: PLC0415 - as scipy

    binom = _stats().binom
    changed = np.arange(trials + 1)
    chances = binom.pmf(changed, trials, changing)
    # The fewest in the tested direction that the test calls a find: P(X >= needed) <= error_rate.
    needed = binom.isf(error_rate, changed, 0.5) + 1
    return float(np.sum(chances * binom.sf(needed - 1, changed, share)))


def student_above(value: float, freedom: int) -> float:
    """Probability of a Student t above `value` with so many degrees of freedom."""
    return float(_stats().t.sf(value, df=freedom))


def fisher_more(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """One-sided p of Fisher's exact test: is `hits` of `trials` oftener than the other?"""
    table = [[hits, trials - hits], [other_hits, other_trials - other_hits]]
    return float(_stats().fisher_exact(table, alternative="greater")[1])

"""Did paired times change? Wilcoxon's signed-rank test on log ratios, and the interval that belongs
to it.

A pair is the same prompt in both runs, so its length and its place in the cache cancel. Ratios are
compared by their logarithms, where twice as slow and twice as fast lie equally far from none. The
estimate is Hodges and Lehmann's: the median of the averages of any two log ratios. Its interval and
the test share one distribution, so they do not contradict each other (Hollander and Wolfe,
Nonparametric Statistical Methods, chapter 3). All of it is exact up to `MOST_EXACT` pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from kvbench.checks.statistics import signed_rank

MOST_EXACT = 40
"""Pairs up to which sign patterns are counted; beyond, the normal distribution is as good."""


class Shift(NamedTuple):
    """How paired times of another run relate to those of the base."""

    ratio: float
    """other / base; 1 is no change"""
    low: float
    high: float
    level: float
    """what the interval really covers: fewer pairs than needed give less than was asked for"""
    p_value: float
    """two-sided"""
    smallest_p: float
    """the smallest p that this number of pairs could have reached"""
    pairs: int


def _stats() -> Any:
    from scipy import stats  # noqa: PLC0415 - it takes a second, and most commands never ask

    return stats


def smallest_p(pairs: int) -> float:
    """Smallest two-sided p of so many pairs: all of them changed in one direction."""
    return min(1.0, 2.0 ** (1 - pairs))


def _p_value(logs: Sequence[float]) -> float:
    if not any(logs):
        return 1.0
    if len(logs) > MOST_EXACT:
        return float(_stats().wilcoxon(logs, method="approx").pvalue)
    none = [0.0] * len(logs)
    one_sided = min(signed_rank(logs, none).p_value, signed_rank(none, logs).p_value)
    return min(1.0, 2 * one_sided)


def _left_out(pairs: int, error_rate: float) -> tuple[int, float]:
    """How many averages to leave out at each end, and what the rest covers (0 to 1)."""
    if pairs > MOST_EXACT:
        mean, spread = (
            pairs * (pairs + 1) / 4,
            math.sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24),
        )
        return int(mean + spread * _stats().norm.ppf(error_rate / 2)), 1 - error_rate
    ways = [1]
    for rank in range(1, pairs + 1):  # number of sign patterns for each sum of positive ranks
        grown = ways + [0] * rank
        for value, count in enumerate(ways):
            grown[value + rank] += count
        ways = grown
    outside, left_out = 2 * ways[0], 0
    while outside + 2 * ways[left_out + 1] <= error_rate * 2**pairs:
        left_out += 1
        outside += 2 * ways[left_out]
    return left_out, 1 - outside / 2**pairs


def shift(base: Sequence[float], other: Sequence[float], error_rate: float) -> Shift | None:
    """How `other` relates to `base`, pair by pair, all above 0; None for fewer than 2 pairs.

    The interval covers 1 - `error_rate`, or as much as so few pairs can.
    """
    if len(base) < 2:
        return None
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    averages = sorted((x + y) / 2 for i, x in enumerate(logs) for y in logs[i:])
    left_out, level = _left_out(len(logs), error_rate)
    return Shift(
        ratio=math.exp(median(averages)),
        low=math.exp(averages[left_out]),
        high=math.exp(averages[-1 - left_out]),
        level=level,
        p_value=_p_value(logs),
        smallest_p=smallest_p(len(logs)),
        pairs=len(logs),
    )


def tests_that_count(smallest: Sequence[float], error_rate: float) -> int:
    """By how many tests an error rate is to be shared, of tests that could reach these p values.

    A test whose smallest possible p is too large for its share can raise no false alarm, so it does
    not count (Tarone 1990, a Bonferroni correction for discrete tests).
    """
    for count in range(1, len(smallest) + 1):
        if sum(p_value < error_rate / count for p_value in smallest) <= count:
            return count
    return max(1, len(smallest))


def pairs_needed(tests: int, error_rate: float) -> int:
    """Fewest pairs with which each of so many tests could become significant."""
    pairs = 2
    while smallest_p(pairs) >= error_rate / tests:
        pairs += 1
    return pairs

"""Two tests for "does a CPU hit add anything to the noise", over prompts, at a declared error rate.

`signed_rank`: Wilcoxon's signed-rank test, paired and one-sided. The prompts are the independent
units (positions of one answer are not: they share a past, and every value of a position shares a
softmax). Under the null hypothesis a CPU hit is as good a GPU hit as the second GPU hit is, so
within a prompt the two distances to the first GPU hit can be exchanged and each difference may
carry either sign. The exact distribution is counted, ties included, so no normal approximation is
needed for a handful of prompts. It sees a small shift of all prompts.

`outlier`: a rank test is blind to one damaged prompt of many. The log of (CPU-hit distance /
GPU-hit distance) is about 0 for each prompt by the same exchange; its spread over the other prompts
predicts where one more should lie (Student's t, one-sided, Bonferroni over prompts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kvbench.checks.chance import student_above

MIN_LOG_SPREAD = math.log(2) / 2
"""Smallest spread that `outlier` believes in.

Maxima come in steps of the dtype's last bit (2^-5 nats for bfloat16 logits near 4-8), so a factor
of 2 is one step and no outlier: it is to lie within two standard deviations.
"""


class SignedRank(NamedTuple):
    """Result of the paired test."""

    p_value: float
    smallest_p: float
    """the smallest p that this number of pairs could have reached"""
    pairs: int


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Twice the midrank of each value, so that ties keep whole numbers."""
    ordered = sorted(values)
    first = {value: ordered.index(value) + 1 for value in set(ordered)}
    count = {value: ordered.count(value) for value in set(ordered)}
    return [2 * first[value] + count[value] - 1 for value in values]


def signed_rank(larger: Sequence[float], smaller: Sequence[float]) -> SignedRank:
    """Probability, by chance, of `larger` exceeding `smaller` as clearly as it does.

    Pairs without a difference say nothing and are left out of the ranks (Wilcoxon's rule).
    """
    differences = [a - b for a, b in zip(larger, smaller, strict=True) if a != b]
    smallest = 2.0 ** -len(larger) if larger else 1.0
    if not differences:
        return SignedRank(1.0, smallest, len(larger))
    ranks = _double_ranks([abs(difference) for difference in differences])
    statistic = sum(rank for rank, d in zip(ranks, differences, strict=True) if d > 0)
    ways = [1]
    for rank in ranks:  # number of sign patterns for each sum of positive ranks
        grown = ways + [0] * rank
        for value, count in enumerate(ways):
            grown[value + rank] += count
        ways = grown
    p_value = sum(ways[statistic:]) / 2 ** len(ranks)
    return SignedRank(p_value, smallest, len(larger))


class Outlier(NamedTuple):
    """The prompt that lies farthest out, and how unlikely that is."""

    pair: int
    """index of the pair"""
    p_value: float


def outlier(larger: Sequence[float], smaller: Sequence[float]) -> Outlier | None:
    """The pair whose ratio is farthest above what the others predict; None for under 3 pairs."""
    floor = min((value for value in (*larger, *smaller) if value > 0), default=0.0)
    if floor == 0.0 or len(larger) < 3:
        return None
    ratios = [math.log(max(a, floor) / max(b, floor)) for a, b in zip(larger, smaller, strict=True)]
    index = max(range(len(ratios)), key=ratios.__getitem__)
    others = [ratio for i, ratio in enumerate(ratios) if i != index]
    spread = max(math.sqrt(sum(r * r for r in others) / len(others)), MIN_LOG_SPREAD)
    scale = spread * math.sqrt(1 + 1 / len(others))
    p_value = student_above(ratios[index] / scale, len(others))
    return Outlier(index, min(1.0, p_value * len(ratios)))

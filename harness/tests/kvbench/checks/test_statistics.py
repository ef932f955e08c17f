from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from kvbench.checks.statistics import outlier, signed_rank

values = st.lists(st.floats(0.001, 10, allow_nan=False), min_size=3, max_size=12, unique=True)


@given(values, st.randoms(use_true_random=False))
def test_signed_rank_is_wilcoxons_exact_test(larger: list[float], rng: random.Random) -> None:
    smaller = [rng.uniform(0.001, 10) for _ in larger]
    sizes = {round(abs(a - b), 9) for a, b in zip(larger, smaller, strict=True)}
    assume(len(sizes) == len(larger) and 0 not in sizes)  # scipy's exact method knows no ties
    expected = stats.wilcoxon(larger, smaller, alternative="greater", method="exact")
    assert signed_rank(larger, smaller).p_value == pytest.approx(float(expected.pvalue))


@given(values)
def test_equal_pairs_say_nothing(both: list[float]) -> None:
    assert signed_rank(both, both).p_value == 1.0


def test_ties_are_counted_exactly() -> None:
    # Four equal differences, all positive: one of 16 sign patterns.
    assert signed_rank([2.0] * 4, [1.0] * 4).p_value == 1 / 16


def test_smallest_p_says_what_the_number_of_pairs_could_reach() -> None:
    assert signed_rank([1.0] * 6, [0.0] * 6).smallest_p == 1 / 64


def test_false_alarms_stay_below_the_error_rate() -> None:
    rng = random.Random(1)
    alarms = 0
    for _ in range(2000):
        larger = [max(rng.gauss(0, 1) for _ in range(160)) for _ in range(10)]
        smaller = [max(rng.gauss(0, 1) for _ in range(160)) for _ in range(10)]
        far = outlier(larger, smaller)
        alarms += signed_rank(larger, smaller).p_value < 0.01
        alarms += far is not None and far.p_value < 0.01
    assert alarms <= 2000 * 0.02 + 20


def test_one_far_pair_is_found() -> None:
    noise = [0.031, 0.031, 0.062, 0.031, 0.031, 0.031, 0.062, 0.031]
    damaged = [0.031, 0.062, 0.031, 0.6, 0.031, 0.031, 0.031, 0.031]
    far = outlier(damaged, noise)
    assert far is not None
    assert far.pair == 3
    assert far.p_value < 0.01


def test_one_step_of_the_last_bit_is_no_outlier() -> None:
    noise = [0.031] * 8
    far = outlier([0.031] * 7 + [0.062], noise)
    assert far is not None
    assert far.p_value > 0.1

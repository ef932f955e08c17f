"""The paired test and its interval: against scipy, against what can be counted by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.compare import paired
from kvbench.compare.paired import MOST_EXACT, pairs_needed, shift, smallest_p

ERROR_RATE = 0.01


def noisy(pairs: int, factor: float, seed: object) -> tuple[list[float], list[float]]:
    rng = random.Random(str(seed))
    base = [rng.uniform(0.01, 1.0) for _ in range(pairs)]
    return base, [value * factor * math.exp(rng.gauss(0, 0.05)) for value in base]


@pytest.mark.parametrize("pairs", [6, 15, MOST_EXACT, 200])
def test_p_value_is_that_of_scipy(pairs: int) -> None:
    base, other = noisy(pairs, 1.02, pairs)
    found = shift(base, other, ERROR_RATE)
    assert found is not None
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    method = "exact" if pairs <= MOST_EXACT else "approx"
    assert found.p_value == pytest.approx(stats.wilcoxon(logs, method=method).pvalue)


def test_five_pairs_say_how_little_they_cover() -> None:
    found = shift([1.0] * 5, [1.1, 1.2, 1.3, 1.4, 1.5], ERROR_RATE)
    assert found is not None
    assert found.p_value == found.smallest_p == smallest_p(5) == 0.0625
    assert found.level == 0.9375
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.5)


@pytest.mark.parametrize("pairs", [12, 30, 120])
def test_interval_and_test_agree(pairs: int) -> None:
    for seed in range(40):
        base, other = noisy(pairs, 1.0 + 0.002 * seed, seed)
        found = shift(base, other, ERROR_RATE)
        assert found is not None
        assert found.level >= 1 - ERROR_RATE
        is_outside = not found.low <= 1 <= found.high
        if abs(found.p_value - ERROR_RATE) > 0.002:
            assert is_outside == (found.p_value < ERROR_RATE)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    missed = 0
    for seed in range(400):
        found = shift(*noisy(12, 1.1, seed), error_rate=0.1)
        assert found is not None
        missed += not found.low <= 1.1 <= found.high
    assert 10 < missed < 60  # 40 expected; both ends are 4 standard deviations away or more


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(0.001, 100)), min_size=2, max_size=20))
def test_exchanged_runs_give_the_inverse(pairs: list[tuple[float, float]]) -> None:
    base, other = [a for a, _ in pairs], [b for _, b in pairs]
    there, back = shift(base, other, ERROR_RATE), shift(other, base, ERROR_RATE)
    assert there is not None
    assert back is not None
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)


@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=20))
def test_equal_times_are_no_change(times: list[float]) -> None:
    found = shift(times, times, ERROR_RATE)
    assert found is not None
    assert (found.ratio, found.low, found.high, found.p_value) == (1.0, 1.0, 1.0, 1.0)


def test_one_pair_is_no_comparison() -> None:
    assert shift([1.0], [2.0], ERROR_RATE) is None


def test_tests_that_cannot_reject_do_not_count() -> None:
    assert paired.tests_that_count([smallest_p(4)] * 30, ERROR_RATE) == 1
    assert paired.tests_that_count([smallest_p(4)] * 30 + [smallest_p(16)] * 3, ERROR_RATE) == 3
    assert paired.tests_that_count([smallest_p(16)] * 20, ERROR_RATE) == 20
    assert paired.tests_that_count([], ERROR_RATE) == 1


def test_prompts_needed_are_the_fewest_that_can_decide() -> None:
    needed = pairs_needed(20, ERROR_RATE)
    assert smallest_p(needed) < ERROR_RATE / 20 <= smallest_p(needed - 1)

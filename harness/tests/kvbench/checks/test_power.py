"""The power of the paired test, against counting by hand and against simulated rounds."""

from __future__ import annotations

import random

import pytest

from kvbench.checks.chance import binomial_at_least
from kvbench.checks.power import POWER, STEP, power_of, smallest_drop


def test_power_without_noise_is_the_chance_of_enough_losses() -> None:
    """At error rate 0.01 seven losses and none back are needed: 1/128 < 0.01 < 1/64."""
    assert power_of(50, 0.1, 0.0, 0.01) == pytest.approx(binomial_at_least(7, 50, 0.1))


def test_no_drop_is_found_no_oftener_than_the_error_rate() -> None:
    assert power_of(200, 0.0, 0.05, 0.01) <= 0.01
    assert power_of(200, 0.0, 0.0, 0.01) == 0.0


def test_power_is_what_simulated_rounds_show() -> None:
    source = random.Random(7)
    found = 0
    for _ in range(2000):
        lost = won = 0
        for _ in range(60):
            draw = source.random()
            lost += draw < 0.22
            won += 0.22 <= draw < 0.24
        found += lost > 0 and binomial_at_least(lost, lost + won, 0.5) <= 0.01
    assert found / 2000 == pytest.approx(power_of(60, 0.2, 0.02, 0.01), abs=0.03)


@pytest.mark.parametrize("questions", [60, 200, 1319])
def test_smallest_drop_is_just_enough(questions: int) -> None:
    drop = smallest_drop(questions, 0.01, 0.01)
    assert drop is not None
    assert power_of(questions, drop, 0.01, 0.01) >= POWER
    assert power_of(questions, drop - STEP, 0.01, 0.01) < POWER


def test_more_questions_show_a_smaller_drop_and_noise_hides_it() -> None:
    few, many = smallest_drop(200, 0.01, 0.01), smallest_drop(1319, 0.01, 0.01)
    noisy = smallest_drop(1319, 0.05, 0.01)
    assert few is not None
    assert many is not None
    assert noisy is not None
    assert many < few
    assert many < noisy


def test_a_handful_of_questions_shows_nothing() -> None:
    assert smallest_drop(6, 0.0, 0.01) is None

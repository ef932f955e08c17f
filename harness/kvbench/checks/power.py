"""What drop of a score could so many questions have shown? The power of the paired test.

A pass of McNemar's test on 20 questions says little; so each one is printed with the smallest drop
that it would have found nine times in ten. Exact: the number of answers that turn wrong or right is
binomial, and given it the test is a sign test.
"""

from __future__ import annotations

from kvbench.checks.chance import sign_test_power

POWER = 0.9
STEP = 0.0025
"""resolution of the drop"""


def power_of(questions: int, drop: float, noise: float, error_rate: float) -> float:
    """Chance to find a drop (share of all questions) beside `noise` flips each way."""
    changing = min(drop + 2 * noise, 1.0)
    if changing <= 0:
        return 0.0
    return sign_test_power(questions, changing, (drop + noise) / changing, error_rate)


def smallest_drop(questions: int, noise: float, error_rate: float) -> float | None:
    """Smallest drop found with a chance of `POWER`; None where not even a total loss would be."""
    steps = round(1 / STEP)
    low, high = 1, steps
    if power_of(questions, 1.0 - 2 * noise, noise, error_rate) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        if power_of(questions, min(middle * STEP, 1.0 - 2 * noise), noise, error_rate) >= POWER:
            high = middle
        else:
            low = middle + 1
    return low * STEP

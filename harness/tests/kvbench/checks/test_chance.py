"""Tails against values that can be counted by hand, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvbench.checks.chance import binomial_at_least, fisher_more, student_above


def test_binomial_tail_counts_coins() -> None:
    assert binomial_at_least(3, 3, 0.5) == pytest.approx(1 / 8)
    assert binomial_at_least(0, 3, 0.5) == 1.0


def test_student_tail_is_half_at_zero() -> None:
    assert student_above(0.0, 5) == 0.5


def test_fishers_test_counts_tables() -> None:
    """The lady tasting tea: all four right has one chance in seventy."""
    assert fisher_more(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert fisher_more(1, 2, 1, 2) > 0.5


def test_commands_that_judge_nothing_do_not_load_scipy() -> None:
    code = "import sys, kvbench.cli; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

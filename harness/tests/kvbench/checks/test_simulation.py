"""The simulated error rates: no more false alarms than declared, more damage is found oftener."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvbench.checks.simulation import DAMAGED, ERROR_RATE, QUESTIONS, simulate

PAGE = Path(__file__).parents[4] / "docs" / "accuracy.md"


def test_clean_rounds_fail_no_oftener_than_the_two_tests_may() -> None:
    rates = simulate(200, 0.0, runs=400)
    assert rates.by_score <= 2 * ERROR_RATE
    assert rates.by_either <= 4 * ERROR_RATE


def test_gross_damage_is_found_and_oftener_than_small() -> None:
    gross, small = simulate(200, 0.3, runs=60), simulate(200, 0.02, runs=60)
    assert gross.by_either == 1.0
    assert small.by_either < gross.by_either


def test_same_seed_gives_the_same_rates() -> None:
    assert simulate(50, 0.05, runs=20) == simulate(50, 0.05, runs=20)


@pytest.mark.parametrize("questions", QUESTIONS)
@pytest.mark.parametrize("damaged", DAMAGED)
def test_page_has_a_row_for_each_case(questions: int, damaged: float) -> None:
    assert f"| {questions} | {100 * damaged:g} % |" in PAGE.read_text()


@pytest.mark.e2e
def test_table_of_the_page_is_what_the_script_prints() -> None:
    root = PAGE.parents[1]
    done = subprocess.run(
        [str(root / "scripts/simulate-verdicts")], capture_output=True, text=True, check=True
    )
    assert done.stdout in PAGE.read_text()

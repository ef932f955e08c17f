"""Steps are calculated exactly, and what makes no sense is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvbench.workloads.own_problems import Problem, value_of
from kvbench.workloads.own_problems.working import Working


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("7/2", Fraction(7, 2)),
        ("0.1*3", Fraction(3, 10)),
        ("240*15/100", 36),
        ("5-9", -4),
    ],
)
def test_value_is_exact(expression: str, value: Fraction) -> None:
    assert value_of(expression) == value


@pytest.mark.parametrize("expression", ["2**3", "a+1", "f(2)", "'x'", "1 if 2 else 3", "-1"])
def test_only_sums_differences_products_and_quotients(expression: str) -> None:
    with pytest.raises(ValueError, match="not a calculation"):
        value_of(expression)


def test_steps_are_written_as_in_gsm8k() -> None:
    work = Working()
    boxes = work.step("He fills @ boxes.", "48/2")
    work.step("They cost $@ in all.", f"{boxes}*3")
    assert work.problem("How much?") == Problem(
        "How much?",
        "He fills 48/2 = <<48/2=24>>24 boxes.\nThey cost 24*3 = $<<24*3=72>>72 in all.\n#### 72",
    )


@pytest.mark.parametrize("expression", ["7/2", "3-3", "3-5"])
def test_result_that_is_no_whole_number_above_0_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"in: There are @\."):
        Working().step("There are @.", expression)


@pytest.mark.parametrize("sentence", ["Nothing.", "@ and @."])
def test_sentence_has_one_place_for_the_calculation(sentence: str) -> None:
    with pytest.raises(ValueError, match="no single @"):
        Working().step(sentence, "1+1")

"""Solutions in GSM8K's notation: each step is calculated here and never typed.

`48/2 = <<48/2=24>>24` is a step with its annotation, `#### 24` the last line.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

NUMBER: Final = "@"
"""stands in a sentence for the calculation; `$@` for one of money"""

_OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One row: `answer` ends with `#### ` and the result."""

    question: str
    answer: str


def value_of(expression: str) -> Fraction:
    """Return the exact value of a sum, difference, product or quotient of decimal numbers.

    Raises ValueError for anything else, ZeroDivisionError where it divides by nothing.
    """
    return _value(ast.parse(expression, mode="eval").body, expression)


def _value(node: ast.expr, expression: str) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        apply = _OPERATORS[type(node.op)]
        return apply(_value(node.left, expression), _value(node.right, expression))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        # As it is written: 0.1 is a tenth here.
        return Fraction(ast.get_source_segment(expression, node) or "")
    raise ValueError(f"not a calculation: {expression}")


class Working:
    """The steps of one solution."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._last = 0

    def step(self, sentence: str, expression: str) -> int:
        """Add a sentence in which `@` (or `$@`) is the calculation; return its result.

        Raises ValueError when the sentence has no place for it, or the result is not a whole
        number above 0: then the template drew numbers that make no sense.
        """
        value = value_of(expression)
        if value.denominator != 1 or value <= 0:
            raise ValueError(f"{expression} = {value} in: {sentence}")
        if sentence.count(NUMBER) != 1:
            raise ValueError(f"no single {NUMBER} in: {sentence}")
        self._last = int(value)
        shown = f"<<{expression}={self._last}>>{self._last}"
        written = sentence.replace(f"${NUMBER}", f"{expression} = ${shown}")
        self._lines.append(written.replace(NUMBER, f"{expression} = {shown}"))
        return self._last

    def problem(self, question: str) -> Problem:
        """Return the row; the last step is the answer."""
        return Problem(question, "\n".join([*self._lines, f"#### {self._last}"]))

"""How often are the verdicts on an evaluation wrong? Simulated rounds, judged as real ones.

Each question is right with the model's score. Noise changes an answer in either arm alike, and
sometimes turns it right or wrong; damage makes an answer wrong. The two tests are those that the
checks use: McNemar's over questions that changed sides (`score_pairs`), and Fisher's over answers
that changed at all (`rounds`). Left out is the explanation of changes by ties, which takes noise
away from the second test, so the rates are those of the worst case.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Final

from kvbench.checks.chance import binomial_at_least, fisher_more
from kvbench.ledger.evaluation import FILTERS

RUNS: Final = 1000
ERROR_RATE: Final = 0.01
SCORE: Final = 0.6
CHANGED: Final = 0.1
"""share of answers that another batch shape changes: 13 to 15 of 16 stayed equal where measured"""
TURNED: Final = 0.01
"""share of questions that such a change turns right, and as many wrong"""
QUESTIONS: Final = (200, 1319)
DAMAGED: Final = (0.0, 0.01, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of simulated runs that end in a fail."""

    by_score: float
    by_answers: float
    by_either: float


def _fails(source: random.Random, questions: int, damaged: float) -> tuple[bool, bool]:
    lost = won = tested = control = 0
    for _ in range(questions):
        is_right = source.random() < SCORE
        is_damaged = source.random() < damaged
        control += source.random() < CHANGED
        tested += is_damaged or source.random() < CHANGED
        if is_damaged:
            lost += is_right
            continue
        draw = source.random()
        lost += is_right and draw < TURNED / SCORE
        won += not is_right and draw < TURNED / (1 - SCORE)
    changed = lost + won
    by_score = changed > 0 and binomial_at_least(lost, changed, 0.5) <= ERROR_RATE / len(FILTERS)
    by_answers = fisher_more(tested, questions, control, questions) < ERROR_RATE
    return by_score, by_answers


def simulate(questions: int, damaged: float, runs: int = RUNS, seed: int = 0) -> Rates:
    """Judge so many simulated runs; the same seed gives the same rates."""
    source = random.Random(f"{seed}:{questions}:{damaged}")  # noqa: S311 - a simulation
    outcomes = [_fails(source, questions, damaged) for _ in range(runs)]
    return Rates(
        by_score=sum(score for score, _ in outcomes) / runs,
        by_answers=sum(answers for _, answers in outcomes) / runs,
        by_either=sum(score or answers for score, answers in outcomes) / runs,
    )


def table(runs: int = RUNS) -> str:
    """The table as Markdown."""
    lines = [
        "| questions | damaged answers | fail by score | fail by answers | fail by either |",
        "|---:|---:|---:|---:|---:|",
    ]
    for questions in QUESTIONS:
        for damaged in DAMAGED:
            rates = simulate(questions, damaged, runs)
            cells = (rates.by_score, rates.by_answers, rates.by_either)
            shown = " | ".join(f"{100 * share:.1f} %" for share in cells)
            lines.append(f"| {questions} | {100 * damaged:g} % | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())

"""The same questions with and without the connector: did answers turn wrong more than chance does?

Two scores of N questions differ by up to two standard errors without any cause, and a damaged block
in fifty hides well inside that. The questions are the same in both arms, so only those that changed
sides count: under the null hypothesis each of them turned wrong or right with equal chance, which
is McNemar's test in its exact form (a sign test). It is one-sided, because damage lowers a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.checks.chance import binomial_at_least
from kvbench.checks.common import MAX_LISTED, What, about, listed
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.power import POWER, smallest_drop
from kvbench.ledger.evaluation import FILTERS, Answered, FilterName, Round, all_rounds
from kvbench.ledger.facts import Ledger

PAIRED = What("score_paired", "score", "samples")
SameInputs = Callable[[Round, Round], str | None]
DEFAULT_ERROR_RATE = 0.01


class Flips(NamedTuple):
    """How a filter's verdicts on the same questions moved from the control to the tested arm."""

    name: FilterName
    pairs: int
    right: int
    """right in the control"""
    lost: tuple[Answered, ...]
    """of the tested arm, right in the control and wrong here"""
    won: int
    """wrong in the control and right here"""

    @property
    def p_value(self) -> float:
        """Chance of at least as many lost among those that changed sides, if both are as likely."""
        changed = len(self.lost) + self.won
        if not changed:
            return 1.0
        return binomial_at_least(len(self.lost), changed, 0.5)

    @property
    def words(self) -> str:
        """For a sentence."""
        return (
            f"{self.name}: {len(self.lost)} right to wrong, {self.won} wrong to right of "
            f"{self.pairs} questions (p {self.p_value:.2g})"
        )


def _flips(control: Round, tested: Round, name: FilterName) -> Flips:
    """Pairs of whole answers; what was cut, empty or missing in either arm is left out."""
    theirs = control.by_doc
    pairs = right = won = 0
    lost = []
    for doc, sample in tested.by_doc.items():
        other = theirs.get(doc)
        if other is None or not (other.is_whole and sample.is_whole):
            continue
        before, after = other.correct(name), sample.correct(name)
        if before is None or after is None:
            continue
        pairs += 1
        right += before
        won += after and not before
        if before and not after:
            lost.append(sample)
    return Flips(name, pairs, right, tuple(lost), won)


def _same_answers(control: Round, tested: Round) -> str:
    theirs, ours = control.by_doc, tested.by_doc
    shared = theirs.keys() & ours.keys()
    same = sum(theirs[doc].done.answer == ours[doc].done.answer for doc in shared)
    return f"{same} of {len(shared)} answers are equal word for word"


def _distance(control: Round, tested: Round, name: FilterName) -> str | None:
    """The two scores and their distance in combined standard errors, unpaired."""
    one, two = control.filter(name), tested.filter(name)
    if one.score is None or two.score is None:
        return None
    errors = math.hypot(one.standard_error or 0.0, two.standard_error or 0.0)
    gap = abs(two.score - one.score)
    side = "inside" if gap <= 2 * errors else "outside"
    return (
        f"control {one.words}, tested {two.words}: {side} 2 combined standard errors "
        f"({2 * errors:.3f})"
    )


def _needed(error_rate: float) -> int:
    """Fewest questions that must turn wrong, none turning right, to be seen at an error rate."""
    return math.ceil(math.log(error_rate) / math.log(0.5))


def _control_round(ledger: Ledger, stage: str, number: int) -> Round | None:
    """The control's round of that number, or else its last one."""
    arm = ledger.control_of(stage)
    found = all_rounds(ledger.measured(stage, arm)) if arm is not None else ()
    same = [round_ for round_ in found if round_.number == number]
    return same[-1] if same else (found[-1] if found else None)


def _power_words(flips: list[Flips], error_rate: float) -> str:
    """What the test could have seen, with as much noise as it saw."""
    pairs = max(flip.pairs for flip in flips)
    noise = max(min(len(flip.lost), flip.won) for flip in flips) / pairs
    drop = smallest_drop(pairs, noise, error_rate)
    words = "no drop at all" if drop is None else f"a drop of {drop * 100:.3g} points"
    return (
        f"power: {pairs} questions show {words} with a chance of {POWER:.0%} (error rate "
        f"{error_rate:g}, {noise * 100:.2g} % flips each way)"
    )


def _judged(control: Round, tested: Round, flips: list[Flips], error_rate: float) -> Finding:
    """Fail for a filter that lost more than chance explains (Bonferroni over the filters)."""
    each = error_rate / len(flips)
    needed = _needed(each)
    notes = [note for name in FILTERS if (note := _distance(control, tested, name)) is not None]
    notes.append(_same_answers(control, tested))
    left_out = len(tested.by_doc.keys() & control.by_doc.keys()) - max(f.pairs for f in flips)
    if left_out:
        notes.append(f"{left_out} questions are left out: cut, empty or unscored in an arm")
    notes.append(_power_words(flips, each))
    words = listed([flip.words for flip in flips])
    place = f"{tested.words} against {control.words} of {control.window.arm}"
    worst = min(flips, key=lambda flip: flip.p_value)
    if worst.p_value <= each:
        outcome, verdict = Outcome.FAIL, "more answers turned wrong than chance explains"
    elif max(flip.right for flip in flips) < needed:
        outcome, verdict = Outcome.INCONCLUSIVE, "too few right answers to see any drop"
    else:
        outcome, verdict = Outcome.PASS, "no drop"
    finding = about(
        tested.window,
        outcome,
        f"{place}: {verdict}: {words}",
        what=PAIRED,
        expected=f"p > {each:g} for each filter",
        observed=words,
        notes=notes,
    )
    if not worst.lost:
        return finding
    docs = tuple(f"doc {sample.done.doc_id}" for sample in worst.lost)
    places = tuple(sample.where for sample in worst.lost[:MAX_LISTED])
    return replace(finding, prompts=docs, evidence=places)


def _compare(ledger: Ledger, tested: Round, same_inputs: SameInputs) -> Finding:
    window = tested.window
    control = _control_round(ledger, window.stage, tested.number)
    if control is None:
        reason = f"{tested.words}: no control arm answered the same questions"
        return about(window, Outcome.INCONCLUSIVE, reason, what=PAIRED)
    changed = same_inputs(control, tested)
    if changed is not None:
        reason = f"{tested.words} cannot be paired with {control.words} of the control: {changed}"
        return about(window, Outcome.INVALID, reason, what=PAIRED)
    flips = [_flips(control, tested, name) for name in FILTERS]
    flips = [flip for flip in flips if flip.pairs]
    if not flips:
        reason = f"{tested.words}: no question has a whole, scored answer in both arms"
        return about(window, Outcome.INCONCLUSIVE, reason, what=PAIRED)
    scenario = ledger.scenario
    error_rate = scenario.error_rate if scenario is not None else DEFAULT_ERROR_RATE
    return _judged(control, tested, flips, error_rate)


def compare(ledger: Ledger, stage: str, *, same_inputs: SameInputs) -> list[Finding]:
    """Every round of every tested arm of a stage against the control's round of that number."""
    arms = [arm for other, arm in ledger.pairs if other == stage and ledger.role(arm) == "tested"]
    return [
        _compare(ledger, round_, same_inputs)
        for arm in arms
        for round_ in all_rounds(ledger.measured(stage, arm))
    ]

"""Rounds of an evaluation: did the tier answer, and do answers change more than by noise?

A cold round against a hit round changes answers in clean runs too, because the rest of a prompt is
computed in another shape. So the change rate of the tested arm is compared with that of the
control, whose later rounds hit locally. Each change is explained by the recorded log-probabilities:
a tie inside what the gap of two tokens moved in answers that did not change, or more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.checks.answers import Answer, Divergence, divergence
from kvbench.checks.chance import fisher_more
from kvbench.checks.common import MAX_LISTED, What, about, about_arm, listed
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.evaluation import Answered, Round, all_rounds
from kvbench.ledger.facts import Ledger, Window

CHANGED = What("rounds_alike", "identity", "tokens")
SERVED = What("rounds_served", "hits", "counters")
DEFAULT_ERROR_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """A question whose answer is not that of the first round."""

    doc_id: int
    sample: Answered
    at: Divergence | None
    """None where the tokens of an answer were not recorded"""

    def is_tie(self, band_nats: float) -> bool:
        """True where the first round found both tokens no farther apart than noise moves them."""
        at = self.at
        return at is not None and at.gap_nats is not None and abs(at.gap_nats) <= band_nats

    @property
    def words(self) -> str:
        """For a sentence."""
        return f"question {self.doc_id}" + (f" {self.at.words}" if self.at is not None else "")


@dataclass(frozen=True, slots=True)
class Changes:
    """A later round against the first one of its arm."""

    round: Round
    questions: int
    changed: tuple[Change, ...]
    band_nats: float
    """largest change of the gap of the two best tokens, in answers that did not change"""

    @property
    def beyond(self) -> tuple[Change, ...]:
        """Changes that no tie explains."""
        return tuple(change for change in self.changed if not change.is_tie(self.band_nats))


def _answer(window: Window, sample: Answered) -> Answer | None:
    """The recorded tokens behind a sample."""
    for request in window.requests:
        if request.done.request_id == sample.done.request_id and request.done.tokens:
            return Answer(window, request)
    return None


def _moved_gap(left: Answer, right: Answer) -> float:
    """Largest change of the gap between the two best tokens of a position, nats.

    Only the best two can exchange places at a tie; what moves far down a top-k says nothing.
    """
    largest = 0.0
    for ours, theirs in zip(left.tokens, right.tokens, strict=True):
        ranked = sorted(
            ((value, name) for name, value in ours.top.items() if value is not None), reverse=True
        )[:2]
        there = [theirs.top.get(name) for _, name in ranked]
        if len(there) == 2 and there[0] is not None and there[1] is not None:
            before = ranked[0][0] - ranked[1][0]
            largest = max(largest, abs(before - (there[0] - there[1])))
    return largest


def compare_rounds(first: Round, later: Round) -> Changes:
    """Which answers changed from one round to another, and why."""
    band = 0.0
    changed = []
    docs = [doc for doc in later.by_doc if doc in first.by_doc]
    for doc in docs:
        before, after = first.by_doc[doc], later.by_doc[doc]
        left, right = _answer(first.window, before), _answer(later.window, after)
        if left is None or right is None:
            if before.done.answer != after.done.answer:
                changed.append(Change(doc, after, None))
            continue
        at = divergence(left, right)
        if at is None:
            band = max(band, _moved_gap(left, right))
        else:
            changed.append(Change(doc, after, at))
    return Changes(later, len(docs), tuple(changed), band)


def changes_of(ledger: Ledger, stage: str, arm: str) -> tuple[Changes, ...]:
    """Every later round of an arm against its first one."""
    rounds = all_rounds(ledger.measured(stage, arm))
    return tuple(compare_rounds(rounds[0], later) for later in rounds[1:])


def _alike(ledger: Ledger, tested: Changes, control: tuple[Changes, ...]) -> Finding:
    window = tested.round.window
    beyond = tested.beyond
    ties = len(tested.changed) - len(beyond)
    words = (
        f"{tested.questions - len(tested.changed)} of {tested.questions} answers of "
        f"{tested.round.words} are those of round 1; {ties} changed at a tie "
        f"(band {tested.band_nats:.3g} nats), {len(beyond)} beyond one"
    )
    notes = [f"beyond a tie: {change.words}" for change in beyond[:MAX_LISTED]]
    if not control:
        outcome = Outcome.INCONCLUSIVE if beyond else Outcome.PASS
        reason = f"{words}; no control arm asked twice" if beyond else words
        return about(window, outcome, reason, what=CHANGED, notes=notes)
    same = [each for each in control if each.round.number == tested.round.number] or [control[-1]]
    off = same[0]
    # Changes at a tie are noise, and damage makes some as well: so both counts are compared.
    p_values = (
        fisher_more(len(tested.changed), tested.questions, len(off.changed), off.questions),
        fisher_more(len(beyond), tested.questions, len(off.beyond), off.questions),
    )
    rate = ledger.scenario.error_rate if ledger.scenario is not None else DEFAULT_ERROR_RATE
    each = rate / len(p_values)
    compared = (
        f"changed: tested {len(tested.changed)}/{tested.questions}, control "
        f"{len(off.changed)}/{off.questions} (one-sided p {p_values[0]:.2g}); beyond a tie: "
        f"{len(beyond)} and {len(off.beyond)} (p {p_values[1]:.2g})"
    )
    if min(p_values) < each:
        changed = beyond or tested.changed
        outcome = Outcome.FAIL
        words = (
            f"answers change oftener than in the control: {compared}: "
            f"{listed([change.words for change in changed])}"
        )
    else:
        outcome, words = Outcome.PASS, f"{words}; {compared}"
    return about(
        window,
        outcome,
        words,
        what=CHANGED,
        expected=f"both p >= {each:g}",
        observed=compared,
        notes=notes,
    )


def _served(stage: str, arm: str, rounds: tuple[Round, ...]) -> Finding:
    """External hits in the rounds after the first: the claim's counter must have moved."""
    words, total = [], 0.0
    is_known = True
    for each in rounds:
        deltas = each.window.deltas
        tokens = [
            deltas.total(name) if deltas is not None else None
            for name in ("local_hits", "local_queries", "external_hits", "external_queries")
        ]
        shown = ["n/a" if value is None else f"{value:.0f}" for value in tokens]
        words.append(
            f"{each.words}: local {shown[0]}/{shown[1]}, external {shown[2]}/{shown[3]} tokens"
        )
        if each is not rounds[0]:
            is_known = is_known and tokens[2] is not None
            total += tokens[2] or 0.0
    if len(rounds) < 2:
        outcome, reason = Outcome.INCONCLUSIVE, "one round only: nothing was asked again"
    elif not is_known:
        outcome, reason = Outcome.INVALID, "external hits could not be read"
    elif total:
        outcome, reason = Outcome.PASS, f"the tier served later rounds: {total:.0f} tokens"
    else:
        outcome, reason = Outcome.INCONCLUSIVE, "vacuous: the tier served no token of a later round"
    return about_arm(
        stage,
        arm,
        outcome,
        f"{reason} ({'; '.join(words)})",
        what=SERVED,
        expected="external hits > 0 after round 1",
        observed="; ".join(words),
    )


def check(ledger: Ledger) -> list[Finding]:
    """What the rounds of each stage say, where it has an evaluation."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        rounds = all_rounds(ledger.measured(stage, arm))
        if not rounds or ledger.role(arm) != "tested":
            continue
        findings.append(_served(stage, arm, rounds))
        control = ledger.control_of(stage)
        theirs = changes_of(ledger, stage, control) if control is not None else ()
        findings += [_alike(ledger, mine, theirs) for mine in changes_of(ledger, stage, arm)]
    return findings

"""Comparing two answers to the same prompt: tokens, and log-probabilities as far as they share a
past.

Positions are compared up to and including the first token that differs: until then both answers
were computed after the same tokens. A token that only one top-k names bounds its difference from
below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kvbench.checks.finite import damage
from kvbench.checks.memo import remembered
from kvbench.events import Token
from kvbench.ledger.facts import Request, Window


class Answer(NamedTuple):
    """A scored answer that can be compared, with its window."""

    window: Window
    request: Request

    @property
    def ids(self) -> tuple[int, ...]:
        """Generated token ids."""
        return tuple(token.token_id for token in self.request.done.tokens)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Generated positions."""
        return self.request.done.tokens


@remembered
def usable(window: Window) -> list[Answer]:
    """Complete scored answers with finite log-probabilities, in the order sent.

    An answer to another prompt than the planned one says nothing about this one.
    """
    return [
        Answer(window, request)
        for request in window.scored
        if request.done.error is None
        and request.done.tokens
        and request.is_as_sent
        and damage(request, None) is None
    ]


def by_prompt(answers: Iterable[Answer]) -> dict[str, Answer]:
    """The first answer of each prompt."""
    result: dict[str, Answer] = {}
    for answer in answers:
        result.setdefault(answer.request.prompt_id, answer)
    return result


class Divergence(NamedTuple):
    """The first position at which two answers differ."""

    position: int
    reference_token: int | None
    token: int | None
    gap_nats: float | None
    """how much likelier the reference found its own token; None: the other is not in its top-k"""

    @property
    def words(self) -> str:
        """For a reason."""
        gap = "not in the top-k" if self.gap_nats is None else f"top-2 gap {self.gap_nats:.6g} nats"
        return f"position {self.position}: token {self.token} for {self.reference_token} ({gap})"


def divergence(reference: Answer, other: Answer) -> Divergence | None:
    """Where the tokens of two answers part; None where they are equal."""
    position = _first_difference(reference.tokens, other.tokens)
    if position is None:
        return None
    left = reference.tokens[position] if position < len(reference.tokens) else None
    right = other.tokens[position] if position < len(other.tokens) else None
    gap = None
    if left is not None and right is not None:
        own, its = left.logprob, left.top.get(str(right.token_id))
        gap = own - its if own is not None and its is not None else None
    return Divergence(
        position, left.token_id if left else None, right.token_id if right else None, gap
    )


def _first_difference(left: tuple[Token, ...], right: tuple[Token, ...]) -> int | None:
    for position, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours.token_id != theirs.token_id:
            return position
    return min(len(left), len(right)) if len(left) != len(right) else None


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the log-probabilities of two answers lie apart."""

    max_nats: float
    """largest difference, lower bounds of tokens missing from a top-k included"""
    mean_nats: float
    """mean over the common tokens"""
    gap_nats: float
    """largest change of the gap between two tokens: what a tie can be turned by"""
    quiet_gap_nats: float
    """the same, before the first token that differs"""
    values: int
    positions: int
    missing: int
    """tokens that only one top-k names"""
    position: int
    """where the largest difference is"""
    token: int
    left: float
    right: float
    """its two values; for a missing token the smallest one that its top-k names"""

    @property
    def words(self) -> str:
        """For a reason."""
        values = f"{self.left!r} against {self.right!r} nats"
        return f"position {self.position}, token {self.token}: {values}"


def _values(token: Token) -> dict[int, float]:
    found = {int(name): value for name, value in token.top.items() if value is not None}
    if token.logprob is not None:
        found.setdefault(token.token_id, token.logprob)
    return found


class _Worst(NamedTuple):
    nats: float
    position: int
    token: int
    left: float
    right: float


def _at(position: int, left: Token, right: Token) -> tuple[list[float], int, _Worst]:
    """Signed differences on the common tokens, number of tokens missing, largest difference."""
    ours, theirs = _values(left), _values(right)
    deltas: list[float] = []
    worst = _Worst(-1.0, position, left.token_id, 0.0, 0.0)
    for token in sorted(ours.keys() & theirs.keys()):
        delta = theirs[token] - ours[token]
        deltas.append(delta)
        if abs(delta) > worst.nats:
            worst = _Worst(abs(delta), position, token, ours[token], theirs[token])
    floor_ours, floor_theirs = min(ours.values()), min(theirs.values())
    for token in sorted(ours.keys() ^ theirs.keys()):
        # The other side gives it at most its own smallest value: a lower bound of the difference.
        own = ours.get(token, floor_ours)
        its = theirs.get(token, floor_theirs)
        bound = max(own - its, 0.0) if token in ours else max(its - own, 0.0)
        if bound > worst.nats:
            worst = _Worst(bound, position, token, own, its)
    return deltas, len(ours.keys() ^ theirs.keys()), worst


def distance(reference: Answer, other: Answer) -> Distance:
    """Largest and mean difference over the positions that share a past."""
    return _distance(reference.request, other.request)


@remembered
def _distance(reference: Request, other: Request) -> Distance:
    left, right = reference.done.tokens, other.done.tokens
    shortest = min(len(left), len(right))
    parted = _first_difference(left, right)
    count = shortest if parted is None else min(shortest, parted + 1)
    deltas: list[float] = []
    missing = 0
    gap = quiet = 0.0
    worst = _Worst(-1.0, 0, -1, 0.0, 0.0)
    for position in range(count):
        found, lacking, here = _at(position, left[position], right[position])
        deltas += [abs(delta) for delta in found]
        gap = max(gap, max(found) - min(found)) if found else gap
        quiet = gap if parted is None or position < parted else quiet
        missing += lacking
        worst = here if here.nats > worst.nats else worst
    return Distance(
        max_nats=max(worst.nats, 0.0),
        mean_nats=sum(deltas) / len(deltas) if deltas else 0.0,
        gap_nats=gap,
        quiet_gap_nats=quiet,
        values=len(deltas),
        positions=count,
        missing=missing,
        position=worst.position,
        token=worst.token,
        left=worst.left,
        right=worst.right,
    )

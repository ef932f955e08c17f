"""Rounds of an evaluation, counted from the recorded samples.

A score alone hides what it is made of: answers that were cut off, that say nothing, that never came
or that a filter could not read all lower it without any defect of the cache (F33). So each of them
is counted by itself, and the tool's own figure stands beside the one that its samples add up to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kvbench.events import EvaluationDone, ReportedScore, SampleDone
from kvbench.ledger.facts import JOURNAL, Window

FilterName = Literal["strict", "flexible"]
FILTERS: Final[tuple[FilterName, ...]] = ("strict", "flexible")
NOTHING_FOUND: Final = "[invalid]"
"""What lm-eval's regex filter writes where nothing matches."""

CUT: Final = "length"
"""Finish reason of an answer that reached its limit."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One sample, with its place in the record."""

    done: SampleDone
    line: int

    @property
    def where(self) -> str:
        """Place in the record."""
        return f"{JOURNAL}:{self.line}"

    @property
    def is_answered(self) -> bool:
        """True where an answer came back, whatever it says."""
        return self.done.error is None and self.done.answer is not None

    @property
    def is_truncated(self) -> bool:
        """True where the answer was cut at its limit."""
        return self.is_answered and self.done.finish_reason == CUT

    @property
    def is_empty(self) -> bool:
        """True where an answer came back that shows no text."""
        return self.is_answered and not (self.done.answer or "").strip()

    @property
    def is_whole(self) -> bool:
        """True where its score speaks about the model and not about the limits."""
        return self.is_answered and not self.is_truncated and not self.is_empty

    def correct(self, name: FilterName) -> bool | None:
        """The filter's verdict; None where the sample was not scored by it."""
        if not self.is_answered:
            return None
        return self.done.strict_correct if name == "strict" else self.done.flexible_correct

    def is_invalid(self, name: FilterName) -> bool:
        """True where the filter found nothing in the answer that it could score."""
        found = self.done.strict_answer if name == "strict" else self.done.flexible_answer
        return self.correct(name) is not None and found in (None, NOTHING_FOUND)


@dataclass(frozen=True, slots=True)
class FilterScore:
    """One filter's score over the answers that it scored."""

    name: FilterName
    scored: int
    correct: int
    invalid: int
    """answers in which it found nothing; they count as wrong"""
    reported: ReportedScore | None
    """as the tool says it"""

    @property
    def score(self) -> float | None:
        """Share of correct answers, 0 to 1; None where nothing was scored."""
        return self.correct / self.scored if self.scored else None

    @property
    def standard_error(self) -> float | None:
        """Binomial standard error of the score; None where nothing was scored."""
        share = self.score
        return None if share is None else math.sqrt(share * (1 - share) / self.scored)

    @property
    def words(self) -> str:
        """For a sentence: `strict 12/16 = 0.750 +- 0.108`."""
        share, error = self.score, self.standard_error
        if share is None or error is None:
            return f"{self.name} n/a"
        return f"{self.name} {self.correct}/{self.scored} = {share:.3f} +- {error:.3f}"


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Round:
    """One round of an evaluation in one window."""

    window: Window
    number: int
    done: EvaluationDone | None
    """None where the tool did not come to an end"""
    samples: tuple[Answered, ...]

    @property
    def asked(self) -> int | None:
        """Samples that were asked for; None where nobody said it."""
        return self.done.samples_asked if self.done is not None else None

    @property
    def answered(self) -> tuple[Answered, ...]:
        """Samples to which an answer came back."""
        return tuple(sample for sample in self.samples if sample.is_answered)

    @property
    def missing(self) -> int | None:
        """Samples that were asked for and have no answer; None where it is not known."""
        return None if self.asked is None else self.asked - len(self.by_doc)

    @property
    def truncated(self) -> tuple[Answered, ...]:
        """Answers that were cut at their limit."""
        return tuple(sample for sample in self.samples if sample.is_truncated)

    @property
    def empty(self) -> tuple[Answered, ...]:
        """Answers that show no text."""
        return tuple(sample for sample in self.samples if sample.is_empty)

    @property
    def by_doc(self) -> Mapping[int, Answered]:
        """Answered samples by the number of their question; the last one where there are two."""
        return {sample.done.doc_id: sample for sample in self.answered}

    @property
    def twice(self) -> tuple[int, ...]:
        """Questions that were answered more than once."""
        counts = Counter(sample.done.doc_id for sample in self.answered)
        return tuple(sorted(doc for doc, count in counts.items() if count > 1))

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return f"round {self.number}"

    def filter(self, name: FilterName) -> FilterScore:
        """The score of one filter over the answered samples."""
        scored = [sample for sample in self.answered if sample.correct(name) is not None]
        return FilterScore(
            name=name,
            scored=len(scored),
            correct=sum(sample.correct(name) is True for sample in scored),
            invalid=sum(sample.is_invalid(name) for sample in scored),
            reported=self.done.scores.get(name) if self.done is not None else None,
        )


def rounds_of(window: Window) -> tuple[Round, ...]:
    """The rounds that were recorded in a window, by their numbers."""
    done = {event.round: event for _, event in window.evaluations}
    numbers = sorted({sample.round for _, sample in window.samples} | done.keys())
    return tuple(
        Round(
            window=window,
            number=number,
            done=done.get(number),
            samples=tuple(
                Answered(sample, line) for line, sample in window.samples if sample.round == number
            ),
        )
        for number in numbers
    )


def all_rounds(windows: Iterable[Window]) -> tuple[Round, ...]:
    """The rounds of several windows, in the order of the record."""
    return tuple(found for window in windows for found in rounds_of(window))

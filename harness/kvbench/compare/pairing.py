"""Which request is paired with which: the same prompt, to the token, in the same phase.

Phases of one kind (replay-1, replay-2) repeat one thing, so a prompt's time there is the median
over them. Prompts are the independent units: repeats of one prompt share its length and its luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from kvbench.checks.answers import Answer, by_prompt, divergence, usable
from kvbench.compare.runs import Place, Run
from kvbench.ledger import Request, Window

Metric = Callable[[Request], float | None]


class Group(NamedTuple):
    """Phases of one kind in a stage under an arm, at one concurrency."""

    stage: str
    arm: str
    kind: str
    concurrency: int

    @property
    def words(self) -> str:
        """As a phase is named, without its number."""
        return self.kind if self.concurrency == 1 else f"{self.kind} c{self.concurrency}"


class PairedTimes(NamedTuple):
    """Times of the same prompts in two runs, seconds."""

    base: list[float]
    other: list[float]
    unpaired: int
    """prompts that only one of them answered, or that differ in a token"""


def shared_places(base: Run, other: Run) -> list[Place]:
    """Places that both runs measured to their end, in the base's order."""
    return [place for place in base.windows if place in other.windows]


def groups(base: Run, other: Run) -> dict[Group, list[Place]]:
    """Shared places by what they repeat; without those whose numbers are not usable."""
    found: dict[Group, list[Place]] = {}
    doubtful = base.doubtful | other.doubtful
    for place in (each for each in shared_places(base, other) if each not in doubtful):
        window = base.windows[place]
        group = Group(window.stage, window.arm, window.kind, window.concurrency)
        found.setdefault(group, []).append(place)
    return found


def same_prompt(base: Run, other: Run, prompt_id: str) -> bool:
    """True where both plans have the prompt, with the same token ids."""
    one, two = base.ledger.plan, other.ledger.plan
    if one is None or two is None:
        return False
    return prompt_id in one.prompts and one.prompts[prompt_id] == two.prompts.get(prompt_id)


def _by_prompt(run: Run, places: Sequence[Place], metric: Metric) -> dict[str, float]:
    """Median time of each prompt over these phases; failed requests have no time."""
    found: dict[str, list[float]] = {}
    for place in places:
        for request in run.windows[place].scored:
            value = metric(request) if request.done.error is None else None
            if value is not None and value > 0:
                found.setdefault(request.prompt_id, []).append(value)
    return {prompt: median(values) for prompt, values in found.items()}


def paired_times(base: Run, other: Run, places: Sequence[Place], metric: Metric) -> PairedTimes:
    """Times of the prompts that both runs answered in these phases."""
    ours, theirs = _by_prompt(base, places, metric), _by_prompt(other, places, metric)
    both = [name for name in ours if name in theirs and same_prompt(base, other, name)]
    unpaired = len(ours.keys() | theirs.keys()) - len(both)
    return PairedTimes([ours[name] for name in both], [theirs[name] for name in both], unpaired)


def equal_answers(base: Run, other: Run, place: Place) -> tuple[int, int]:
    """How many answers of a phase have the same tokens in both runs, and of how many."""
    ours, theirs = _answers(base.windows[place]), _answers(other.windows[place])
    both = [name for name in ours if name in theirs and same_prompt(base, other, name)]
    return sum(divergence(ours[name], theirs[name]) is None for name in both), len(both)


def _answers(window: Window) -> dict[str, Answer]:
    return by_prompt(usable(window))

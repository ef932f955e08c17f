"""Which answer is compared with which: the matched pairs that the bands and the verdicts are made
of.

A CPU hit and a GPU hit of equal length skip the same prefix and compute the same rest, so they are
a pair; against a fresh run the rest has another shape, and only a GPU hit of that length says what
that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.checks.answers import Answer, Distance, by_prompt, distance, usable
from kvbench.checks.common import COLD_KINDS, FRESH, HIT_KINDS, HOT, dtype_of
from kvbench.checks.memo import remembered
from kvbench.checks.reset_proof import not_cold
from kvbench.ledger.facts import Ledger, Window

FLOAT32_ROUNDING_NATS = 2.0**-16
"""32 steps of the last bit of a float32 log-probability between 4 and 8.

Another batch shape or chunk border sums in another order: clean float32 runs differed by up to
5e-6 nats, though never between two hits of equal length at concurrency 1. A zeroed block moves 0.2
and an eighth of one layer's block 0.04 nats (measured); what moves less, only bytes can show.
"""
SHAPE_FACTOR = 8
"""Under load a difference may be this many times the largest one that batch shapes made in the
same run: the largest of a few prompts is a rough guide, and damage lies orders of magnitude above.
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, and how far they lie apart."""

    prompt_id: str
    reference: Answer
    other: Answer
    distance: Distance


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Runs:
    """The windows of one stage, arm and concurrency that are compared, in order."""

    stage: str
    arm: str
    concurrency: int
    dtype: str
    fresh: tuple[Window, ...]
    hot: tuple[Window, ...]
    hits: tuple[Window, ...]
    """replay and reload"""

    @property
    def is_bit_stable_under_load(self) -> bool:
        """Batch shapes move float32 answers by rounding only; bfloat16 ones by whole steps."""
        return self.concurrency == 1 or self.dtype == "float32"


@remembered
def runs_of(ledger: Ledger, stage: str, arm: str) -> list[Runs]:
    """Comparable windows by concurrency, ascending; cold phases that are not cold are left out."""
    denied = not_cold(ledger)
    windows = [
        window
        for window in ledger.measured(stage, arm)
        if window.id not in denied or window.kind not in COLD_KINDS
    ]
    result = []
    for concurrency in sorted({window.concurrency for window in windows}):
        mine = [window for window in windows if window.concurrency == concurrency]
        result.append(
            Runs(
                stage=stage,
                arm=arm,
                concurrency=concurrency,
                dtype=dtype_of(ledger, mine[0]),
                fresh=tuple(window for window in mine if window.kind == FRESH),
                hot=tuple(window for window in mine if window.kind == HOT),
                hits=tuple(window for window in mine if window.kind in HIT_KINDS),
            )
        )
    return result


def pair(reference: Answer, other: Answer) -> Pair:
    """The pair with its distance."""
    return Pair(reference.request.prompt_id, reference, other, distance(reference, other))


def reference_of(runs: Sequence[Runs]) -> dict[str, Answer]:
    """The first fresh answer of each prompt, at the lowest concurrency that has one."""
    for each in runs:
        if each.fresh:
            return by_prompt(usable(each.fresh[0]))
    return {}


@remembered
def fresh_pairs(runs: Runs) -> list[Pair]:
    """The first fresh run against each later one."""
    if not runs.fresh:
        return []
    first = by_prompt(usable(runs.fresh[0]))
    return [
        pair(first[answer.request.prompt_id], answer)
        for window in runs.fresh[1:]
        for answer in usable(window)
        if answer.request.prompt_id in first
    ]


@remembered
def gpu_hits(runs: Runs) -> dict[tuple[str, int], list[Answer]]:
    """GPU hits by prompt and cached length."""
    result: dict[tuple[str, int], list[Answer]] = {}
    for window in runs.hot:
        for answer in usable(window):
            if answer.request.cached:
                key = (answer.request.prompt_id, answer.request.cached)
                result.setdefault(key, []).append(answer)
    return result


@remembered
def gpu_pairs(runs: Runs) -> list[Pair]:
    """The first GPU hit of each prompt and length against the second one: the band of a GPU hit."""
    return [
        pair(first, second)
        for first, second, *_ in (a for a in gpu_hits(runs).values() if len(a) > 1)
    ]


def is_cpu_hit(answer: Answer) -> bool:
    """True where the external tier gave a part; above concurrency 1, where any tier did."""
    request = answer.request
    if request.external is not None:
        return request.external > 0
    return bool(request.cached)


def cpu_hits(window: Window) -> list[Answer]:
    """Answers of a replay or reload that came from the tier."""
    return [answer for answer in usable(window) if is_cpu_hit(answer)]


@remembered
def matched_pairs(runs: Runs, window: Window) -> list[Pair]:
    """Each CPU hit of `window` against the GPU hit of the same prompt and equal cached length."""
    hits = gpu_hits(runs)
    result = []
    for answer in cpu_hits(window):
        found = hits.get((answer.request.prompt_id, answer.request.cached or 0))
        if found:
            result.append(pair(found[0], answer))
    return result


def against_fresh(runs: Runs, answers: Sequence[Answer]) -> list[Pair]:
    """Answers against the first fresh run of the same concurrency."""
    if not runs.fresh:
        return []
    first = by_prompt(usable(runs.fresh[0]))
    return [
        pair(first[answer.request.prompt_id], answer)
        for answer in answers
        if answer.request.prompt_id in first
    ]


def between_arms(ledger: Ledger, stage: str, arm: str) -> list[Pair]:
    """First fresh run of the control arm against that of `arm`, at the lowest concurrency."""
    control = ledger.control_of(stage)
    if control is None or control == arm:
        return []
    theirs = reference_of(runs_of(ledger, stage, control))
    ours = reference_of(runs_of(ledger, stage, arm))
    return [pair(theirs[prompt], ours[prompt]) for prompt in theirs if prompt in ours]


def worst(pairs: Sequence[Pair]) -> float | None:
    """Largest difference of all, nats; None where there is nothing to compare."""
    return max((each.distance.max_nats for each in pairs), default=None)


def rounding_nats(ledger: Ledger, runs: Runs) -> float:
    """What rounding may do to a pair whose batch shapes differ; 0 in a 16-bit type."""
    if runs.dtype != "float32":
        return 0.0
    if runs.concurrency == 1:
        return FLOAT32_ROUNDING_NATS
    all_runs = [
        each
        for each in runs_of(ledger, runs.stage, runs.arm)
        if each.concurrency <= runs.concurrency
    ]
    alone = reference_of(all_runs)
    shaped = [
        pair(alone[answer.request.prompt_id], answer)
        for window in runs.fresh
        for answer in usable(window)
        if answer.request.prompt_id in alone
    ]
    for each in all_runs:
        shaped += against_fresh(each, [answers[0] for answers in gpu_hits(each).values()])
    return max(FLOAT32_ROUNDING_NATS, SHAPE_FACTOR * (worst(shaped) or 0.0))

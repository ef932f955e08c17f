"""Are the log-probabilities of a CPU hit those of a GPU hit?

Matched comparison: both skip the same prefix and compute the same rest, so they must agree as two
GPU hits do. Where two GPU hits agree to the bit, so must a CPU hit; where they do not, "every delta
below the largest seen" cries wolf half of the time, and two tests over prompts decide (see
`statistics`).

Above concurrency 1 in a 16-bit type nothing is failed on a difference: the time that a load takes
shifts the batch shapes, and a clean CPU hit differed from a GPU hit by 0.11 nats while GPU hits
agreed exactly (measured). There flips outside of ties decide, which is the identity check; the
maxima are notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvbench.checks.answers import usable
from kvbench.checks.common import What, about, about_arm, listed, short, tested_pairs
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.identity import Compared, compare_arm
from kvbench.checks.matching import (
    Pair,
    Runs,
    against_fresh,
    between_arms,
    cpu_hits,
    fresh_pairs,
    gpu_hits,
    gpu_pairs,
    matched_pairs,
    rounding_nats,
    runs_of,
    worst,
)
from kvbench.checks.reset_proof import not_cold
from kvbench.checks.statistics import outlier, signed_rank
from kvbench.ledger.facts import Ledger, Window

CLAIM = "logprobs"
MATCHED = "cpu_hit_equals_gpu_hit"
AGAINST_FRESH = "cpu_hit_adds_nothing"
COLD = "cold_equals_fresh"
GPU_AS_CONTROL = "gpu_hit_as_control"
MIN_FRESH_RUNS = 3
"""Fewer fresh runs make one pair of neighbours, and no band (F07 of the fault models)."""


class Question(NamedTuple):
    """One comparison to decide: the pairs in question, and the band of each of their prompts."""

    check: str
    window: Window
    pairs: Sequence[Pair]
    band: dict[str, float]
    words: str
    """what is compared with what"""
    band_words: str
    allowance_nats: float = 0.0
    """difference that rounding alone explains; 0 where the comparison is exact"""


def _finding(question: Question, outcome: Outcome, reason: str, on: Sequence[Pair] = ()) -> Finding:
    largest, band = worst(question.pairs), max(question.band.values(), default=None)
    return about(
        question.window,
        outcome,
        reason,
        what=What(question.check, CLAIM, "logprobs"),
        requests=[pair.other.request for pair in on],
        expected="n/a" if band is None else f"{question.band_words}: max {band!r} nats",
        observed="n/a" if largest is None else f"max {largest!r} nats",
        notes=[f"{short(pair.prompt_id)} {pair.distance.words}" for pair in on],
    )


def _exact(question: Question) -> Finding:
    """The band is exactly 0: any difference is a fail."""
    wrong = [pair for pair in question.pairs if pair.distance.max_nats > 0]
    words = [f"{short(pair.prompt_id)} {pair.distance.words}" for pair in wrong]
    reason = (
        f"{question.words} differs in {question.window.label} where {question.band_words} agree to "
        f"the bit: {listed(words)}"
    )
    return _finding(question, Outcome.FAIL, reason, wrong)


def _by_tests(question: Question, error_rate: float) -> Finding:
    """The band is not 0: a paired test for a shift of all prompts, and one for a single prompt."""
    pairs = [pair for pair in question.pairs if pair.prompt_id in question.band]
    ours = [pair.distance.max_nats for pair in pairs]
    noise = [question.band[pair.prompt_id] for pair in pairs]
    shift = signed_rank(ours, noise)
    far = outlier(ours, noise)
    largest, band = max(ours, default=0.0), max(noise, default=0.0)
    maxima = f"max {largest:.6g} nats, band {band:.6g}"
    where = question.window.label
    if shift.p_value < error_rate:
        reason = f"{question.words} is outside the band in {where}: {maxima}, p {shift.p_value:.3g}"
        return _finding(question, Outcome.FAIL, reason, pairs)
    if far is not None and far.p_value < error_rate:
        pair = pairs[far.pair]
        reason = (
            f"{question.words} is outside the band in {where} for {short(pair.prompt_id)} "
            f"({pair.distance.words}): {maxima}, p {far.p_value:.3g}"
        )
        return _finding(question, Outcome.FAIL, reason, [pair])
    exceeds = any(a > b for a, b in zip(ours, noise, strict=True))
    if exceeds and shift.smallest_p >= error_rate:
        reason = (
            f"{shift.pairs} prompts cannot decide at error rate {error_rate:g} whether "
            f"{question.words} is outside the band in {where}: {maxima}"
        )
        return _finding(question, Outcome.INCONCLUSIVE, reason, pairs)
    reason = f"{question.words} is inside the band in {where}: {maxima}, p {shift.p_value:.3g}"
    return _finding(question, Outcome.PASS, reason)


def _by_flips(question: Question, runs: Runs, largest: float, flips: int) -> Finding:
    """Under load in a 16-bit type a difference is no evidence; flips outside of ties are."""
    differs = f"{question.words} differs by up to {largest:.6g} nats in {question.window.label}"
    load = f"at concurrency {runs.concurrency} in {runs.dtype} batch shapes shift"
    if flips:
        reason = f"{differs}; {load}, so that is no evidence, and {flips} answers flipped"
        return _finding(question, Outcome.INCONCLUSIVE, reason, question.pairs)
    reason = f"{differs}, not judged: {load}; no answer flipped outside of a tie"
    return _finding(question, Outcome.PASS, reason)


def _small_words(question: Question, runs: Runs, largest: float) -> str:
    label, count = question.window.label, len(question.pairs)
    if largest == 0:
        return f"{question.words}: {count} of {count} bit-equal in {label}"
    return (
        f"{question.words} differs by at most {largest:.3g} nats in {label}, as rounding in "
        f"{runs.dtype} does (allowed: {question.allowance_nats:.3g})"
    )


def _decide(question: Question, runs: Runs, error_rate: float, flips: int) -> Finding:
    label, largest = question.window.label, worst(question.pairs)
    if largest is None:
        reason = f"nothing to compare in {label}: no {question.words} of equal cached length"
        return _finding(question, Outcome.INCONCLUSIVE, reason)
    if largest <= question.allowance_nats:
        return _finding(question, Outcome.PASS, _small_words(question, runs, largest))
    if not runs.is_bit_stable_under_load:
        return _by_flips(question, runs, largest, flips)
    if not question.band:
        reason = f"no band for {label}: {question.band_words} were not measured"
        return _finding(question, Outcome.INCONCLUSIVE, reason, question.pairs)
    if max(question.band.values()) == 0:
        return _exact(question)
    return _by_tests(question, error_rate)


def _largest_by_prompt(pairs: Sequence[Pair]) -> dict[str, float]:
    result: dict[str, float] = {}
    for pair in pairs:
        result[pair.prompt_id] = max(result.get(pair.prompt_id, 0.0), pair.distance.max_nats)
    return result


def _matched(runs: Runs, window: Window) -> Question:
    return Question(
        MATCHED,
        window,
        matched_pairs(runs, window),
        _largest_by_prompt(gpu_pairs(runs)),
        "CPU hit against GPU hit",
        "two GPU hits",
    )


def _fresh(runs: Runs, window: Window) -> Question:
    """Against fresh: a CPU hit may differ as fresh runs and as a GPU hit of its length do."""
    answers = cpu_hits(window)
    twins = [pair.reference for pair in matched_pairs(runs, window)]
    as_gpu = _largest_by_prompt(against_fresh(runs, twins))
    fresh = _largest_by_prompt(fresh_pairs(runs))
    pairs = against_fresh(runs, answers)
    is_exact = not any(as_gpu.values()) and not any(fresh.values()) and bool(as_gpu)
    band = {
        prompt: max(as_gpu.get(prompt, 0.0), noise)
        for prompt, noise in fresh.items()
        if prompt in as_gpu or is_exact
    }
    if not is_exact:  # of another length the rest has another shape: no twin, no comparison
        pairs = [pair for pair in pairs if pair.prompt_id in band]
    words = "fresh against fresh and GPU hit against fresh"
    return Question(AGAINST_FRESH, window, pairs, band, "CPU hit against fresh", words)


def _cold(runs: Runs, window: Window) -> Question:
    """After a reset of both tiers an answer is one more fresh run."""
    pairs = against_fresh(runs, usable(window))
    band = _largest_by_prompt(fresh_pairs(runs))
    return Question(COLD, window, pairs, band, "cold answer against fresh", "fresh against fresh")


def _cold_windows(ledger: Ledger, runs: Runs) -> list[Window]:
    denied = not_cold(ledger)
    return [
        window
        for window in ledger.measured(runs.stage, runs.arm)
        if window.kind == "cold_again"
        and window.concurrency == runs.concurrency
        and window.id not in denied
        and len(runs.fresh) >= MIN_FRESH_RUNS
    ]


def _gpu_as_control(ledger: Ledger, runs: Runs) -> list[Question]:
    """A store that damages the device's block shows on GPU hits and CPU hits alike.

    So a GPU hit may differ from fresh as the control's does, plus what two lives differ by: twice
    their largest distance on fresh answers (once for the fresh run, once for the hit).
    """
    control = ledger.control_of(runs.stage)
    if control is None or not runs.hot or runs.concurrency > 1:
        return []
    theirs = next((r for r in runs_of(ledger, runs.stage, control) if r.concurrency == 1), None)
    lives = worst(between_arms(ledger, runs.stage, runs.arm))
    if theirs is None or lives is None:
        return []
    as_control = {
        (p.prompt_id, p.other.request.cached): p.distance.max_nats
        for p in against_fresh(theirs, [a[0] for a in gpu_hits(theirs).values()])
    }
    ours = [
        pair
        for pair in against_fresh(runs, [a[0] for a in gpu_hits(runs).values()])
        if (pair.prompt_id, pair.other.request.cached) in as_control
    ]
    band: dict[str, float] = {}
    for pair in ours:
        noise = as_control[pair.prompt_id, pair.other.request.cached] + 2 * lives
        band[pair.prompt_id] = max(band.get(pair.prompt_id, 0.0), noise)
    words = "the control's GPU hits against fresh"
    question = Question(GPU_AS_CONTROL, runs.hot[0], ours, band, "GPU hit against fresh", words)
    return [question] if ours else []


def _besides(ledger: Ledger, runs: Runs, error_rate: float) -> list[Finding]:
    questions = [_cold(runs, window) for window in _cold_windows(ledger, runs)]
    questions = [question for question in questions if question.pairs]
    questions += _gpu_as_control(ledger, runs)
    allowed = rounding_nats(ledger, runs)
    return [_decide(q._replace(allowance_nats=allowed), runs, error_rate, 0) for q in questions]


def _unmatched(runs: Runs, window: Window) -> list[str]:
    matched = {pair.prompt_id for pair in matched_pairs(runs, window)}
    return [
        f"{short(answer.request.prompt_id)}: no GPU hit of {answer.request.cached} cached tokens"
        for answer in cpu_hits(window)
        if answer.request.prompt_id not in matched
    ]


def _of_window(
    ledger: Ledger, runs: Runs, window: Window, error_rate: float, flips: int
) -> list[Finding]:
    allowed = rounding_nats(ledger, runs)
    matched = _matched(runs, window)
    if runs.concurrency > 1:  # alone, two hits of equal length have one shape, and are exact
        matched = matched._replace(allowance_nats=allowed)
    findings = [_decide(matched, runs, error_rate, flips)]
    unmatched = _unmatched(runs, window)
    if unmatched and findings[0].outcome is Outcome.PASS:
        reason = f"not every CPU hit of {window.label} has a GPU hit of equal length: "
        findings.append(_finding(matched, Outcome.INCONCLUSIVE, reason + listed(unmatched)))
    fresh = _fresh(runs, window)._replace(allowance_nats=allowed)
    if len(runs.fresh) < MIN_FRESH_RUNS:
        reason = (
            f"{len(runs.fresh)} fresh runs make no band for {window.label}: "
            f"{MIN_FRESH_RUNS} are needed"
        )
        findings.append(_finding(fresh, Outcome.INCONCLUSIVE, reason))
    else:
        findings.append(_decide(fresh, runs, error_rate, flips))
    return findings


def _flips(compared: Sequence[Compared], window: Window) -> int:
    return sum(len(each.flips) for each in compared if each.window.id == window.id)


def _summed(stage: str, arm: str, check: str, found: Sequence[Finding]) -> Finding:
    """One pass for all phases; those that are not bit-equal are named first."""
    passes = sorted(found, key=lambda finding: "bit-equal" in finding.reason)
    return about_arm(
        stage,
        arm,
        Outcome.PASS,
        f"{len(passes)} of {len(passes)} phases: {listed([finding.reason for finding in passes])}",
        what=What(check, CLAIM, "logprobs"),
        expected=passes[0].expected,
        observed=passes[0].observed,
    )


def check(ledger: Ledger) -> list[Finding]:
    """Every replay and reload of every tested arm, against GPU hits and against fresh runs."""
    findings: list[Finding] = []
    error_rate = ledger.scenario.error_rate if ledger.scenario is not None else 0.01
    for stage, arm in tested_pairs(ledger):
        compared = compare_arm(ledger, stage, arm)
        mine = [
            finding
            for runs in runs_of(ledger, stage, arm)
            for window in runs.hits
            if cpu_hits(window)
            for finding in _of_window(ledger, runs, window, error_rate, _flips(compared, window))
        ]
        besides = [
            finding
            for runs in runs_of(ledger, stage, arm)
            for finding in _besides(ledger, runs, error_rate)
        ]
        if not mine:
            reason = "no CPU hit to compare"
            findings.append(
                about_arm(
                    stage,
                    arm,
                    Outcome.INCONCLUSIVE,
                    reason,
                    what=What(MATCHED, CLAIM, "logprobs"),
                )
            )
        for name in (MATCHED, AGAINST_FRESH, COLD, GPU_AS_CONTROL):
            same = [finding for finding in (*mine, *besides) if finding.check == name]
            passes = [finding for finding in same if finding.outcome is Outcome.PASS]
            findings += [finding for finding in same if finding.outcome is not Outcome.PASS]
            if passes and len(passes) == len(same):
                findings.append(_summed(stage, arm, name, passes))
    return findings

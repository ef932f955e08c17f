"""Are the tokens of every scored answer those of the first fresh run?

A flip is a tie where the reference found the two tokens no farther apart than this run's own noise
moves the gap of two tokens; that noise is measured on answers that did not flip. Flips that the
control arm shows as well are noise or a broken baseline, not the connector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvbench.checks.answers import Answer, Divergence, divergence, usable
from kvbench.checks.chance import fisher_more
from kvbench.checks.common import (
    FRESH,
    HIT_KINDS,
    HOT,
    What,
    about,
    about_arm,
    is_tool_stage,
    listed,
    short,
)
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.foreign import reads_like
from kvbench.checks.matching import (
    Runs,
    between_arms,
    gpu_hits,
    pair,
    reference_of,
    runs_of,
    worst,
)
from kvbench.checks.memo import remembered
from kvbench.ledger.facts import Ledger, Window

CLAIM = "identity"
CHECK = "tokens_equal"


@dataclass(frozen=True, slots=True)
class Flip:
    """An answer that differs from its reference, outside of a tie."""

    reference: Answer
    answer: Answer
    at: Divergence

    @property
    def words(self) -> str:
        """For a reason."""
        return f"{short(self.answer.request.prompt_id)} {self.at.words}"


@dataclass(frozen=True, slots=True)
class Compared:
    """One window against the reference."""

    window: Window
    answers: int
    equal: int
    ties: tuple[str, ...]
    as_gpu_hit: tuple[str, ...]
    flips: tuple[Flip, ...]


def _gap_band(prompt: str, reference: dict[str, Answer], windows: Sequence[Window]) -> float:
    """Largest change of the gap of two tokens by noise: what can turn a tie of `prompt`.

    Other prompts count up to where they part from their reference, this one only where it does not:
    a damaged answer must not widen the band that it is judged by.
    """
    gaps = [
        pair(reference[name], answer).distance.quiet_gap_nats
        for window in windows
        for answer in usable(window)
        if (name := answer.request.prompt_id) in reference
        and (name != prompt or reference[name].ids == answer.ids)
    ]
    return max(gaps, default=0.0)


def _quiet_windows(runs: Runs, all_runs: Sequence[Runs], window: Window) -> list[Window]:
    """Windows whose noise turns ties in `window`: fresh and GPU hits of its concurrency or below.

    Under load in a 16-bit type the time of a load shifts the batch shapes, which no GPU hit shows;
    there the other answers of the window itself are part of the noise (design, trap (a)).
    """
    chosen = [w for each in all_runs if each.concurrency <= runs.concurrency for w in each.fresh]
    if window.kind != "fresh":
        chosen += [w for each in all_runs if each.concurrency <= runs.concurrency for w in each.hot]
    if window.kind in HIT_KINDS and not runs.is_bit_stable_under_load:
        chosen.append(window)
    return chosen


def _compare(
    window: Window, runs: Runs, all_runs: Sequence[Runs], reference: dict[str, Answer]
) -> Compared:
    quiet = _quiet_windows(runs, all_runs, window)
    hot = {key: answers[0].ids for key, answers in gpu_hits(runs).items()}
    equal = 0
    ties: list[str] = []
    alike: list[str] = []
    flips: list[Flip] = []
    answers = [a for a in usable(window) if a.request.prompt_id in reference]
    for answer in answers:
        first = reference[answer.request.prompt_id]
        at = divergence(first, answer)
        if at is None:
            equal += 1
            continue
        band = _gap_band(answer.request.prompt_id, reference, quiet)
        words = f"{window.label}: {short(answer.request.prompt_id)} {at.words}"
        key = (answer.request.prompt_id, answer.request.cached or 0)
        if at.gap_nats is not None and abs(at.gap_nats) <= band:
            ties.append(f"tie: {words}, band {band:.6g}")
        elif window.kind in HIT_KINDS and hot.get(key) == answer.ids:
            alike.append(f"as the GPU hit of equal length: {words}")
        else:
            flips.append(Flip(first, answer, at))
    return Compared(window, len(answers), equal, tuple(ties), tuple(alike), tuple(flips))


@remembered
def compare_arm(ledger: Ledger, stage: str, arm: str) -> list[Compared]:
    """Every scored window of an arm against its first fresh run."""
    all_runs = runs_of(ledger, stage, arm)
    reference = reference_of(all_runs)
    if not reference:
        return []
    first = next(iter(reference.values())).window.id
    usable_ids = {w.id for runs in all_runs for w in (*runs.fresh, *runs.hot, *runs.hits)}
    by_concurrency = {runs.concurrency: runs for runs in all_runs}
    return [
        _compare(window, by_concurrency[window.concurrency], all_runs, reference)
        for window in ledger.measured(stage, arm)
        if window.id != first
        and window.scored
        and (window.id in usable_ids or window.kind == "cold_again")
    ]


def _is_alike(flip: Flip, window: Window, control: Sequence[Compared]) -> bool:
    """The control gives the same other answer to the same prompt in the same kind of phase.

    Its reference must be ours, too: where fresh answers vary, any two may agree by chance.
    """
    return any(
        flip.answer.ids == other.answer.ids and flip.reference.ids == other.reference.ids
        for compared in control
        if compared.window.kind == window.kind
        or (compared.window.kind == HOT and window.kind in HIT_KINDS)
        for other in compared.flips
        if other.answer.request.prompt_id == flip.answer.request.prompt_id
    )


def _control_noise(control: Sequence[Compared]) -> tuple[int, int]:
    """Flips and answers of the control, computed like the reference: without any cache hit.

    A GPU hit that differs from fresh does so every time, because its rest has another shape; that
    says nothing about how often an answer changes by chance.
    """
    windows = [compared for compared in control if compared.window.kind != HOT]
    flips = [flip for each in windows for flip in each.flips if not flip.answer.request.cached]
    return len(flips), sum(each.answers for each in windows)


def _flip_finding(
    compared: Compared, flips: Sequence[Flip], outcome: Outcome, what: str, notes: Sequence[str]
) -> Finding:
    return about(
        compared.window,
        outcome,
        f"{what}: {len(flips)} of {compared.answers} answers in {compared.window.label} differ "
        f"from the first fresh run: {listed([flip.words for flip in flips])}",
        what=What(CHECK, CLAIM, "tokens"),
        requests=[flip.answer.request for flip in flips],
        expected=listed([f"token {flip.at.reference_token}" for flip in flips]),
        observed=listed([f"token {flip.at.token}" for flip in flips]),
        notes=notes,
    )


def _judge(
    ledger: Ledger, compared: Compared, control: Sequence[Compared] | None, own: Sequence[Compared]
) -> list[Finding]:
    """Findings about the flips of one window of a tested arm."""
    window = compared.window
    same_load = [c for c in control or () if c.window.concurrency == window.concurrency]
    alike = [flip for flip in compared.flips if _is_alike(flip, window, same_load)]
    rest = [flip for flip in compared.flips if flip not in alike]
    findings = []
    if alike:
        what = "baseline broken: the control arm gives the same other answers"
        findings.append(_flip_finding(compared, alike, Outcome.ERROR, what, ()))
    if not rest:
        return findings
    reference = {flip.reference.request.prompt_id: flip.reference for flip in compared.flips}
    reference |= reference_of(runs_of(ledger, window.stage, window.arm))
    foreign = [(flip, reads_like(flip.answer, flip.at.position, reference)) for flip in rest]
    notes = [
        f"foreign content: {short(flip.answer.request.prompt_id)} reads like {short(prompt)}"
        for flip, prompt in foreign
        if prompt is not None
    ]
    what = "foreign content" if notes else "tokens differ"
    if same_load:
        off, off_answers = _control_noise(same_load)
        counts = (
            f"flips with the connector {len(rest)}/{compared.answers}, control {off}/{off_answers}"
        )
        p_value = _more_often(len(rest), compared.answers, off, off_answers)
        if p_value >= _error_rate(ledger):
            reason = f"noisy, as the control is: {counts} (one-sided p {p_value:.3g})"
            return [*findings, _noisy(window, Outcome.PASS, reason, notes)]
        return [*findings, _flip_finding(compared, rest, Outcome.FAIL, what, [counts, *notes])]
    fresh = [c for c in own if c.window.kind == FRESH and c.flips]
    is_noisy = any(c.window.concurrency == window.concurrency for c in fresh)
    if control is None and (is_noisy or window.kind == HOT):
        why = "so do fresh runs" if is_noisy else "a GPU hit may do so without a connector"
        reason = (
            f"{len(rest)} of {compared.answers} answers in {window.label} differ; {why}, and there "
            f"is no control arm to tell: {listed([flip.words for flip in rest])}"
        )
        return [*findings, _noisy(window, Outcome.INCONCLUSIVE, reason, notes)]
    return [*findings, _flip_finding(compared, rest, Outcome.FAIL, what, notes)]


def _noisy(window: Window, outcome: Outcome, reason: str, notes: Sequence[str]) -> Finding:
    return about(window, outcome, reason, what=What(CHECK, CLAIM, "tokens"), notes=notes)


def _error_rate(ledger: Ledger) -> float:
    assert ledger.scenario is not None
    return ledger.scenario.error_rate


def _summary(stage: str, arm: str, compared: Sequence[Compared]) -> Finding:
    answers, equal = sum(c.answers for c in compared), sum(c.equal for c in compared)
    flips = sum(len(c.flips) for c in compared)
    notes = [note for c in compared for note in (*c.ties, *c.as_gpu_hit)]
    notes += [f"other: {c.window.label}: {flip.words}" for c in compared for flip in c.flips]
    reason = f"{equal} of {answers} answers equal the first fresh run, token by token"
    if equal < answers:
        reason += f"; {answers - equal - flips} ties, {flips} other flips"
    return about_arm(
        stage, arm, Outcome.PASS, reason, what=What(CHECK, CLAIM, "tokens"), notes=notes
    )


def _cold_between_arms(ledger: Ledger, stage: str, arm: str) -> list[Finding]:
    """Wrong from the first token on: the cold output with the connector against the control's."""
    pairs = between_arms(ledger, stage, arm)
    equal = [p for p in pairs if p.reference.ids == p.other.ids]
    band = max((p.distance.gap_nats for p in equal), default=0.0)
    flips = []
    ties = []
    for each in pairs:
        at = divergence(each.reference, each.other)
        if at is None:
            continue
        if at.gap_nats is not None and abs(at.gap_nats) <= band:
            ties.append(f"tie: cold, {short(each.prompt_id)} {at.words}, band {band:.6g}")
        else:
            flips.append(Flip(each.reference, each.other, at))
    if not pairs:
        return []
    window = pairs[0].other.window
    if flips:
        noisy = _as_noisy_as_control(ledger, stage, flips, len(pairs))
        if noisy is not None:
            return [_renamed(_noisy(window, Outcome.PASS, noisy, ties), noisy)]
        compared = Compared(window, len(pairs), len(equal), tuple(ties), (), tuple(flips))
        first = all(flip.at.position == 0 for flip in flips)
        what = "cold output differs from the control arm's" + (
            " at the first token" if first else ""
        )
        finding = _flip_finding(compared, flips, Outcome.FAIL, what, ties)
        return [_renamed(finding, f"{what}: {listed([flip.words for flip in flips])}")]
    reason = f"{len(equal)} of {len(pairs)} cold answers equal the control arm's"
    largest = worst(pairs)
    if largest:
        ties.append(
            f"their log-probabilities differ by up to {largest:.6g} nats; two server lives may, "
            "and how far was not measured"
        )
    return [_renamed(_noisy(window, Outcome.PASS, reason, ties), reason)]


def _as_noisy_as_control(
    ledger: Ledger, stage: str, flips: Sequence[Flip], answers: int
) -> str | None:
    """Say so where cold answers differ between the arms no oftener than in the control itself."""
    control = ledger.control_of(stage)
    assert control is not None  # there were pairs
    lowest = flips[0].answer.window.concurrency
    own = [c for c in compare_arm(ledger, stage, control) if c.window.concurrency == lowest]
    off, off_answers = _control_noise(own)
    p_value = _more_often(len(flips), answers, off, off_answers)
    if p_value < _error_rate(ledger):
        return None
    return (
        f"noisy: {len(flips)} of {answers} cold answers differ from the control arm's, and "
        f"{off} of {off_answers} of the control's own from each other (one-sided p {p_value:.3g})"
    )


def _more_often(flips: int, answers: int, off: int, off_answers: int) -> float:
    """One-sided p of Fisher's exact test; 0 where the control never flips."""
    return fisher_more(flips, answers, off, off_answers) if off else 0.0


def _renamed(finding: Finding, reason: str) -> Finding:
    return replace(finding, check="cold_equals_control", reason=reason)


def check(ledger: Ledger) -> list[Finding]:
    """Token identity of every scored answer, and of the cold answers of both arms."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        if is_tool_stage(ledger, stage, arm):
            continue
        compared = compare_arm(ledger, stage, arm)
        if not any(c.answers for c in compared):
            reason = "nothing to compare: no fresh run, or no other answer"
            findings.append(
                about_arm(
                    stage,
                    arm,
                    Outcome.INCONCLUSIVE,
                    reason,
                    what=What(CHECK, CLAIM, "tokens"),
                )
            )
            continue
        problems: list[Finding] = []
        if ledger.role(arm) == "tested":
            control = ledger.control_of(stage)
            theirs = compare_arm(ledger, stage, control) if control is not None else None
            problems = [f for c in compared if c.flips for f in _judge(ledger, c, theirs, compared)]
            problems += _cold_between_arms(ledger, stage, arm)
        findings += problems
        if not any(f.check == CHECK and f.outcome is not Outcome.PASS for f in problems):
            findings.append(_summary(stage, arm, compared))
    return findings

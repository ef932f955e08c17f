"""The rows of the tables, as data: one row per phase and engine, per prompt, per accuracy band.

A value that could not be read stays None until it is printed as n/a; it is never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from kvbench.checks.answers import divergence, usable
from kvbench.checks.common import short
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
    runs_of,
    worst,
)
from kvbench.ledger import Deltas, Ledger, Request, Window
from kvbench.verdict import SEVERITY, Verdict


class Rate(msgspec.Struct, frozen=True):
    """Hits and queries of a tier, in tokens."""

    hits: int | None
    queries: int | None


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of T1."""

    stage: str
    arm: str
    phase: str
    engine: str | None
    """None: all engines together"""
    requests: int
    prompt_tokens: int | None
    max_hit_tokens: int | None
    local: Rate
    external: Rate
    computed_tokens: int | None
    cached_tokens: int | None
    preemptions: int | None
    answers: int
    identical: int | None
    """answers equal to the first fresh run; None where nothing is scored or this is that run"""
    first_divergence: int | None
    max_delta_nats: float | None
    """against GPU hits of equal length in replay and reload, against fresh elsewhere"""
    ttft_p50_s: float | None
    verdict: str


class PromptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of one tested arm, at one concurrency."""

    stage: str
    arm: str
    concurrency: int
    prompt: str
    prompt_tokens: int | None
    max_hit_tokens: int | None
    hits: dict[str, str]
    """phase -> local + external, and what was expected"""
    max_delta_nats: float | None
    verdict: str


class BandRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of T4."""

    stage: str
    arm: str
    concurrency: int
    comparison: str
    prompts: int
    prompt_tokens: tuple[int, int] | None
    positions: int
    top1_equal: int
    top1_total: int
    tokens_equal: int
    answers: int
    first_divergence: int | None
    max_nats: float | None
    mean_nats: float | None
    missing: int
    band_nats: float | None
    inside: str


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _worst_word(findings: Sequence[Finding]) -> str:
    found = {finding.outcome for finding in findings}
    return next((outcome.value for outcome in SEVERITY if outcome in found), Outcome.PASS.value)


def _of_whole_arm(verdict: Verdict, stage: str, arm: str) -> list[Finding]:
    """Doubts about a whole arm or record: where they stand, none of its rows is a pass."""
    return [
        finding
        for finding in verdict.findings
        if finding.outcome in (Outcome.INVALID, Outcome.INCONCLUSIVE)
        and finding.phase == "-"
        and (finding.check == "record_sealed" or arm in finding.arm.split("+"))
        and (finding.check == "record_sealed" or stage in finding.stage.split("+"))
    ]


def _phase_verdict(verdict: Verdict, window: Window) -> str:
    if not window.is_complete:
        return "aborted" if window.outcome == "aborted" else "interrupted"
    return _worst_word(
        [
            finding
            for finding in verdict.findings
            if (finding.stage, finding.arm) == (window.stage, window.arm)
            and finding.phase == window.label
        ]
        + _of_whole_arm(verdict, window.stage, window.arm)
    )


def _numbers(deltas: Deltas | None, engine: str | None, name: str) -> int | None:
    if deltas is None:
        return None
    return _whole(deltas.total(name) if engine is None else deltas.of(engine, name))


def _computed(deltas: Deltas | None, engine: str | None) -> int | None:
    if deltas is None:
        return None
    sources = deltas.labelled("prompt_tokens_by_source", engine)
    return _whole(sources["local_compute"]) if "local_compute" in sources else None


def _ttft(window: Window) -> float | None:
    times = [r.done.ttft_s for r in window.scored if r.done.ttft_s is not None]
    return median(times) if times else None


def _delta_of(window: Window, runs: Sequence[Runs]) -> float | None:
    mine = next((r for r in runs if r.concurrency == window.concurrency), None)
    if mine is None:
        return None
    if any(window.id == each.id for each in mine.hits):
        return worst(matched_pairs(mine, window))
    if any(window.id == each.id for each in mine.hot):
        answers = [
            a for group in gpu_hits(mine).values() for a in group if a.window.id == window.id
        ]
        return worst(against_fresh(mine, answers))
    if window.kind == "cold_again":
        return worst(against_fresh(mine, usable(window)))
    return worst([pair for pair in fresh_pairs(mine) if pair.other.window.id == window.id])


def _sum(values: Sequence[int | None]) -> int | None:
    return None if not values or None in values else sum(v for v in values if v is not None)


def _max_hit(requests: Sequence[Request]) -> int | None:
    return _sum([r.expected.max_hit_tokens if r.expected else None for r in requests])


def _row(
    window: Window,
    engine: str | None,
    compared: Compared | None,
    runs: Sequence[Runs],
    verdict: Verdict,
) -> PhaseRow:
    deltas = window.deltas
    is_total = engine is None
    flips = [flip.at.position for flip in compared.flips] if compared is not None else []
    return PhaseRow(
        stage=window.stage,
        arm=window.arm,
        phase=window.label,
        engine=engine,
        requests=len(window.requests),
        prompt_tokens=_numbers(deltas, engine, "prompt_tokens"),
        max_hit_tokens=_max_hit(window.requests) if is_total else None,
        local=Rate(
            _numbers(deltas, engine, "local_hits"), _numbers(deltas, engine, "local_queries")
        ),
        external=Rate(
            _numbers(deltas, engine, "external_hits"), _numbers(deltas, engine, "external_queries")
        ),
        computed_tokens=_computed(deltas, engine),
        cached_tokens=_sum([r.cached for r in window.requests]) if is_total else None,
        preemptions=_numbers(deltas, engine, "preemptions"),
        answers=compared.answers if compared is not None and is_total else 0,
        identical=compared.equal if compared is not None and is_total else None,
        first_divergence=min(flips, default=None),
        max_delta_nats=_delta_of(window, runs) if is_total else None,
        ttft_p50_s=_ttft(window) if is_total else None,
        verdict=_phase_verdict(verdict, window),
    )


def phase_rows(ledger: Ledger, verdict: Verdict) -> list[PhaseRow]:
    """T1: every measured window, also the unfinished ones; one more row per engine if several."""
    rows = []
    for stage, arm in ledger.pairs:
        runs = runs_of(ledger, stage, arm)
        compared = {c.window.id: c for c in compare_arm(ledger, stage, arm)}
        for window in ledger.windows:
            if (window.stage, window.arm) != (stage, arm) or window.is_proof:
                continue
            engines = window.deltas.engines if window.deltas is not None else ()
            parts: list[str | None] = [None, *(engines if len(engines) > 1 else ())]
            rows += [_row(window, part, compared.get(window.id), runs, verdict) for part in parts]
    return rows


def _hit_words(request: Request) -> str:
    expected = request.expected
    if request.local is None or request.external is None:
        cached = "n/a" if request.cached is None else str(request.cached)
        want = "n/a" if expected is None else str(expected.cached)
        return f"{cached} cached (expected {want})"
    want = "n/a" if expected is None else f"{expected.local} + {expected.external}"
    return f"{request.local} + {request.external} (expected {want})"


def prompt_rows(ledger: Ledger, verdict: Verdict) -> list[PromptRow]:
    """Per prompt of each tested arm: expected and observed hits, and the distance to a GPU hit."""
    rows = []
    for stage, arm in ledger.pairs:
        if ledger.role(arm) != "tested":
            continue
        for runs in runs_of(ledger, stage, arm):
            rows += _prompts_of(runs, verdict)
    return rows


def _prompts_of(runs: Runs, verdict: Verdict) -> list[PromptRow]:
    windows = [*runs.hot, *runs.hits]
    pairs = [pair for window in runs.hits for pair in matched_pairs(runs, window)]
    by_prompt: dict[str, list[tuple[Window, Request]]] = {}
    for window in (*runs.fresh, *windows):
        for request in window.scored:
            by_prompt.setdefault(request.prompt_id, []).append((window, request))
    rows = []
    for prompt, seen in by_prompt.items():
        first = seen[0][1]
        labels = {window.label for window, _ in seen}
        findings = [
            finding
            for finding in verdict.findings
            if (finding.stage, finding.arm) == (runs.stage, runs.arm)
            and finding.phase in labels
            and prompt in finding.prompts
        ] + _of_whole_arm(verdict, runs.stage, runs.arm)
        rows.append(
            PromptRow(
                stage=runs.stage,
                arm=runs.arm,
                concurrency=runs.concurrency,
                prompt=short(prompt),
                prompt_tokens=first.done.prompt_tokens,
                max_hit_tokens=first.expected.max_hit_tokens if first.expected else None,
                hits={w.label: _hit_words(r) for w, r in seen if w in windows},
                max_delta_nats=worst([pair for pair in pairs if pair.prompt_id == prompt]),
                verdict=_worst_word(findings),
            )
        )
    return rows


def _band_row(
    runs: Runs, comparison: str, pairs: Sequence[Pair], band: float | None, *, is_band: bool
) -> BandRow | None:
    if not pairs:
        return None
    found = [p.reference.request.done.prompt_tokens for p in pairs]
    lengths = [length for length in found if length is not None]
    parted = [at.position for p in pairs if (at := divergence(p.reference, p.other)) is not None]
    values = sum(p.distance.values for p in pairs)
    largest = worst(pairs)
    inside = "n/a"
    if is_band:
        inside = "is the band"
    elif band is not None and largest is not None:
        inside = "yes" if largest <= band else "no"
    return BandRow(
        stage=runs.stage,
        arm=runs.arm,
        concurrency=runs.concurrency,
        comparison=comparison,
        prompts=len({p.prompt_id for p in pairs}),
        prompt_tokens=(min(lengths), max(lengths)) if len(lengths) == len(found) else None,
        positions=sum(p.distance.positions for p in pairs),
        top1_equal=sum(p.distance.positions for p in pairs) - len(parted),
        top1_total=sum(p.distance.positions for p in pairs),
        tokens_equal=len(pairs) - len(parted),
        answers=len(pairs),
        first_divergence=min(parted, default=None),
        max_nats=largest,
        mean_nats=sum(p.distance.mean_nats * p.distance.values for p in pairs) / values
        if values
        else None,
        missing=sum(p.distance.missing for p in pairs),
        band_nats=band,
        inside=inside,
    )


def _bands_of(runs: Runs) -> list[BandRow | None]:
    fresh, gpu = fresh_pairs(runs), gpu_pairs(runs)
    first_hits = [answers[0] for answers in gpu_hits(runs).values()]
    gpu_fresh = against_fresh(runs, first_hits)
    matched = [pair for window in runs.hits for pair in matched_pairs(runs, window)]
    cpu = [answer for window in runs.hits for answer in cpu_hits(window)]
    both = [value for value in (worst(fresh), worst(gpu_fresh)) if value is not None]
    band = max(both, default=None)
    load = "" if runs.concurrency == 1 else " under load"
    return [
        _band_row(runs, "fresh against fresh", fresh, worst(fresh), is_band=True),
        _band_row(runs, "GPU hit against GPU hit", gpu, worst(gpu), is_band=True),
        _band_row(runs, "GPU hit against fresh", gpu_fresh, worst(gpu_fresh), is_band=True),
        _band_row(runs, f"CPU hit{load} against GPU hit", matched, worst(gpu), is_band=False),
        _band_row(
            runs, f"CPU hit{load} against fresh", against_fresh(runs, cpu), band, is_band=False
        ),
    ]


def band_rows(ledger: Ledger) -> list[BandRow]:
    """T4: what is noise, and how far the hits lie from their twins and from fresh runs."""
    rows: list[BandRow | None] = []
    for stage, arm in ledger.pairs:
        all_runs = runs_of(ledger, stage, arm)
        if not all_runs:
            continue
        between = between_arms(ledger, stage, arm)
        name = f"cold, against arm {ledger.control_of(stage)}"
        rows.append(_band_row(all_runs[0], name, between, None, is_band=False))
        for runs in all_runs:
            rows += _bands_of(runs)
    return [row for row in rows if row is not None]

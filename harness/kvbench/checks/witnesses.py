"""Do the witnesses of a hit agree, and are tokens conserved?

Counters, `usage` and the sum over sources describe the same tokens; where they disagree, a rate
made of them is worth nothing (invalid), which is not the same as a wrong cache. Missing is never
zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kvbench.checks.common import What, about, about_arm, listed, short
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.memo import remembered
from kvbench.checks.reset_proof import restarted_engines
from kvbench.ledger.counters import Deltas
from kvbench.ledger.facts import Ledger, Request, Window

CLAIM = "hits"
CHECK = "witnesses_agree"

REQUIRED = (
    "local_queries",
    "local_hits",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
)
REQUIRED_WITH_CONNECTOR = ("external_queries", "external_hits")
OPTIONAL = ("prompt_tokens_by_source", "prompt_tokens_cached", "preemptions")
"""Counters that older vLLMs lack: n/a is said, and what they would show is not compared."""

STILL = ("prompt_tokens", "generation_tokens", "local_queries", "requests_finished")
"""Counters that must not move between two windows."""


class Problem(NamedTuple):
    """One disagreement."""

    words: str
    expected: str
    observed: str
    requests: tuple[Request, ...] = ()


class Rule(NamedTuple):
    """A counter that must equal what the answers add up to, or exceed it by `high` at most."""

    words: str
    observed: float | None
    expected: int
    high: int = 0


def counts_last_token_twice(version: str | None) -> bool:
    """True for a vLLM whose sources may exceed the prompt by one token per fully cached request.

    Up to some version before 0.32, PromptTokenStats.update_from_output added a "recomputed" token
    to local_cache_hit whenever cached + 1 == prompt. In 0.32 (vllm/v1/metrics/stats.py,
    PrefillStats and PromptTokenStats) the three sources add up to the prompt, always.
    """
    numbers = re.findall(r"\d+", version or "")[:2]
    return len(numbers) < 2 or tuple(map(int, numbers)) < (0, 32)


def recomputed(requests: tuple[Request, ...]) -> int:
    """Requests of which at most one token was left to compute."""
    return sum(
        1
        for request in requests
        if request.cached is not None
        and request.done.prompt_tokens is not None
        and request.cached >= request.done.prompt_tokens - 1
    )


def _missing(window: Window) -> list[Problem]:
    names = (*REQUIRED, *(REQUIRED_WITH_CONNECTOR if window.has_connector else ()))
    if window.deltas is None:
        return [Problem("the window has no two snapshots", "two snapshots", "n/a")]
    lacking = [name for name in names if window.deltas.total(name) is None]
    if not lacking:
        return []
    text = ", ".join(lacking)
    return [Problem(f"counters are missing, so n/a: {text}", text, "n/a")]


def _usage_of_requests(window: Window) -> list[Problem]:
    """`usage` against the counters, for each request alone, and for the window together."""
    problems = []
    answered = [request for request in window.requests if request.done.error is None]
    without = [request for request in answered if request.cached is None]
    if without:
        words = f"{len(without)} answers have no cached_tokens in their usage"
        problems.append(Problem(words, "cached_tokens", "n/a", tuple(without)))
    for request in answered:
        if request.cached is None or request.local is None or request.external is None:
            continue
        counted = request.local + request.external
        if counted != request.cached:
            suspect = ": counter suspect" if counted == 0 else ""
            words = (
                f"{short(request.prompt_id)}: usage says {request.cached} cached, the counters "
                f"{request.local} local + {request.external} external{suspect}"
            )
            problems.append(Problem(words, str(request.cached), str(counted), (request,)))
    return problems


def _conserved(window: Window, deltas: Deltas, *, is_twice: bool) -> Iterator[Problem]:
    answered = tuple(request for request in window.requests if request.done.error is None)
    prompt = sum(request.done.prompt_tokens or 0 for request in answered)
    cached = sum(request.cached or 0 for request in answered)
    local, external = deltas.total("local_hits") or 0, deltas.total("external_hits") or 0
    generated = sum(request.done.completion_tokens or 0 for request in answered)
    twice = recomputed(answered) if is_twice else 0
    rules = [
        Rule("requests finished", deltas.total("requests_finished"), len(answered)),
        Rule("prompt tokens counted", deltas.total("prompt_tokens"), prompt),
        Rule("generated tokens counted", deltas.total("generation_tokens"), generated),
        Rule("local + external hits", local + external, cached),
        Rule("cached tokens counted", deltas.total("prompt_tokens_cached"), cached),
    ]
    by_source = deltas.labelled("prompt_tokens_by_source")
    if by_source:
        total = sum(by_source.values())
        rules.append(Rule("computed + local + external", total, prompt, high=twice))
    for rule in rules:
        observed = rule.observed
        if observed is None or rule.expected <= observed <= rule.expected + rule.high:
            continue
        text = f"{rule.words} {observed:.0f}, by the answers {rule.expected}"
        if rule.words.startswith("local +") and observed == 0:
            text += ": counter suspect"
        yield Problem(text, str(rule.expected), f"{observed:.0f}")
    yield from _queries(window, deltas, prompt, local)
    yield from _per_engine(deltas, twice)


def _queries(window: Window, deltas: Deltas, prompt: int, local: float) -> Iterator[Problem]:
    queries = deltas.total("local_queries")
    again = _asked_again(window, deltas)
    if queries is not None and not prompt <= queries <= prompt + again:
        words = f"local queries {queries:.0f}, prompt tokens sent {prompt}"
        yield Problem(words, str(prompt), f"{queries:.0f}")
    asked = deltas.total("external_queries")
    if window.has_connector and asked is not None and asked > prompt + again:
        words = f"external queries {asked:.0f}, more than the prompt tokens sent {prompt}"
        yield Problem(words, f"{prompt - local:.0f}", f"{asked:.0f}")


def _asked_again(window: Window, deltas: Deltas) -> int:
    """Queries at most that preempted requests ask again when they resume, tokens."""
    dones = [request.done for request in window.requests]
    longest = max(((d.prompt_tokens or 0) + (d.completion_tokens or 0) for d in dones), default=0)
    return round(deltas.total("preemptions") or 0) * longest


def _per_engine(deltas: Deltas, twice: int) -> Iterator[Problem]:
    """On each engine: no more hits than queries, and its sources add up."""
    for engine in deltas.engines:
        for tier in ("local", "external"):
            hits = deltas.of(engine, f"{tier}_hits")
            queries = deltas.of(engine, f"{tier}_queries")
            if hits is not None and queries is not None and hits > queries:
                words = f"engine {engine}: {tier} hits {hits:.0f} exceed its queries {queries:.0f}"
                yield Problem(words, f"<= {queries:.0f}", f"{hits:.0f}")
        prompt = deltas.of(engine, "prompt_tokens")
        sources = deltas.labelled("prompt_tokens_by_source", engine)
        if prompt is None or not sources:
            continue
        total = sum(sources.values())
        if not prompt <= total <= prompt + twice:
            words = f"engine {engine}: sources add up to {total:.0f} of {prompt:.0f} prompt tokens"
            yield Problem(words, f"{prompt:.0f}", f"{total:.0f}")


def _notes(window: Window) -> list[str]:
    deltas = window.deltas
    if deltas is None:
        return []
    notes = []
    preempted = deltas.total("preemptions")
    if preempted:
        notes.append(
            f"{window.label}: {preempted:.0f} preemptions, so queries may be counted again"
        )
    asked, prompt = deltas.total("external_queries"), deltas.total("prompt_tokens")
    local = deltas.total("local_hits")
    if window.has_connector and asked is not None and prompt is not None and local is not None:
        if asked == prompt and local > 0:
            notes.append(f"{window.label}: external queries count whole prompts, not the rest")
        elif asked < prompt - local:
            skipped = prompt - local - asked
            notes.append(f"{window.label}: no external lookup for {skipped:.0f} tokens")
    lacking = [name for name in OPTIONAL if deltas.total(name) is None]
    if lacking:
        notes.append(f"{window.label}: n/a: {', '.join(lacking)}")
    notes += [
        f"{window.label}: {done.condition} not reached in {done.waited_s:.0f} s"
        for _, done in window.waits
        if not done.reached
    ]
    return notes


def _restarted(window: Window) -> Finding | None:
    engines = restarted_engines(window)
    if not engines:
        return None
    names = ", ".join(engines)
    return about(
        window,
        Outcome.ABORTED,
        f"counters of engine {names} started anew in or before {window.label}: it was restarted",
        what=What("counters_continuous", "setup", "counters"),
        expected="counters that only grow",
        observed=f"restart of engine {names}",
    )


def _moved_between(window: Window) -> list[Problem]:
    if window.gap is None:
        return []
    moved = {name: window.gap.total(name) for name in STILL}
    words = [f"{name} +{value:.0f}" for name, value in moved.items() if value]
    if not words:
        return []
    text = f"the engine worked before the window opened: {', '.join(words)}"
    return [Problem(text, "no activity between windows", ", ".join(words))]


def _other_prompts(window: Window) -> list[Problem]:
    """Prompts of which the engine saw another number of tokens than the plan sent (F32)."""
    return [
        Problem(
            f"{short(request.prompt_id)}: usage says {request.done.prompt_tokens} prompt tokens, "
            f"{request.planned_tokens} were sent",
            str(request.planned_tokens),
            str(request.done.prompt_tokens),
            (request,),
        )
        for request in window.requests
        if request.done.error is None
        and request.planned_tokens is not None
        and request.done.prompt_tokens != request.planned_tokens
    ]


def has_unseen_answers(window: Window) -> bool:
    """True where more was answered than the engine finished: something before it answers (F32)."""
    finished = window.deltas.total("requests_finished") if window.deltas is not None else None
    answered = sum(request.done.error is None for request in window.requests)
    return finished is not None and finished < answered


@remembered
def _of_window(window: Window, ledger: Ledger) -> list[Problem]:
    problems = _missing(window)
    if problems or window.deltas is None:
        return problems
    problems = _usage_of_requests(window) + _moved_between(window) + _other_prompts(window)
    life = ledger.life(window.life)
    is_twice = counts_last_token_twice(life.started.vllm_version if life is not None else None)
    has_failures = any(request.done.error is not None for request in window.requests)
    # nobody knows what a failed request has counted, and a tool's answers are its own check's
    if not (has_failures or window.is_tool_driven):
        problems += _conserved(window, window.deltas, is_twice=is_twice)
    return problems


def is_suspect(window: Window, ledger: Ledger) -> bool:
    """True where the counters of a window contradict its answers: no rate of them is a proof."""
    return bool(restarted_engines(window)) or bool(_of_window(window, ledger))


def _as_finding(window: Window, problems: list[Problem]) -> Finding:
    return about(
        window,
        Outcome.INVALID,
        f"the witnesses disagree in {window.label}: {listed([p.words for p in problems])}",
        what=What(CHECK, CLAIM, "counters, usage"),
        requests=[request for problem in problems for request in problem.requests],
        expected=listed([problem.expected for problem in problems]),
        observed=listed([problem.observed for problem in problems]),
        notes=[problem.words for problem in problems],
    )


def check(ledger: Ledger) -> list[Finding]:
    """Agreement and conservation in every complete window, the proofs of resets included."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        windows = [w for w in ledger.windows if (w.stage, w.arm) == (stage, arm) and w.is_complete]
        own = [window for window in windows if not window.is_tool_driven]
        is_clean = bool(own)
        for window in windows:
            restart = _restarted(window)
            if restart is not None:
                findings.append(restart)
                is_clean = False
                continue
            problems = _of_window(window, ledger)
            if problems:
                findings.append(_as_finding(window, problems))
                is_clean = False
        if is_clean:
            notes = [note for window in windows for note in _notes(window)]
            reason = f"counters, usage and sources agree in {len(own)} windows"
            findings.append(
                about_arm(
                    stage,
                    arm,
                    Outcome.PASS,
                    reason,
                    what=What(CHECK, CLAIM, "counters, usage"),
                    notes=notes,
                )
            )
    return findings

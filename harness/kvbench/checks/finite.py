"""Are the log-probabilities numbers?

A NaN in a KV block comes back as HTTP 400 "Out of range float values" (vLLM): corruption, not a
client's error. NaN <= x is false, so a comparison that meets one says nothing; it has to be looked
for.
"""

from __future__ import annotations

import math

from kvbench.checks.common import COLD_KINDS, HIT_KINDS, HOT, What, about, listed, short
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger, Request, Window

CHECK = "answers_finite"
CLAIM = "logprobs"


def _bad_value(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def damage(request: Request, top_logprobs: int | None) -> str | None:
    """What is wrong with the log-probabilities of an answer; None: all are there and finite."""
    done = request.done
    if done.error_kind == "nan":
        return "NaN in the answer (HTTP 400, out of range float)"
    if done.error is not None:
        return None
    for position, token in enumerate(done.tokens):
        if _bad_value(token.logprob):
            return f"no finite log-probability at position {position}"
        if any(_bad_value(value) for value in token.top.values()):
            return f"a log-probability of the top-k is not finite at position {position}"
        if top_logprobs is not None and len(token.top) < top_logprobs:
            return f"{len(token.top)} of {top_logprobs} log-probabilities at position {position}"
    return None


def _top_logprobs(window: Window) -> int | None:
    return window.planned.top_logprobs if window.planned is not None else None


def damaged(window: Window) -> list[tuple[Request, str]]:
    """Requests of a window whose log-probabilities cannot be used, and why.

    Scored ones and those that prime a hit; of all others only one that ended in NaN.
    """
    wanted = _top_logprobs(window)
    judged = [
        request
        for request in window.requests
        if request.done.role in ("scored", "prime") or request.done.error_kind == "nan"
    ]
    found = ((request, damage(request, wanted)) for request in judged)
    return [(request, why) for request, why in found if why is not None]


def check(ledger: Ledger) -> list[Finding]:
    """Fail where only hits are damaged; invalid where a cold answer of the prompt is as well."""
    findings = []
    for stage, arm in ledger.pairs:
        windows = ledger.measured(stage, arm)
        cold = {
            request.prompt_id
            for window in windows
            if window.kind in COLD_KINDS
            for request, _ in damaged(window)
        }
        for window in windows:
            bad = damaged(window)
            if not bad:
                continue
            only_hits = window.kind in HIT_KINDS | {HOT} and any(
                request.prompt_id not in cold for request, _ in bad
            )
            if only_hits:
                bad = [(request, why) for request, why in bad if request.prompt_id not in cold]
            words = [f"{short(request.prompt_id)}: {why}" for request, why in bad]
            where = "only on cache hits" if only_hits else "not only on cache hits"
            findings.append(
                about(
                    window,
                    Outcome.FAIL if only_hits else Outcome.INVALID,
                    f"unusable log-probabilities in {window.label}, {where}: {listed(words)}",
                    what=What(CHECK, CLAIM, "logprobs"),
                    requests=[request for request, _ in bad],
                    expected="finite log-probabilities at every position",
                    observed=f"{len(bad)} of {len(window.requests)} answers damaged",
                )
            )
    return findings

"""Did each request hit what the oracle expects, in the tier where it expects it?

"Greater than zero" passes for a connector that stores half of the blocks; an expectation per prompt
does not. A hit longer than the prompt's longest possible one took a block that belongs to nobody.
"""

from __future__ import annotations

from typing import NamedTuple

from kvbench.checks.common import What, about, about_arm, listed, short
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.reset_proof import not_cold
from kvbench.checks.witnesses import has_unseen_answers, is_suspect
from kvbench.ledger.facts import Ledger, Request, Window
from kvbench.oracle import TokenRange

CLAIM = "hits"
CHECK = "hits_match_oracle"


def _is_counted(request: Request) -> bool:
    """False where `usage` contradicts the counters: then they are suspect, not the connector."""
    if request.local is None or request.external is None or request.cached is None:
        return True
    return request.local + request.external == request.cached


class Mismatch(NamedTuple):
    """One number of one request that is not what was expected."""

    request: Request
    tier: str
    expected: TokenRange
    observed: int
    words: str


def _distance(expected: TokenRange, observed: int, block: int | None) -> str:
    is_short = observed < expected.low_tokens
    gap = expected.low_tokens - observed if is_short else observed - expected.high_tokens
    way = "short by" if is_short else "long by"
    if block and gap % block == 0:
        count = gap // block
        return f"{way} one block" if count == 1 else f"{way} {count} blocks"
    return f"{way} {gap} tokens"


def _mismatches(request: Request, block: int | None) -> list[Mismatch]:
    assert request.expected is not None
    expected = request.expected
    numbers = [("cached", expected.cached, request.cached)]
    if _is_counted(request):
        numbers = [
            ("local", expected.local, request.local),
            ("external", expected.external, request.external),
            *numbers,
        ]
    found = []
    for tier, span, observed in numbers:
        if observed is None or span.contains(observed):
            continue
        words = (
            f"{short(request.prompt_id)} {tier} {observed}, expected {span}: "
            f"{_distance(span, observed, block)}"
        )
        found.append(Mismatch(request, tier, span, observed, words))
    return found


def _too_long(request: Request) -> int | None:
    """A hit longer than any hit of this prompt can be."""
    assert request.expected is not None
    parts = [request.cached]
    if request.local is not None and request.external is not None and _is_counted(request):
        parts.append(request.local + request.external)
    longest = max((part for part in parts if part is not None), default=0)
    return longest if longest > request.expected.max_hit_tokens else None


def _too_long_finding(window: Window, requests: list[Request]) -> Finding:
    words = [
        f"{short(r.prompt_id)} hit {_too_long(r)} tokens, longest possible "
        f"{r.expected.max_hit_tokens if r.expected else 'n/a'}"
        for r in requests
    ]
    return about(
        window,
        Outcome.FAIL,
        f"hits longer than possible in {window.label}: {listed(words)}",
        what=What("hits_possible", CLAIM, "counters"),
        requests=requests,
        expected="at most the longest hit that the geometry allows",
        observed=listed(words),
    )


def _window_totals(window: Window) -> list[str]:
    """At a concurrency above 1: the tiers of the whole window against the sum of the ranges."""
    if window.deltas is None or any(request.expected is None for request in window.requests):
        return []
    words = []
    for tier in ("local", "external"):
        total = window.deltas.total(f"{tier}_hits")
        spans = [getattr(r.expected, tier) for r in window.requests if r.expected is not None]
        low = sum(span.low_tokens for span in spans)
        high = sum(span.high_tokens for span in spans)
        if total is not None and not low <= total <= high:
            words.append(f"{tier} {total:.0f} in all, expected {TokenRange(low, high)}")
    return words


def _of_window(window: Window, block: int | None, *, is_suspect: bool) -> list[Finding]:
    if has_unseen_answers(window):  # these hits are not this engine's; the witnesses say so
        return []
    scored = [r for r in window.scored if r.done.error is None and r.is_as_sent]
    known = [request for request in scored if request.expected is not None]
    findings = []
    too_long = [request for request in known if _too_long(request) is not None]
    if too_long:
        findings.append(_too_long_finding(window, too_long))
    wrong = [mismatch for request in known for mismatch in _mismatches(request, block)]
    words = [mismatch.words for mismatch in wrong]
    if window.concurrency > 1 and not is_suspect:
        words += _window_totals(window)
    if words:
        findings.append(
            about(
                window,
                Outcome.FAIL,
                f"hits in {window.label} are not what the oracle expects: {listed(words)}",
                what=What(CHECK, CLAIM, "counters"),
                requests=[mismatch.request for mismatch in wrong],
                expected="; ".join(
                    f"{short(m.request.prompt_id)} {m.tier} {m.expected}" for m in wrong
                ),
                observed="; ".join(
                    f"{short(m.request.prompt_id)} {m.tier} {m.observed}" for m in wrong
                ),
                notes=words,
            )
        )
    if scored and not known:
        reason = f"no expectation for the hits in {window.label}"
        findings.append(_unknown(window, reason, scored))
    return findings


def _unknown(window: Window, reason: str, requests: list[Request]) -> Finding:
    return about(
        window,
        Outcome.INCONCLUSIVE,
        reason,
        what=What(CHECK, CLAIM, "counters"),
        requests=requests,
    )


def _summary(stage: str, arm: str, windows: list[Window]) -> Finding | None:
    requests = [r for w in windows for r in w.scored if r.expected is not None]
    if not requests:
        return None
    exact = sum(r.expected.is_exact for r in requests if r.expected is not None)
    notes = sorted({note for r in requests if r.expected is not None for note in r.expected.notes})
    reason = (
        f"{len(requests)} of {len(requests)} hits are what the oracle expects "
        f"({exact} exact, {len(requests) - exact} inside a range)"
    )
    return about_arm(
        stage, arm, Outcome.PASS, reason, what=What(CHECK, CLAIM, "counters"), notes=notes
    )


def check(ledger: Ledger) -> list[Finding]:
    """Expected and observed hits per prompt, phase and tier, in phases that are what they say."""
    denied = not_cold(ledger)
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        windows = [w for w in ledger.measured(stage, arm) if w.id not in denied]
        problems = [
            finding
            for window in windows
            for finding in _of_window(
                window, ledger.hit_step_tokens(window), is_suspect=is_suspect(window, ledger)
            )
        ]
        findings += problems
        if not any(finding.outcome is Outcome.FAIL for finding in problems):
            summary = _summary(stage, arm, windows)
            findings += [summary] if summary is not None else []
    return findings

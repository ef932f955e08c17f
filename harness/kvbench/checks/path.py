"""Did the external tier answer at all in the phases that exist for it?

Nothing passes in a vacuum: without an external hit, equal tokens prove that the engine computes the
same twice. Whether zero is a fail depends on what the oracle expects, and on what the stores say.
"""

from __future__ import annotations

from kvbench.checks.common import HIT_KINDS, What, about, about_arm, is_tool_stage, tested_pairs
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.reset_proof import not_cold
from kvbench.checks.witnesses import is_suspect
from kvbench.ledger.facts import Ledger, Window

CLAIM = "hits"
CHECK = "external_path_exercised"
COMPARED_CLAIMS = ("identity", "logprobs")
STORE_COUNTERS = ("native_store_bytes",)
"""A connector's own counters that grow with every store."""

SAVE_OUTCOMES = "simple_save_outcomes"
"""SimpleCPU's hand-offs by outcome (vLLM >= 0.32); only `stored` is a store."""


def external_tokens(window: Window) -> int | None:
    """External hit tokens of a window, over all its requests."""
    value = window.deltas.total("external_hits") if window.deltas is not None else None
    return None if value is None else round(value)


def stored_amount(ledger: Ledger, stage: str, arm: str) -> float | None:
    """How far the connector's own store counters moved in a stage; None where it has none."""
    found: list[float] = []
    for window in ledger.windows:
        if (window.stage, window.arm) != (stage, arm) or window.deltas is None:
            continue
        names = window.deltas.names()
        found += [window.deltas.total(name) or 0.0 for name in STORE_COUNTERS if name in names]
        if SAVE_OUTCOMES in names:
            found.append(window.deltas.labelled(SAVE_OUTCOMES).get("stored", 0.0))
    return sum(found) if found else None


def _expected(window: Window) -> tuple[int, int] | None:
    spans = [r.expected.external for r in window.scored if r.expected is not None]
    if not spans:
        return None
    return sum(span.low_tokens for span in spans), sum(span.high_tokens for span in spans)


def _why_zero(stored: float | None) -> str:
    if stored is None:
        return "nothing stored, or stored and never served (the connector has no store counter)"
    return "stored, never served" if stored > 0 else "nothing stored"


def _no_hit(ledger: Ledger, window: Window) -> Finding:
    expected = _expected(window)
    if is_suspect(window, ledger):
        outcome = Outcome.INCONCLUSIVE
        reason = f"no external hit counted in {window.label}, but its counters are suspect"
    elif expected is not None and expected[0] > 0:
        stored = stored_amount(ledger, window.stage, window.arm)
        outcome = Outcome.FAIL
        reason = f"no external hit in {window.label}: {_why_zero(stored)}"
    elif expected is not None and expected[1] == 0:
        outcome = Outcome.INCONCLUSIVE
        reason = f"path not exercised: no prompt of {window.label} can hit externally"
    else:
        outcome = Outcome.INCONCLUSIVE
        reason = f"path not exercised: no external hit in {window.label}"
    words = "n/a" if expected is None else f"{expected[0]}..{expected[1]} external hit tokens"
    return about(
        window,
        outcome,
        reason,
        what=What(CHECK, CLAIM, "counters"),
        requests=window.scored,
        expected=words,
        observed="0 external hit tokens",
    )


def _engines(window: Window) -> Finding | None:
    """One engine of several whose cache answered nothing, though it was asked."""
    deltas = window.deltas
    if deltas is None or len(deltas.engines) < 2:
        return None
    silent = [
        engine
        for engine in deltas.engines
        if deltas.of(engine, "external_queries") and not deltas.of(engine, "external_hits")
    ]
    if not silent or len(silent) == len(deltas.engines):
        return None
    names = ", ".join(silent)
    return about(
        window,
        Outcome.INCONCLUSIVE,
        f"engine {names} served no external hit in {window.label}, others did",
        what=What("engines_alike", CLAIM, "counters"),
        expected="external hits on every engine that was asked",
        observed=f"0 on engine {names}",
    )


def _of_arm(ledger: Ledger, stage: str, arm: str, windows: list[Window]) -> list[Finding]:
    findings = []
    moved = 0
    for window in windows:
        total = external_tokens(window) if window.has_connector else 0
        if total is None:
            continue  # a missing counter is the witnesses' finding
        moved += total
        silent = _engines(window)
        findings += [silent] if silent is not None else []
        if total == 0:
            findings.append(_no_hit(ledger, window))
    if moved and not findings:
        reason = f"{moved} external hit tokens in {len(windows)} phases"
        findings.append(
            about_arm(stage, arm, Outcome.PASS, reason, what=What(CHECK, CLAIM, "counters"))
        )
    if not moved:
        findings += [_vacuum(stage, arm, claim) for claim in COMPARED_CLAIMS]
    return findings


def _vacuum(stage: str, arm: str, claim: str) -> Finding:
    return about_arm(
        stage,
        arm,
        Outcome.INCONCLUSIVE,
        "vacuous: no external hit in any phase that was compared, so nothing was loaded",
        what=What("not_vacuous", claim, "counters"),
        expected="external hits > 0 in replay or reload",
        observed="0",
    )


def check(ledger: Ledger) -> list[Finding]:
    """External hits of replay and reload, for every tested arm."""
    denied = not_cold(ledger)
    findings: list[Finding] = []
    for stage, arm in tested_pairs(ledger):
        if is_tool_stage(ledger, stage, arm):
            continue
        windows = [
            window
            for window in ledger.measured(stage, arm)
            if window.kind in HIT_KINDS and window.id not in denied
        ]
        findings += _of_arm(ledger, stage, arm, windows)
    return findings

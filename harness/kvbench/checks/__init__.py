"""Checks: pure functions from a ledger to findings, one file per kind of proof."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.checks import (
    agentx,
    baseline,
    capacity,
    coverage,
    evaluation,
    faults,
    finite,
    hits,
    identity,
    integrity,
    kv_events,
    liveness,
    logprobs,
    memory,
    path,
    reset_proof,
    rounds,
    semantics,
    sensitivity,
    settings,
    stores,
    witnesses,
)
from kvbench.checks.finding import Finding
from kvbench.ledger.facts import Ledger

CHECKS: tuple[Callable[[Ledger], list[Finding]], ...] = (
    integrity.check,
    settings.check,
    liveness.check,
    reset_proof.check,
    witnesses.check,
    semantics.check,
    hits.check,
    path.check,
    finite.check,
    identity.check,
    logprobs.check,
    sensitivity.check,
    faults.check,
    memory.check,
    kv_events.check,
    stores.check,
    coverage.check,
    capacity.check,
    evaluation.check,
    rounds.check,
    agentx.check,
)


def run_checks(ledger: Ledger) -> list[Finding]:
    """All findings about a record; one only where the record was edited."""
    edited = integrity.broken_seal(ledger)
    if edited is not None:
        return [edited]
    findings = [finding for check in CHECKS for finding in check(ledger)]
    findings = settings.withdraw_other(ledger, findings)
    return baseline.share(ledger, sensitivity.withdraw_blind(findings))

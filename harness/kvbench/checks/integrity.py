"""Is this record what a run wrote, whole, and to its end?

An edited record proves nothing in either direction, so a broken seal is the only finding of a
judgement.
"""

from __future__ import annotations

from kvbench.checks.common import SETUP, What, about
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import JOURNAL, Ledger


def _run_finding(check: str, outcome: Outcome, reason: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        check=check,
        claim=SETUP,
        outcome=outcome,
        witness="record",
        stage="-",
        arm="-",
        phase="-",
        reason=reason,
        evidence=evidence,
    )


def broken_seal(ledger: Ledger) -> Finding | None:
    """The finding that ends a judgement: files are not those that the run wrote."""
    if ledger.seal.state != "broken":
        return None
    files = ledger.seal.files
    return _run_finding(
        "record_sealed",
        Outcome.INVALID,
        f"the record was edited after the run: {', '.join(files)} differ from seal.json",
        files,
    )


def _ending(ledger: Ledger) -> list[Finding]:
    if ledger.is_interrupted:
        why = ledger.ended.reason if ledger.ended is not None else None
        text = f": {why}" if why and why != "interrupted" else ""
        done = len([w for w in ledger.windows if w.is_complete and not w.is_proof])
        reason = f"the run was interrupted{text}; {done} phases were measured until then"
        return [_run_finding("run_complete", Outcome.ABORTED, reason, (JOURNAL,))]
    assert ledger.ended is not None
    if ledger.ended.outcome == "error":
        reason = f"the run ended with an error: {ledger.ended.reason or 'no reason recorded'}"
        failures = [failed for life in ledger.lives for _, failed in life.failed]
        is_midway = bool(failures) and all(failed.phase is not None for failed in failures)
        outcome = Outcome.ABORTED if is_midway else Outcome.ERROR
        return [_run_finding("run_complete", outcome, reason, (JOURNAL,))]
    return [
        _run_finding("run_complete", Outcome.PASS, "the record is whole and sealed", (JOURNAL,))
    ]


def _aborted_windows(ledger: Ledger) -> list[Finding]:
    return [
        about(
            window,
            Outcome.ABORTED,
            f"{window.label} was not finished: {window.reason or 'the run ended in it'}",
            what=What("phase_complete", SETUP, "record"),
        )
        for window in ledger.windows
        if not window.is_complete
    ]


def _skipped(ledger: Ledger) -> list[Finding]:
    return [
        Finding(
            check="phase_run",
            claim=SETUP,
            outcome=Outcome.SKIPPED,
            witness="record",
            stage=event.stage,
            arm=event.arm,
            phase=event.phase or "-",
            reason=f"{event.phase or event.stage} was skipped: {event.reason}",
            evidence=(f"{JOURNAL}:{line}",),
        )
        for line, event in ledger.skipped
    ]


def _never_run(ledger: Ledger) -> list[Finding]:
    """Planned phases without a trace in a run that says that it is complete."""
    if ledger.plan is None or ledger.is_interrupted:
        return []
    seen = {(w.life, w.stage, w.arm, w.phase, w.concurrency) for w in ledger.windows}
    skipped = {(s.stage, s.arm, s.phase) for _, s in ledger.skipped}
    return [
        Finding(
            check="phase_run",
            claim=SETUP,
            outcome=Outcome.INVALID,
            witness="record",
            stage=phase.stage,
            arm=phase.arm,
            phase=phase.name,
            reason=f"{phase.name} was planned, but the record has no trace of it",
            evidence=("plan.json",),
        )
        for life in ledger.plan.lives
        for phase in life.phases
        if (life.life, phase.stage, phase.arm, phase.name, phase.concurrency) not in seen
        and (phase.stage, phase.arm, phase.name) not in skipped
        and (phase.stage, phase.arm, None) not in skipped
    ]


def check(ledger: Ledger) -> list[Finding]:
    """Seal, end of the run, and whether every planned phase was run."""
    sealed = broken_seal(ledger)
    if sealed is not None:
        return [sealed]
    return [
        *_ending(ledger),
        *_aborted_windows(ledger),
        *_skipped(ledger),
        *_never_run(ledger),
    ]

"""Was a planned fault really applied?

A faulty twin that never damaged anything passes like a healthy connector; that pass proves nothing
about the checks.
"""

from __future__ import annotations

from kvbench.checks.common import SETUP, What, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger

CHECK = "fault_applied"


def check(ledger: Ledger) -> list[Finding]:
    """For every arm with planned faults: did the twin's own journal report them?"""
    findings: list[Finding] = []
    if ledger.scenario is None:
        return findings
    for stage, arm in ledger.pairs:
        planned = ledger.scenario.arms[arm].faults if arm in ledger.scenario.arms else ()
        if not planned:
            continue
        windows = [w for w in ledger.windows if (w.stage, w.arm) == (stage, arm)]
        applied = sum(len(window.applied) for window in windows)
        for fault in planned:
            phases = [w for w in windows if fault.phase in (w.phase, w.kind)]
            count = sum(len(window.applied) for window in phases)
            what = f"{fault.mode} on {fault.prompt} in {fault.phase}"
            outcome = Outcome.PASS if count else Outcome.INCONCLUSIVE
            words = f"the planned fault was applied {count} times: {what}"
            findings.append(
                about_arm(
                    stage,
                    arm,
                    outcome,
                    words if count else f"fault not applied: {what}",
                    what=What(CHECK, SETUP, "events"),
                    expected=f"{fault.times} times",
                    observed=f"{count} in the phase, {applied} in all",
                )
            )
    return findings

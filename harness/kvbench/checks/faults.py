"""Was a planned fault really applied?

A faulty twin that never damaged anything passes like a healthy connector; that pass proves nothing
about the checks.
"""

from __future__ import annotations

from typing import NamedTuple

from kvbench.checks.common import SETUP, What, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger
from kvbench.scenario.engines import FakeEngine
from kvbench.scenario.resolve import engine_of

CHECK = "fault_applied"


class _Planned(NamedTuple):
    """One fault of the scenario."""

    kind: str
    phase: str | None
    prompt: str | None
    times: int | None

    @property
    def words(self) -> str:
        """For a reason."""
        return f"{self.kind} on {self.prompt or 'every prompt'} in {self.phase or 'every phase'}"


def _planned(ledger: Ledger, stage: str, arm: str) -> list[_Planned]:
    """What was to go wrong: in the arm's faulty twin, or in the fake engine."""
    scenario = ledger.scenario
    if scenario is None or arm not in scenario.arms or stage not in scenario.stages:
        return []
    engine = engine_of(scenario, stage, arm)
    twins = [_Planned(f.mode, f.phase, f.prompt, f.times) for f in scenario.arms[arm].faults]
    fakes = engine.faults if isinstance(engine, FakeEngine) else ()
    return [*twins, *(_Planned(f.kind, f.phase, f.prompt, f.times) for f in fakes)]


def check(ledger: Ledger) -> list[Finding]:
    """For every arm with planned faults: did the journal of the server report them?"""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        windows = [w for w in ledger.windows if (w.stage, w.arm) == (stage, arm)]
        lives = {window.life for window in windows}
        applied = [done for life in ledger.lives if life.id in lives for _, done in life.applied]
        for planned in _planned(ledger, stage, arm):
            named = [done for done in applied if done.detail.get("kind", "") == planned.kind]
            ours = named or [done for done in applied if "kind" not in done.detail]
            phases = {w.id for w in windows if planned.phase in (None, w.phase, w.kind)}
            count = sum(planned.phase is None or done.window in phases for done in ours)
            findings.append(_finding(stage, arm, planned, count, len(ours)))
    return findings


def _finding(stage: str, arm: str, planned: _Planned, count: int, in_all: int) -> Finding:
    words = f"the planned fault was applied {count} times: {planned.words}"
    return about_arm(
        stage,
        arm,
        Outcome.PASS if count else Outcome.INCONCLUSIVE,
        words if count else f"fault not applied: {planned.words}",
        what=What(CHECK, SETUP, "events"),
        expected="whenever it can be" if planned.times is None else f"{planned.times} times",
        observed=f"{count} in the phase, {in_all} in all",
    )

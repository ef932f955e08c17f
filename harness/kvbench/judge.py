"""Judges a record from its files: the right half of the program in one call.

`verdict.json` holds nothing of the moment in which it is written, so the same record gives the same
bytes next year.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.checks import run_checks
from kvbench.ledger import Ledger, load
from kvbench.report import json_report
from kvbench.verdict import Verdict, judge_findings

VERDICT = "verdict.json"


def judge_ledger(ledger: Ledger) -> Verdict:
    """The verdict on facts that were already read."""
    stages = ledger.scenario.stages if ledger.scenario is not None else {}
    ran = {stage for stage, _ in ledger.pairs}
    ran |= {skipped.stage for _, skipped in ledger.skipped}
    if ledger.plan is not None:
        ran |= {phase.stage for life in ledger.plan.lives for phase in life.phases}
    claims: dict[str, Any] = {name: stages[name].claims for name in stages if name in ran}
    return judge_findings(run_checks(ledger), claims)


def judge(directory: Path) -> Verdict:
    """The verdict on the record in `directory`; RecordError where there is none."""
    return judge_ledger(load(directory))


def write_verdict(directory: Path) -> Verdict:
    """Judge, and write `verdict.json` into the record (derived, not sealed)."""
    ledger = load(directory)
    verdict = judge_ledger(ledger)
    (directory / VERDICT).write_text(json_report.render(ledger, verdict))
    return verdict

"""verdict.json: outcome, exit code and findings for machines, as deterministic bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kvbench.ledger import Ledger
from kvbench.report.header import is_fake
from kvbench.report.tables import phase_rows, prompt_rows
from kvbench.verdict import Verdict

SCHEMA = 1


def document(ledger: Ledger, verdict: Verdict) -> dict[str, Any]:
    """The content of verdict.json."""
    return {
        "schema": SCHEMA,
        "run_id": ledger.run.run_id,
        "scenario": ledger.run.scenario_name,
        "outcome": verdict.outcome.value,
        "exit_code": verdict.exit_code,
        "seal": ledger.seal.state,
        "fake_engine": is_fake(ledger),
        "findings": [msgspec.to_builtins(finding) for finding in verdict.findings],
        "unclaimed": [msgspec.to_builtins(finding) for finding in verdict.unclaimed],
        "phases": [msgspec.to_builtins(row) for row in phase_rows(ledger, verdict)],
        "prompts": [msgspec.to_builtins(row) for row in prompt_rows(ledger, verdict)],
    }


def render(ledger: Ledger, verdict: Verdict) -> str:
    """verdict.json as text: sorted keys, no time stamps, one newline at the end."""
    return json.dumps(document(ledger, verdict), indent=1, sort_keys=True, allow_nan=False) + "\n"

"""A fault that the control arm shares is an error of the set-up, not a fail of the connector.

The control has no connector, so what it fails is broken without one. Tokens are compared between
the arms by the identity check itself, because there the same flip and any flip are different
things.
"""

from __future__ import annotations

from msgspec.structs import replace

from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger

WORDS = "baseline broken"
Key = tuple[str, str, str | None]


def _kind(ledger: Ledger, finding: Finding) -> str | None:
    """Kind of the finding's phase: replay-1 and replay-2 fail in the same way."""
    for window in ledger.windows:
        if (window.stage, window.arm, window.label) == (finding.stage, finding.arm, finding.phase):
            return window.kind
    return None


def _is_control(ledger: Ledger, finding: Finding) -> bool:
    arms = finding.arm.split("+")
    return all(ledger.role(arm) == "control" for arm in arms)


def share(ledger: Ledger, findings: list[Finding]) -> list[Finding]:
    """Fails of a control arm, and those that a tested arm shares with it, as errors."""
    broken: dict[Key, set[str]] = {}
    for finding in findings:
        if finding.outcome is Outcome.FAIL and _is_control(ledger, finding):
            key = (finding.check, finding.stage, _kind(ledger, finding))
            broken.setdefault(key, set()).update(finding.prompts)
    return [_shared(ledger, finding, broken) for finding in findings]


def _shared(ledger: Ledger, finding: Finding, broken: dict[Key, set[str]]) -> Finding:
    if finding.outcome is not Outcome.FAIL:
        return finding
    if _is_control(ledger, finding):
        reason = f"{WORDS}: without a connector, {finding.reason}"
        return replace(finding, outcome=Outcome.ERROR, reason=reason)
    theirs = broken.get((finding.check, finding.stage, _kind(ledger, finding)))
    if theirs is None or not set(finding.prompts) <= theirs:
        return finding
    reason = f"{WORDS}, the control arm fails alike: {finding.reason}"
    return replace(finding, outcome=Outcome.ERROR, reason=reason)

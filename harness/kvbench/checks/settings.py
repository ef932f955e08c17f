"""Did the engine run with the settings that were asked for?

vLLM adjusts settings silently (a block size rounded up, a connector dropped); a comparison of arms
then compares something else than the scenario says. What differs is named and invalid.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kvbench.checks.common import SETUP
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import JOURNAL, Ledger, Life

GEOMETRY_KEYS = frozenset(
    {
        "geometry",
        "group_block_tokens",
        "block_tokens",
        "hash_block_tokens",
        "hit_alignment_tokens",
        "block_bytes",
    }
)
"""Keys that make up the KV geometry which a model fragment declares."""

DECISIVE_KEYS = frozenset({"connector"})
"""Keys without which nothing is known about what was tested; others unread are a note."""


KEPT_CLAIMS = frozenset({SETUP, "alive"})
"""Claims that do not depend on the settings."""


def _plain(value: Any) -> Any:
    """Comparable form: JSON has no tuples, and 512 and 512.0 are one number."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _finding(life: Life, check: str, outcome: Outcome, reason: str, **more: Any) -> Finding:
    line = life.ready[0] if life.ready is not None else life.line
    return Finding(
        check=check,
        claim=SETUP,
        outcome=outcome,
        witness="settings",
        stage=life.stage_words,
        arm=life.arm_words,
        phase="-",
        reason=reason,
        evidence=(f"{JOURNAL}:{line}",),
        **more,
    )


def _connector(life: Life, asked: Any, effective: Any) -> Finding:
    if asked is None:
        reason = f"a connector is effective that nobody asked for: {effective}"
    else:
        reason = f"the connector {asked} was asked for, but is not effective"
    return _finding(
        life,
        "connector_effective",
        Outcome.INVALID,
        reason,
        expected=str(asked or "none"),
        observed=str(effective or "none"),
    )


def _difference(life: Life, key: str, asked: Any, effective: Any) -> Finding:
    if key == "connector":
        return _connector(life, asked, effective)
    what = "the KV geometry differs" if key in GEOMETRY_KEYS else "a setting differs"
    return _finding(
        life,
        "geometry_matches" if key in GEOMETRY_KEYS else "settings_effective",
        Outcome.INVALID,
        f"{what} from what was asked: {key} is {effective}, asked was {asked}",
        expected=f"{key}={asked}",
        observed=f"{key}={effective}",
    )


def _of_life(life: Life, *, has_measured: bool) -> list[Finding]:
    if life.ready is None:
        reason = f"{life.id} was measured, but nothing says with which settings it ran"
        unknown = _finding(life, "settings_effective", Outcome.INVALID, reason)
        return [unknown] if has_measured else []
    ready = life.ready[1]
    findings: list[Finding] = []
    unread: list[str] = []
    for key, asked in sorted(ready.asked.items()):
        if key not in ready.effective:
            if asked is not None:
                unread.append(key)
            continue
        effective = ready.effective[key]
        if _plain(asked) != _plain(effective):
            findings.append(_difference(life, key, asked, effective))
    if life.planned is not None and life.planned.connector.get("kind", "none") != "none":
        unread += sorted(DECISIVE_KEYS - ready.asked.keys() - ready.effective.keys())
    decisive = sorted(DECISIVE_KEYS & set(unread))
    if decisive:
        reason = f"the engine does not say which {', '.join(decisive)} is effective"
        findings.append(_finding(life, "settings_effective", Outcome.INCONCLUSIVE, reason))
    if findings:
        return findings
    notes = (f"not readable from the engine: {', '.join(unread)}",) if unread else ()
    compared = len(ready.asked.keys() & ready.effective.keys())
    reason = f"{compared} settings of {life.id} are as they were asked"
    return [_finding(life, "settings_effective", Outcome.PASS, reason, notes=notes)]


def check(ledger: Ledger) -> list[Finding]:
    """Asked against effective settings, for every life that became ready."""
    measured = {window.life for window in ledger.windows if window.is_complete}
    return [
        finding
        for life in ledger.lives
        for finding in _of_life(life, has_measured=life.id in measured)
    ]


def withdraw_other(ledger: Ledger, findings: list[Finding]) -> list[Finding]:
    """What failed under settings that nobody asked for says nothing about what was asked for.

    Liveness and set-up stay: an engine that died has died.
    """
    other = {
        arm
        for life in ledger.lives
        for finding in _of_life(life, has_measured=False)
        if finding.outcome is Outcome.INVALID
        for arm in life.arms
    }
    return [
        replace(
            finding,
            outcome=Outcome.INVALID,
            reason=f"not judged, other settings than asked for: {finding.reason}",
        )
        if finding.outcome is Outcome.FAIL
        and finding.claim not in KEPT_CLAIMS
        and other & set(finding.arm.split("+"))
        else finding
        for finding in findings
    ]

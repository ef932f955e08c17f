"""What all checks share: how a finding is made, and which windows may be used.

A check collects problems per window; where a stage and arm has none, one pass says what was looked
at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger, Request, Window

SETUP = "setup"
"""Claim of findings about the conditions of measuring; always counted."""

HIT_KINDS = frozenset({"replay", "reload"})
"""Phases in which the external tier is to answer."""

FRESH = "fresh"
HOT = "hot"
COLD_KINDS = frozenset({"fresh", "cold_again"})
MAX_LISTED = 4
"""Prompts spelt out in one reason; the rest is counted, and listed in the notes."""


class What(NamedTuple):
    """Which check speaks, about which claim, by which witness."""

    check: str
    claim: str
    witness: str


def short(prompt_id: str) -> str:
    """Prompt id without its stage: `p2`."""
    return prompt_id.rpartition("/")[2]


def listed(words: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = "; ".join(words[:MAX_LISTED])
    rest = len(words) - MAX_LISTED
    return f"{shown}; and {rest} more" if rest > 0 else shown


def about(
    window: Window,
    outcome: Outcome,
    reason: str,
    *,
    what: What,
    requests: Iterable[Request] = (),
    expected: str = "",
    observed: str = "",
    notes: Iterable[str] = (),
) -> Finding:
    """A finding about one window, with the lines of the requests as evidence."""
    chosen = tuple(requests)
    engines = {request.done.engine for request in chosen}
    if len(engines) == 1 and (engine := engines.pop()) is not None:
        reason = f"engine {engine}: {reason}"
    return Finding(
        check=what.check,
        claim=what.claim,
        outcome=outcome,
        witness=what.witness,
        stage=window.stage,
        arm=window.arm,
        phase=window.label,
        reason=reason,
        expected=expected,
        observed=observed,
        prompts=tuple(dict.fromkeys(request.prompt_id for request in chosen)),
        evidence=tuple(request.where for request in chosen) or (window.where,),
        notes=tuple(notes),
    )


def about_arm(
    stage: str,
    arm: str,
    outcome: Outcome,
    reason: str,
    *,
    what: What,
    expected: str = "",
    observed: str = "",
    notes: Iterable[str] = (),
) -> Finding:
    """A finding about a whole stage under an arm."""
    return Finding(
        check=what.check,
        claim=what.claim,
        outcome=outcome,
        witness=what.witness,
        stage=stage,
        arm=arm,
        phase="-",
        reason=reason,
        expected=expected,
        observed=observed,
        notes=tuple(notes),
    )


def is_tool_stage(ledger: Ledger, stage: str, arm: str) -> bool:
    """True where another program sent everything: what replays prove is not asked of it."""
    windows = ledger.measured(stage, arm)
    return bool(windows) and all(window.is_tool_driven for window in windows)


def has_real_outcome(findings: Iterable[Finding]) -> bool:
    """True where anything but a pass is among them."""
    return any(finding.outcome is not Outcome.PASS for finding in findings)


def lowest_concurrency(windows: Sequence[Window]) -> int | None:
    """The concurrency at which phases are compared across kinds."""
    return min((window.concurrency for window in windows), default=None)


def tested_pairs(ledger: Ledger) -> list[tuple[str, str]]:
    """(stage, arm) of all tested arms that ran."""
    return [(stage, arm) for stage, arm in ledger.pairs if ledger.role(arm) == "tested"]


def dtype_of(ledger: Ledger, window: Window) -> str:
    """The model's dtype as the engine says it, or as it was asked."""
    life = ledger.life(window.life)
    if life is None:
        return "unknown"
    if life.ready is not None and "dtype" in life.ready[1].effective:
        return str(life.ready[1].effective["dtype"]).removeprefix("torch.")
    return (
        str(life.planned.engine.get("dtype", "unknown")) if life.planned is not None else "unknown"
    )

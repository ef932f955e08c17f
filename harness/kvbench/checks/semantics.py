"""What do external queries count: whole prompts, or what the device did not have?

The meaning changed between versions of vLLM (fault F20), and a version string does not tell it for
a build in between. So it is read off what the counters did: where a request hits locally, the two
meanings give other numbers. Rates of unlike meaning must not be compared.
"""

from __future__ import annotations

from typing import Literal

from kvbench.checks.common import What, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.facts import Ledger, Window

CHECK = "query_semantics"
CLAIM = "hits"

Meaning = Literal["whole prompt", "remainder"]


def meaning_in(window: Window) -> Meaning | None:
    """What the external queries of a window counted; None where both would look the same."""
    deltas = window.deltas
    if deltas is None or not window.has_connector:
        return None
    asked, prompt = deltas.total("external_queries"), deltas.total("prompt_tokens")
    local = deltas.total("local_hits")
    if asked is None or prompt is None or not local or deltas.total("preemptions"):
        return None
    if asked == prompt:
        return "whole prompt"
    return "remainder" if asked == prompt - local else None


def meanings_of(ledger: Ledger, stage: str, arm: str) -> frozenset[Meaning]:
    """All meanings seen in an arm; more than one is a disagreement in itself."""
    windows = (w for w in ledger.windows if (w.stage, w.arm) == (stage, arm) and w.is_complete)
    return frozenset(found for w in windows if (found := meaning_in(w)) is not None)


def check(ledger: Ledger) -> list[Finding]:
    """One finding per stage in which more than one meaning was seen."""
    findings = []
    for stage in dict.fromkeys(stage for stage, _ in ledger.pairs):
        arms = [arm for other, arm in ledger.pairs if other == stage]
        seen = {arm: meanings_of(ledger, stage, arm) for arm in arms}
        if len(frozenset().union(*seen.values())) < 2:
            continue
        words = "; ".join(f"{arm}: {' and '.join(sorted(m))}" for arm, m in seen.items() if m)
        findings.append(
            about_arm(
                stage,
                "+".join(arm for arm in arms if seen[arm]),
                Outcome.INVALID,
                f"external queries do not count the same thing everywhere ({words}), so external "
                "hit rates must not be compared",
                what=What(CHECK, CLAIM, "counters"),
                expected="one meaning",
                observed=words,
            )
        )
    return findings

"""Could a wrong answer be seen at all?

Dummy weights give every prompt the same answer and log(1/vocabulary) everywhere: identity and
log-probabilities then prove nothing, whatever was loaded. Different prompts must differ by far more
than the noise, or those findings become inconclusive.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median

from msgspec.structs import replace

from kvbench.checks.answers import Answer, by_prompt, usable
from kvbench.checks.common import What, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.matching import Runs, fresh_pairs, gpu_pairs, pair, reference_of, runs_of, worst
from kvbench.ledger.facts import Ledger

CHECK = "answers_sensitive"
CLAIMS = ("identity", "logprobs")

FAR_MORE = 10.0
"""Prompts must differ by this many times the noise; a damaged block moves less than that."""

SMALLEST_SPREAD_NATS = 0.01
"""Below this, prompts have no answers of their own: dummy weights differ by 0 and tiny random
checkpoints by more than 1 nat, while the smallest damage of a whole block measured on those was
0.03."""


def _spread(answers: dict[str, Answer]) -> tuple[float, bool] | None:
    """Median difference between two prompts' first positions, and whether any tokens differ."""
    chosen = list(answers.values())
    if len(chosen) < 2:
        return None
    pairs = [pair(left, right) for left, right in combinations(chosen, 2)]
    distances = [each.distance.max_nats for each in pairs]
    return median(distances), len({answer.ids for answer in chosen}) > 1


def _noise(runs: list[Runs]) -> float:
    return max((worst([*fresh_pairs(r), *gpu_pairs(r)]) or 0.0 for r in runs[:1]), default=0.0)


def _any_answers(ledger: Ledger, stage: str, arm: str) -> dict[str, Answer]:
    """First answers of scored prompts; with one prompt only, there is nothing to tell apart."""
    found = reference_of(runs_of(ledger, stage, arm))
    if found:
        return found
    windows = ledger.measured(stage, arm)
    return by_prompt(answer for window in windows for answer in usable(window))


def _why_blind(ledger: Ledger, stage: str, arm: str) -> tuple[str, str] | None:
    """Why answers of this arm say nothing, and what was observed; None where they do."""
    answers = _any_answers(ledger, stage, arm)
    if not answers:
        return None
    found = _spread(answers)
    if found is None:
        return "one prompt only: nothing shows that another prompt's answer would differ", "n/a"
    spread, has_different_tokens = found
    needed = max(FAR_MORE * _noise(runs_of(ledger, stage, arm)), SMALLEST_SPREAD_NATS)
    if not has_different_tokens:
        return (
            "all prompts have the same answer: dummy weights prove hits and liveness only",
            "equal",
        )
    if spread <= needed:
        reason = (
            f"answers of different prompts differ by {spread:.3g} nats, not by more than "
            f"{needed:.3g}: this model proves hits and liveness only"
        )
        return reason, f"{spread:.3g} nats"
    return None


def check(ledger: Ledger) -> list[Finding]:
    """Whether different prompts have different answers, per stage and arm."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        if ledger.role(arm) != "tested" or not ledger.measured(stage, arm):
            continue
        why = _why_blind(ledger, stage, arm)
        outcome = Outcome.PASS if why is None else Outcome.INCONCLUSIVE
        reason, observed = why or (
            "answers of different prompts differ by far more than the noise",
            "",
        )
        findings += [
            about_arm(
                stage,
                arm,
                outcome,
                reason,
                what=What(CHECK, claim, "logprobs"),
                expected=f"more than {FAR_MORE:g} times the noise",
                observed=observed,
            )
            for claim in CLAIMS
        ]
    return findings


def withdraw_blind(findings: list[Finding]) -> list[Finding]:
    """Passes on answers that could not have shown a fault, as inconclusive; fails stay fails."""
    blind = {
        (finding.stage, finding.arm, finding.claim): finding.reason
        for finding in findings
        if finding.check == CHECK and finding.outcome is Outcome.INCONCLUSIVE
    }
    result = []
    for finding in findings:
        why = blind.get((finding.stage, finding.arm, finding.claim))
        if why is not None and finding.outcome is Outcome.PASS:
            reason = f"proves nothing ({why}): {finding.reason}"
            finding = replace(finding, outcome=Outcome.INCONCLUSIVE, reason=reason)  # noqa: PLW2901
        result.append(finding)
    return result

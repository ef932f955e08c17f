"""One check's answer, with its evidence."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """What a finding says; ordered by severity in `verdict`."""

    PASS = "pass"  # noqa: S105 - a word, not a secret
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    ABORTED = "aborted"
    ERROR = "error"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding names witness, place, prompts, expected and observed, or it is no evidence."""

    check: str
    """stable id, for example hits_match_oracle"""
    claim: str
    """a scenario.models.Claim, or `setup` for the conditions of measuring itself"""
    outcome: Outcome
    witness: str
    """counters, usage, tokens, logprobs, events, liveness, processes, settings"""
    stage: str
    arm: str
    phase: str
    """phase name, or `-` where the finding is about a whole life"""
    reason: str
    """one sentence, complete without the other fields"""
    expected: str = ""
    observed: str = ""
    prompts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """paths inside the record, with line: journal.jsonl:123"""
    notes: tuple[str, ...] = ()

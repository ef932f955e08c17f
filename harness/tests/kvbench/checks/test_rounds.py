"""Rounds of one arm: did answers change more than in the control, and did the tier serve them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tool_records import QUESTIONS, Played, evaluated, judged, sample, samples

from kvbench.checks.finding import Finding, Outcome
from kvbench.events import Event, RequestDone, SampleDone, Token
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def answers(number: int, changed: Sequence[int] = ()) -> list[Event]:
    """A round in which some answers say something else, right all the same."""
    found = samples(number=number)
    return [
        replace(each, answer="Another way to 42. #### 42")
        if isinstance(each, SampleDone) and each.doc_id in changed
        else each
        for each in found
    ]


def rounds(*changed: Sequence[int], external_tokens: int = 800) -> list[Played]:
    played = [evaluated(answers(1), number=1)]
    for number, docs in enumerate(changed, start=2):
        each = evaluated(answers(number, docs), number=number)
        each.external_tokens = external_tokens
        played.append(each)
    return played


def judge(run: Path, tested: list[Played], control: list[Played] | None = None) -> Verdict:
    windows: dict[str, Sequence[Played]] = {"simple": tested}
    if control is not None:
        windows = {"control": control, **windows}
    return judged(run, windows)


def of(verdict: Verdict, check: str) -> list[Finding]:
    return [f for f in (*verdict.findings, *verdict.unclaimed) if f.check == check]


def test_equal_rounds_pass_with_their_counts(run: Path) -> None:
    (finding,) = of(judge(run, rounds([]), rounds([])), "rounds_alike")
    assert finding.outcome is Outcome.PASS
    assert f"{QUESTIONS} of {QUESTIONS} answers of round 2 are those of round 1" in finding.reason


def test_answers_that_change_oftener_than_in_the_control_fail(run: Path) -> None:
    (finding,) = of(judge(run, rounds(range(12)), rounds([3])), "rounds_alike")
    assert finding.outcome is Outcome.FAIL
    assert f"changed: tested 12/{QUESTIONS}, control 1/{QUESTIONS}" in finding.observed
    assert "question 0" in finding.notes[0]


def test_answers_that_change_as_often_as_in_the_control_are_noise(run: Path) -> None:
    (finding,) = of(judge(run, rounds(range(5)), rounds(range(20, 24))), "rounds_alike")
    assert finding.outcome is Outcome.PASS


def test_changes_without_a_control_decide_nothing(run: Path) -> None:
    (finding,) = of(judge(run, rounds([1, 2])), "rounds_alike")
    assert finding.outcome is Outcome.INCONCLUSIVE


def test_each_later_round_is_compared_with_the_first(run: Path) -> None:
    found = of(judge(run, rounds([], range(15)), rounds([], [])), "rounds_alike")
    by_phase = {finding.phase: finding.outcome for finding in found}
    assert by_phase == {"round-2 c4": Outcome.PASS, "round-3 c4": Outcome.FAIL}


@pytest.mark.parametrize(
    ("external_tokens", "outcome"), [(800, Outcome.PASS), (0, Outcome.INCONCLUSIVE)]
)
def test_tier_that_serves_no_later_round_proves_nothing(
    run: Path, external_tokens: int, outcome: Outcome
) -> None:
    (finding,) = of(judge(run, rounds([], external_tokens=external_tokens)), "rounds_served")
    assert finding.outcome is outcome
    assert f"external {external_tokens}/" in finding.reason


def test_one_round_asks_nothing_again(run: Path) -> None:
    (finding,) = of(judge(run, rounds()), "rounds_served")
    assert finding.outcome is Outcome.INCONCLUSIVE


# ---- ties --------------------------------------------------------------------------------------


def request(doc_id: int, number: int, ids: Sequence[int], gap_nats: float) -> RequestDone:
    """Tokens behind a sample; at each position the second-best token lies `gap_nats` below."""
    tokens = tuple(
        Token(
            each,
            -1.0 - (gap_nats if each % 2 else 0.0),
            {str(each - each % 2): -1.0, str(each - each % 2 + 1): -1.0 - gap_nats},
        )
        for each in ids
    )
    done: dict[str, Any] = dict.fromkeys(
        ("ttft_s", "error", "error_kind", "prompt_tokens", "cached_tokens", "completion_tokens")
    )
    return RequestDone(
        time_s=1.0,
        life="",
        window="",
        request_id=f"r{number}-{doc_id}",
        prompt_id=f"replay/q{doc_id}",
        role="sample",
        wave=0,
        sent_s=1.0,
        latency_s=1.0,
        http_status=200,
        finish_reason="stop",
        tokens=tokens,
        **done,
    )


def told(number: int, ids_of: dict[int, list[int]], gap_nats: float) -> Played:
    """A round whose tokens are recorded."""
    asked = [replace(sample(doc, number=number), request_id=f"r{number}-{doc}") for doc in ids_of]
    played = evaluated(asked, number=number)
    requests = [request(doc, number, ids, gap_nats) for doc, ids in ids_of.items()]
    return replace_events(played, [*requests, *played.events])


def replace_events(played: Played, events: list[Event]) -> Played:
    played.events = events
    return played


def test_change_at_a_tie_inside_the_band_is_explained(run: Path) -> None:
    """Unchanged answers moved a gap by 0.02 nats, so a gap of 0.01 can turn."""
    first = told(1, {0: [10, 20], 1: [30, 40]}, gap_nats=0.01)
    later = told(2, {0: [10, 21], 1: [30, 40]}, gap_nats=0.03)
    (finding,) = of(judge(run, [first, later]), "rounds_alike")
    assert finding.outcome is Outcome.PASS
    assert "1 changed at a tie (band 0.02 nats), 0 beyond one" in finding.reason


def test_change_at_a_wide_gap_is_no_tie(run: Path) -> None:
    first = told(1, {0: [10, 20], 1: [30, 40]}, gap_nats=1.0)
    later = told(2, {0: [10, 21], 1: [30, 40]}, gap_nats=1.02)
    (finding,) = of(judge(run, [first, later]), "rounds_alike")
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert "question 0 position 1: token 21 for 20" in finding.notes[0]

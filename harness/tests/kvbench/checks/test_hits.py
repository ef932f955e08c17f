from __future__ import annotations

from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.ledger import Ledger
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def in_replay(name: str, *, local: int = 0, external: int = 0) -> records.OnRequest:
    def change(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == name and sent.arm == "simple":
            sent.local += local
            sent.external += external

    return change


def test_expected_hits_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "hits_match_oracle") == {"pass"}


def test_every_request_has_an_expectation(healthy: Ledger) -> None:
    requests = [request for window in healthy.windows for request in window.requests]
    assert requests
    assert all(request.expected is not None for request in requests)


def test_hit_short_by_one_block_fails_in_those_words(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=in_replay("p2", external=-128))
    finding = records.only(verdict, "hits_match_oracle", Outcome.FAIL)
    assert "p2 external 128, expected 256: short by one block" in finding.reason
    assert finding.prompts == ("replay/p2",)
    assert verdict.exit_code == ExitCode.FAIL


def test_hit_longer_than_possible_fails(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=in_replay("p2", external=128))
    finding = records.only(verdict, "hits_possible", Outcome.FAIL)
    assert "p2 hit 384 tokens, longest possible 256" in finding.reason


def test_local_hits_in_replay_fail_where_none_are_expected(run: Path) -> None:
    change = in_replay("p2", local=128, external=-128)
    verdict = records.judged(run, arm=("simple",), on_request=change)
    assert "p2 local 128, expected 0" in verdict.findings[0].reason


def test_fail_of_the_control_arm_is_a_broken_baseline(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "hot-1" and sent.arm == "control" and sent.role == "scored":
            sent.local = 0

    verdict = records.judged(run, on_request=damage)
    assert "baseline broken" in records.only(verdict, "hits_match_oracle", Outcome.ERROR).reason
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def test_above_concurrency_one_the_whole_window_is_compared(run: Path) -> None:
    sets = ("stages.replay.workload.new_tokens=8", "stages.replay.workload.concurrency=[2]")
    change = in_replay("p2", external=-128)
    verdict = records.judged(run, arm=("simple",), sets=sets, on_request=change)
    assert verdict.exit_code == ExitCode.FAIL
    assert "hits_match_oracle" in {f.check for f in verdict.findings if f.outcome is Outcome.FAIL}


def test_phases_that_are_not_cold_are_not_failed_for_their_hits(run: Path) -> None:
    """A reset that left the tier is invalid, and never printed as a fail of the hits (F16)."""

    def damage(sent: Sent) -> None:
        if sent.window == "w001" and sent.wave == 4:
            sent.external = 256
        if sent.phase == "fresh-1" and sent.kind == "fresh" and sent.name == "p1":
            sent.external = 256

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert verdict.outcome is Outcome.INVALID

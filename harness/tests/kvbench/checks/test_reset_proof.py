from __future__ import annotations

from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, PhaseEnded, PhaseStarted, ResetDone, Sample, Snapshot
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")

PROOF = "w001"
"""Window of the first proof of the tested arm when it runs alone."""


def sentinels(damage: records.OnRequest, *, wave: int) -> records.OnRequest:
    def change(sent: Sent) -> None:
        if sent.window == PROOF and sent.wave == wave:
            damage(sent)

    return change


def hit_externally(sent: Sent) -> None:
    sent.external = 256


def miss(sent: Sent) -> None:
    sent.local = sent.external = 0


def hit_locally(sent: Sent) -> None:
    sent.local = 256


def test_proved_resets_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "reset_proved") == {"pass"}


def test_reset_that_leaves_the_tier_makes_its_phase_not_cold(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=sentinels(hit_externally, wave=4))
    finding = records.only(verdict, "reset_proved", Outcome.INVALID)
    assert finding.reason.startswith("fresh-1: not cold")
    assert "claimed success" in finding.reason
    assert verdict.exit_code == ExitCode.UNPROVED


def test_reset_that_leaves_the_device_is_not_cold(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=sentinels(hit_locally, wave=3))
    assert "not cold" in records.only(verdict, "reset_proved", Outcome.INVALID).reason


def test_sentinel_that_never_hit_proves_nothing(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=sentinels(miss, wave=3))
    finding = records.only(verdict, "reset_proved", Outcome.INCONCLUSIVE)
    assert "never seen to hit in the external tier" in finding.reason


@pytest.mark.parametrize("body", ["", "{}"])
def test_reset_that_says_nothing_is_decided_by_its_probe(run: Path, body: str) -> None:
    def say_nothing(event: Event) -> Event:
        if isinstance(event, ResetDone) and event.window == PROOF:
            return records.replace(event, success=None, answers=(body or "HTTP 200",))
        return event

    verdict = records.judged(run, arm=("simple",), on_event=say_nothing)
    assert records.outcomes(verdict, "reset_proved") == {"pass"}


def test_reset_that_is_refused_for_ever_is_aborted(run: Path) -> None:
    def refuse(event: Event) -> Event:
        if isinstance(event, ResetDone) and event.window == PROOF and event.scope == "all":
            answers = ('{"success":false}',) * 9
            return records.replace(event, success=False, answers=answers, waited_s=30.0)
        if isinstance(event, PhaseEnded) and event.window == PROOF:
            return records.replace(event, outcome="aborted", reason="refused")
        return event

    verdict = records.judged(run, arm=("simple",), on_event=refuse)
    finding = records.only(verdict, "reset_proved", Outcome.ABORTED)
    assert "9 tries in 30 s" in finding.reason
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def test_reset_that_was_refused_at_first_counts(run: Path) -> None:
    def refuse_once(event: Event) -> Event:
        if isinstance(event, ResetDone):
            return records.replace(event, answers=('{"success":false}', '{"success":true}'))
        return event

    verdict = records.judged(run, arm=("simple",), on_event=refuse_once)
    assert records.outcomes(verdict, "reset_proved") == {"pass"}


def test_engine_without_the_endpoint_is_an_error(run: Path) -> None:
    def no_endpoint(event: Event) -> Event:
        if isinstance(event, ResetDone):
            return records.replace(event, success=None, answers=("HTTP 404",))
        return event

    verdict = records.judged(run, arm=("simple",), on_event=no_endpoint)
    assert "error" in records.outcomes(verdict, "reset_proved")


def test_phase_without_a_proof_is_invalid(run: Path) -> None:
    def drop(event: Event) -> Event | None:
        return None if getattr(event, "window", "").partition("/")[0] == PROOF else event

    verdict = records.judged(run, arm=("simple",), on_event=drop)
    assert "no proof" in records.only(verdict, "reset_proved", Outcome.INVALID).reason


def test_reset_that_said_nothing_is_decided_by_its_probe(run: Path) -> None:
    """F17, empty body: the sentinel missed, so it was a reset, and the hits after it are judged."""

    def silent(event: Event) -> Event:
        if not isinstance(event, ResetDone):
            return event
        return records.replace(event, success=None, answers=("",))

    assert records.judged(run, on_event=silent).outcome is Outcome.PASS


def test_hits_of_phases_without_a_proof_are_not_judged(run: Path) -> None:
    proofs: set[str] = set()

    def lose(event: Event) -> Event | None:
        if isinstance(event, PhaseStarted) and event.kind == "reset_proof":
            proofs.add(event.window)
        return None if getattr(event, "window", "").partition("/")[0] in proofs else event

    verdict = records.judged(run, on_event=lose)
    assert verdict.outcome is Outcome.INVALID
    assert "invalid" in records.outcomes(verdict, "reset_proved")


def test_hits_after_a_restart_are_not_the_connectors(run: Path) -> None:
    """F23: a restarted engine has lost both tiers; the phase is aborted, the rest is not judged."""
    restarted = False

    def damage(sent: Sent) -> None:
        nonlocal restarted
        if (sent.kind, sent.run) == ("replay", 1) and sent.wave == 0:
            restarted = True
        if restarted and sent.kind in ("replay", "reload"):
            sent.local = sent.external = 0

    def later(event: Event) -> Event:
        if not restarted or not isinstance(event, Snapshot):
            return event
        moved = tuple(
            Sample(s.name, s.engine, s.labels, s.value + 60 * (s.name == "process_start_time_s"))
            for s in event.samples
        )
        return records.replace(event, samples=moved)

    verdict = records.judged(run, arm=("simple",), on_request=damage, on_event=later)
    assert not [f for f in verdict.findings if f.outcome is Outcome.FAIL and f.claim == "hits"]
    assert verdict.exit_code == ExitCode.ENVIRONMENT

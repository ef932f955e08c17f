from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, Sample, Snapshot
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def one(sent: Sent) -> bool:
    return sent.phase == "replay-1" and sent.name == "p2" and sent.arm == "simple"


def samples(change: Callable[[Sample], Sample | None]) -> records.OnEvent:
    def apply(event: Event) -> Event:
        if not isinstance(event, Snapshot):
            return event
        kept = tuple(new for old in event.samples if (new := change(old)) is not None)
        return records.replace(event, samples=kept)

    return apply


def test_agreeing_witnesses_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "witnesses_agree") == {"pass"}


def test_usage_against_counters_is_invalid_and_names_the_prompt(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if one(sent):
            sent.counted_external = 0

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    finding = records.only(verdict, "witnesses_agree", Outcome.INVALID)
    assert "p2: usage says 256 cached, the counters 0 local + 0 external" in finding.reason
    assert "counter suspect" in finding.reason


def test_counters_that_count_twice_are_invalid(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if one(sent):
            sent.counted_queries = 2 * sent.prompt_tokens

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert "local queries" in records.only(verdict, "witnesses_agree", Outcome.INVALID).reason
    assert verdict.exit_code == ExitCode.UNPROVED


def test_preempted_requests_may_ask_twice(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if one(sent):
            sent.counted_queries, sent.preemptions = 2 * sent.prompt_tokens, 1

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    finding = records.only(verdict, "witnesses_agree", Outcome.PASS)
    assert "replay-1: 1 preemptions, query counters not compared" in finding.notes


def test_missing_counter_is_invalid_and_never_zero(run: Path) -> None:
    change = samples(lambda sample: None if sample.name == "external_hits" else sample)
    verdict = records.judged(run, arm=("simple",), on_event=change)
    findings = [f for f in verdict.findings if f.check == "witnesses_agree"]
    assert {f.outcome for f in findings} == {Outcome.INVALID}
    assert all("n/a: external_hits" in f.reason for f in findings)


def test_control_arm_needs_no_external_counters(healthy_verdict: Verdict) -> None:
    arms = [f.arm for f in healthy_verdict.findings if f.check == "witnesses_agree"]
    assert sorted(arms) == ["control", "simple"]


def test_restarted_engine_aborts_the_phase(run: Path) -> None:
    seen = 0

    def restart(event: Event) -> Event:
        nonlocal seen
        if not isinstance(event, Snapshot):
            return event
        seen += 1
        if seen < 40:
            return event
        fresh = tuple(Sample(s.name, s.engine, s.labels, 0.0) for s in event.samples)
        return records.replace(event, samples=fresh)

    verdict = records.judged(run, arm=("simple",), on_event=restart)
    assert "aborted" in records.outcomes(verdict, "counters_continuous")


def test_work_between_windows_is_invalid(run: Path) -> None:
    def stranger(event: Event) -> Event:
        is_late = isinstance(event, Snapshot) and event.time_s > 1_700_000_150
        if not is_late or not isinstance(event, Snapshot):
            return event
        moved = tuple(
            Sample(s.name, s.engine, s.labels, s.value + 500 * (s.name == "prompt_tokens"))
            for s in event.samples
        )
        return records.replace(event, samples=moved)

    verdict = records.judged(run, arm=("simple",), on_event=stranger)
    assert "invalid" in records.outcomes(verdict, "witnesses_agree")


def test_two_engines_are_added_up(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), engines=2)
    assert records.outcomes(verdict, "witnesses_agree") == {"pass"}

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.checks.witnesses import counts_last_token_twice
from kvbench.errors import ExitCode
from kvbench.events import Event, RequestDone, Sample, Snapshot
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
    assert "replay-1: 1 preemptions, so queries may be counted again" in finding.notes


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


def test_queries_beyond_what_preemption_explains_are_invalid(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if one(sent):
            sent.counted_queries, sent.preemptions = 100 * sent.prompt_tokens, 1

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert "local queries" in records.only(verdict, "witnesses_agree", Outcome.INVALID).reason


def test_suspect_counters_are_invalid_and_not_a_fail_of_the_connector(run: Path) -> None:
    """F18: the answers say that every hit was served, the counter stands still."""

    def damage(sent: Sent) -> None:
        sent.counted_external = 0

    verdict = records.judged(run, on_request=damage)
    assert not [f for f in verdict.findings if f.outcome in (Outcome.FAIL, Outcome.ERROR)]
    assert verdict.outcome is Outcome.INVALID
    assert any("counters are suspect" in f.reason for f in verdict.findings)


def test_hits_counted_twice_are_invalid_and_not_longer_than_possible(run: Path) -> None:
    """F19: usage is right, so nothing was hit that belongs to nobody."""

    def damage(sent: Sent) -> None:
        sent.counted_local, sent.counted_external = 2 * sent.local, 2 * sent.external

    verdict = records.judged(run, on_request=damage)
    assert not [f for f in verdict.findings if f.outcome in (Outcome.FAIL, Outcome.ERROR)]
    assert not records.outcomes(verdict, "hits_possible")
    assert verdict.exit_code != ExitCode.PASS


def test_wrong_tokens_outrank_suspect_counters_and_both_are_listed(run: Path) -> None:
    """F01 and F18 at once."""

    def damage(sent: Sent) -> None:
        sent.counted_external = 0
        if one(sent):
            sent.tokens = records.flip(sent.tokens, 3)

    verdict = records.judged(run, on_request=damage)
    assert verdict.exit_code == ExitCode.FAIL
    assert "fail" in records.outcomes(verdict, "tokens_equal")
    assert "invalid" in records.outcomes(verdict, "witnesses_agree")


def test_counters_of_another_number_of_requests_do_not_fail_the_hits(run: Path) -> None:
    """A request that the record lacks is in the counters of its window."""

    def lose(event: Event) -> Event | None:
        is_it = isinstance(event, RequestDone) and event.prompt_id == "replay/p2"
        return None if is_it and getattr(event, "window", "") in late else event

    sets = (*records.SMALL[:1], "stages.replay.workload.concurrency=[2]")
    whole = records.ledger(run, sets=sets)
    late = {w.id for w in whole.windows if w.arm == "simple" and w.kind == "replay"}
    verdict = records.judged(run.with_name("lost"), sets=sets, on_event=lose)
    assert records.outcomes(verdict, "witnesses_agree") == {"pass", "invalid"}
    assert records.outcomes(verdict, "hits_match_oracle") == {"pass"}


def test_prompt_of_another_length_than_was_sent_is_invalid(run: Path) -> None:
    """F32: the server saw another prompt, and counted it faithfully."""

    def damage(sent: Sent) -> None:
        if one(sent):
            sent.prompt_tokens -= 1

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, "witnesses_agree", Outcome.INVALID)
    assert "p2: usage says 383 prompt tokens, 384 were sent" in finding.reason


def test_engine_whose_label_goes_is_invalid_and_not_left_out_of_the_sum(run: Path) -> None:
    def vanish(event: Event) -> Event:
        if not isinstance(event, Snapshot) or event.time_s < 1_700_000_150:
            return event
        kept = tuple(sample for sample in event.samples if sample.engine != "1")
        return records.replace(event, samples=kept)

    verdict = records.judged(run, arm=("simple",), engines=2, on_event=vanish)
    findings = [f for f in verdict.findings if f.check == "witnesses_agree"]
    assert any("counters are missing" in f.reason for f in findings)
    assert verdict.exit_code == ExitCode.UNPROVED


@pytest.mark.parametrize("name", ["prompt_tokens_by_source", "prompt_tokens_cached", "preemptions"])
def test_counter_that_old_engines_lack_is_said_to_be_missing(run: Path, name: str) -> None:
    change = samples(lambda sample: None if sample.name == name else sample)
    verdict = records.judged(run, arm=("simple",), on_event=change)
    finding = records.only(verdict, "witnesses_agree", Outcome.PASS)
    assert f"replay-1: n/a: {name}" in finding.notes


@pytest.mark.parametrize(
    ("version", "is_twice"),
    [("0.32.0", False), ("0.33.1.dev5+g0123", False), ("0.17.0", True), (None, True)],
)
def test_only_old_engines_count_the_last_token_twice(version: str | None, is_twice: bool) -> None:
    assert counts_last_token_twice(version) is is_twice


def test_token_too_many_in_the_sources_is_invalid_since_vllm_0_32(run: Path) -> None:
    """p3 of 513 tokens hits 512: only its last token is left to compute."""

    def one_more(sample: Sample) -> Sample:
        is_it = sample.labels.get("source") == "local_cache_hit" and sample.value >= 512
        return Sample(sample.name, sample.engine, sample.labels, sample.value + is_it)

    verdict = records.judged(run, arm=("simple",), on_event=samples(one_more))
    assert "invalid" in records.outcomes(verdict, "witnesses_agree")

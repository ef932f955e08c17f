from __future__ import annotations

from pathlib import Path
from typing import Any

import event_lines
import pytest
import records
from event_lines import Line, only_device, stored, with_events
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.events import Event, Sample, Snapshot
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")

ONLY_SIMPLE = ("simple",)
NATIVE = (
    *records.SMALL,
    "arms.simple.connector={kind: native, copies: host_memory, host_pool_bytes_total: 64MiB}",
)


def never_served(sent: Sent) -> None:
    if sent.kind in ("replay", "reload"):
        sent.external = 0


def with_counter(name: str, values: Any) -> records.OnEvent:
    """Every snapshot shows a counter of the connector instead of SimpleCPU's outcomes."""

    def change(event: Event) -> Event:
        if not isinstance(event, Snapshot):
            return event
        samples = [s for s in event.samples if s.name != "simple_save_outcomes"]
        return records.replace(event, samples=(*samples, Sample(name, "0", {}, next(values))))

    return change


def constant(value: float) -> Any:
    while True:
        yield value


def counting(step: float) -> Any:
    value = 0.0
    while True:
        yield value
        value += step


def failed(verdict: Verdict) -> str:
    return records.only(verdict, "stored_and_served", Outcome.FAIL).reason


def test_what_is_stored_and_served_passes(run: Path) -> None:
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE)
    finding = records.only(verdict, "stored_and_served", Outcome.PASS)
    assert finding.witness == "counters, events"
    assert "blocks stored in the tier" in finding.reason
    assert verdict.outcome is Outcome.PASS


def test_stored_and_never_served_fails_by_events(run: Path) -> None:
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, on_request=never_served)
    finding = records.only(verdict, "stored_and_served", Outcome.FAIL)
    assert finding.reason.startswith("stored, never served: 180 blocks stored in the tier")
    assert finding.witness == "counters, events"
    assert "replay/p1" in finding.prompts


def test_nothing_stored_fails_by_events(run: Path) -> None:
    verdict = event_lines.judged(
        run,
        arm=ONLY_SIMPLE,
        change=only_device,
        on_request=never_served,
        on_event=with_counter("simple_used_blocks", constant(1.0)),
    )
    assert failed(verdict).startswith("nothing stored: no BlockStored event of the tier")


def test_missing_batches_are_no_proof_that_nothing_was_stored(run: Path) -> None:
    def lossy(lines: list[Line]) -> list[Line]:
        return [{"engine": 0, "gap": [0, 3], "replayed": False}, *only_device(lines)]

    verdict = event_lines.judged(
        run,
        arm=ONLY_SIMPLE,
        change=lossy,
        on_request=never_served,
        on_event=with_counter("other", constant(0.0)),
    )
    assert records.outcomes(verdict, "stored_and_served") == set()


def test_native_counter_tells_stored_from_dropped(run: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"arm": ONLY_SIMPLE, "sets": NATIVE, "on_request": never_served}
    name = "native_store_bytes"
    stores = records.judged(run, on_event=with_counter(name, counting(1.0)), **options)
    assert "stored, never served" in failed(stores)
    assert "bytes" in failed(stores)
    drops = records.judged(
        tmp_path / "other", on_event=with_counter(name, constant(0.0)), **options
    )
    assert failed(drops).startswith("nothing stored: 0 bytes")


def test_gauge_of_pinned_blocks_is_a_sign_of_stores(run: Path) -> None:
    change = with_counter("simple_used_blocks", constant(4.0))
    verdict = records.judged(run, arm=ONLY_SIMPLE, on_request=never_served, on_event=change)
    assert failed(verdict).startswith("stored, never served: 3 by its own counters")


def test_null_block_of_the_pool_is_no_store(run: Path) -> None:
    change = with_counter("simple_used_blocks", constant(1.0))
    verdict = records.judged(run, arm=ONLY_SIMPLE, on_request=never_served, on_event=change)
    assert failed(verdict).startswith("nothing stored, as far as the connector's counters show")


def test_without_any_witness_nothing_is_said(run: Path) -> None:
    change = with_counter("other", constant(0.0))
    verdict = records.judged(run, arm=ONLY_SIMPLE, on_request=never_served, on_event=change)
    assert records.outcomes(verdict, "stored_and_served") == set()


def test_local_hits_that_cover_all_are_silent(run: Path) -> None:
    """No pressure and no reset before the replay: the device answers, as the oracle expects."""
    sets = (
        *event_lines.WITH_EVENTS,
        "stages.replay.workload.phases=[fresh, hot, replay]",
        "stages.replay.claims=[alive, identity]",
    )
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, sets=sets)
    assert records.outcomes(verdict, "stored_and_served") == set()
    assert verdict.outcome is not Outcome.FAIL


def test_control_arm_is_not_asked(run: Path) -> None:
    verdict = event_lines.judged(run)
    for check in ("stored_and_served", "stores_once"):
        assert {f.arm for f in verdict.findings if f.check == check} == {"simple"}


def test_blocks_stored_twice_are_named_and_no_fail(run: Path) -> None:
    def twice(lines: list[Line]) -> list[Line]:
        return with_events(
            lines,
            lambda e: [e, e] if (e["type"], e.get("medium")) == ("BlockStored", "CPU") else [e],
        )

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=twice)
    finding = records.only(verdict, "stores_once", Outcome.PASS)
    assert finding.reason.startswith("double stores: ")
    assert "engine 0 stored block" in finding.notes[0]
    assert finding.evidence[0].startswith("artifacts/life-1/kv_events.jsonl:")
    assert verdict.outcome is Outcome.PASS


def test_blocks_stored_once_pass_without_a_note(run: Path) -> None:
    finding = records.only(event_lines.judged(run, arm=ONLY_SIMPLE), "stores_once", Outcome.PASS)
    assert finding.reason.startswith("no block was stored twice")
    assert finding.notes == ()


def test_store_again_after_an_eviction_is_silent(run: Path) -> None:
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, host_blocks=40)
    once = [f for f in verdict.findings if f.check == "stores_once"]
    assert [f.reason.startswith("no block was stored twice") for f in once] == [True]


def test_equal_blocks_on_the_device_are_no_double_store(run: Path) -> None:
    def twice(lines: list[Line]) -> list[Line]:
        return with_events(
            lines,
            lambda e: [e, e] if (e["type"], e.get("medium")) == ("BlockStored", "GPU") else [e],
        )

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=twice)
    finding = records.only(verdict, "stores_once", Outcome.PASS)
    assert finding.reason.startswith("no block was stored twice")


def test_self_describing_chunks_may_name_a_block_again(run: Path) -> None:
    connector = "kind: native, copies: host_memory, host_pool_bytes_total: 64MiB"
    sets = (
        *event_lines.WITH_EVENTS,
        f"arms.simple.connector={{{connector}, chunk_tokens: 256}}",
    )

    def again(lines: list[Line]) -> list[Line]:
        return event_lines.insert(lines, "w007", stored(5), stored(5))

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, sets=sets, change=again)
    finding = records.only(verdict, "stores_once", Outcome.PASS)
    assert finding.reason.startswith("no block was stored twice")


@pytest.mark.parametrize(("factor", "words"), [(1, "no more bytes"), (2, "double stores")])
def test_bytes_are_compared_where_there_are_no_events(run: Path, factor: int, words: str) -> None:
    """Each request stores its full prompt blocks once, or twice."""
    stored_bytes = 0.0

    def count(sent: Sent) -> None:
        nonlocal stored_bytes
        stored_bytes += factor * (sent.prompt_tokens // 128) * 262_144

    def show(event: Event) -> Event:
        if not isinstance(event, Snapshot):
            return event
        counter = Sample("native_store_bytes", "0", {}, stored_bytes)
        return records.replace(event, samples=(*event.samples, counter))

    verdict = records.judged(run, arm=ONLY_SIMPLE, sets=NATIVE, on_request=count, on_event=show)
    finding = records.only(verdict, "stores_once", Outcome.PASS)
    assert finding.reason.startswith(words)
    assert finding.witness == "counters"

from __future__ import annotations

from pathlib import Path
from typing import Any

import event_lines
import pytest
import records
from event_lines import Line, insert, only_device, removed, stored
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, Snapshot
from kvbench.judge import judge
from kvbench.ledger import load
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")

ONLY_SIMPLE = ("simple",)
PRESSURE = "w009"
"""window of pressure-1 in a run of the simple arm alone"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return event_lines.judged(tmp_path_factory.mktemp("events") / "run")


def with_bad(run: Path, *events: Line, **options: Any) -> Verdict:
    def change(lines: list[Line]) -> list[Line]:
        return insert(lines, PRESSURE, *events)

    return event_lines.judged(run, arm=ONLY_SIMPLE, change=change, **options)


def groups(*kinds: str) -> str:
    each = ",".join(f"{{kind: {kind}, block_tokens: 128}}" for kind in kinds)
    return f"model.geometry.groups=[{each}]"


def test_healthy_stream_passes_in_every_arm(sound: Verdict) -> None:
    assert sound.outcome is Outcome.PASS
    for check in ("events_sane", "events_complete"):
        assert records.outcomes(sound, check) == {"pass"}
    arms = {f.arm for f in sound.findings if f.check == "events_sane"}
    assert arms == {"control", "simple"}


def test_without_events_nothing_is_said(healthy_verdict: Verdict) -> None:
    for check in ("events_sane", "events_complete", "capacity_kept", "stores_cover"):
        assert records.outcomes(healthy_verdict, check) == set()


def test_removal_of_a_block_that_was_never_stored_fails_with_its_place(run: Path) -> None:
    verdict = with_bad(run, removed(77), removed(78))
    finding = records.only(verdict, "events_sane", Outcome.FAIL)
    assert "2 bad KV events in pressure-1" in finding.reason
    assert "removes block 77 from CPU" in finding.reason
    assert finding.witness == "events"
    assert finding.evidence[0].startswith("artifacts/life-1/kv_events.jsonl:")
    assert verdict.exit_code == ExitCode.FAIL


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (stored(77, "TAPE"), "BlockStored in medium TAPE, known are CPU, GPU, STORAGE"),
        (stored(77) | {"medium": None}, "in medium none"),
        (stored(77) | {"group_idx": 3}, "for group 3 of 1"),
        (stored(77) | {"block_size": 64}, "with block size 64, its group has 128"),
        (stored(77) | {"block_size": 0, "tokens": 0}, "with block size 0"),
        ({"type": None, "error": "TypeError: x"}, "is undecodable: TypeError: x"),
    ],
)
def test_event_that_does_not_fit_fails(run: Path, event: Line, words: str) -> None:
    verdict = with_bad(run, event)
    assert words in records.only(verdict, "events_sane", Outcome.FAIL).reason


def test_undecodable_batch_fails_with_its_number(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        place = next(i for i, line in enumerate(lines) if line.get("seq") == 9)
        bad = {"engine": 0, "seq": 9, "error": "DecodeError: malformed", "raw": "c1"}
        return [*lines[:place], bad, *lines[place + 1 :]]

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=change)
    finding = records.only(verdict, "events_sane", Outcome.FAIL)
    assert "batch 9 is undecodable" in finding.reason


def test_event_of_a_scratch_group_fails(run: Path) -> None:
    event = stored(77, "GPU") | {"group_idx": 1}
    sets = (*event_lines.WITH_EVENTS, groups("full_attention", "scratch"))
    verdict = with_bad(run, event, sets=sets)
    reason = records.only(verdict, "events_sane", Outcome.FAIL).reason
    assert "for group 1, a scratch group that is not cacheable" in reason


def test_event_of_a_cacheable_second_group_is_silent(run: Path) -> None:
    event = stored(77, "GPU") | {"group_idx": 1}
    sets = (*event_lines.WITH_EVENTS, groups("full_attention", "sliding_window"))
    assert records.outcomes(with_bad(run, event, sets=sets), "events_sane") == {"pass"}


@pytest.mark.parametrize(
    ("unit", "size", "outcome"), [(32, 64, "pass"), (None, 64, "fail"), (32, 96, "fail")]
)
def test_part_of_a_block_is_sound_only_with_a_match_unit(
    run: Path, unit: int | None, size: int, outcome: str
) -> None:
    sets: tuple[str, ...] = (*event_lines.WITH_EVENTS, groups("mamba", "full_attention"))
    if unit is not None:
        sets = (*sets, f"engine.prefix_match_unit_tokens={unit}")
    verdict = with_bad(run, stored(77, "GPU") | {"block_size": size, "tokens": size}, sets=sets)
    assert records.outcomes(verdict, "events_sane") == {outcome}


def test_empty_form_is_the_native_connectors(run: Path) -> None:
    empty = stored(77) | {"block_size": 0, "tokens": 0}
    sets = (
        *event_lines.WITH_EVENTS,
        "arms.simple.connector={kind: native, copies: host_memory, host_pool_bytes_total: 64MiB}",
    )
    assert records.outcomes(with_bad(run, empty, sets=sets), "events_sane") == {"pass"}


def test_host_events_without_a_connector_are_a_broken_baseline(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        return insert(lines, "w007", stored(77))

    verdict = event_lines.judged(run, lives=("control",), change=change)
    reason = records.only(verdict, "events_sane", Outcome.ERROR).reason
    assert "in medium CPU, though the arm has no connector" in reason


def test_gap_without_replay_is_inconclusive_and_named(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        place = next(i for i, line in enumerate(lines) if line.get("seq") == 9)
        gap = {"engine": 0, "gap": [9, 9], "replayed": False}
        return [*lines[:place], gap, *lines[place + 1 :]]

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=change)
    finding = records.only(verdict, "events_complete", Outcome.INCONCLUSIVE)
    assert "engine 0: batches 9 to 9 are missing" in finding.reason
    assert "media seen: CPU, GPU" in finding.reason
    assert verdict.exit_code == ExitCode.UNPROVED


def test_replayed_gap_is_silent(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        place = next(i for i, line in enumerate(lines) if line.get("seq") == 9)
        return [*lines[:place], {"engine": 0, "gap": [9, 9], "replayed": True}, *lines[place:]]

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=change)
    assert records.outcomes(verdict, "events_complete") == {"pass"}
    assert verdict.outcome is Outcome.PASS


def test_no_event_of_the_tier_is_inconclusive_where_it_served(run: Path) -> None:
    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=only_device)
    finding = records.only(verdict, "events_complete", Outcome.INCONCLUSIVE)
    assert finding.reason == "no CPU events: media seen: GPU; counters are used instead"
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_connector_that_emits_none_by_design_passes_with_a_note(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = event_lines.write(run, arm=ONLY_SIMPLE, change=only_device)
    ledger = load(directory)
    life = ledger.lives[0]
    assert life.ready is not None
    name = str(life.ready[1].effective["connector"])
    monkeypatch.setattr("kvbench.checks.tiers.EMITS_NO_HOST_EVENTS", frozenset({name}))
    verdict = judge(directory)
    finding = records.only(verdict, "events_complete", Outcome.PASS)
    assert f"{name} emits none by design" in finding.notes[0]
    assert verdict.outcome is Outcome.PASS


def test_tier_that_stores_nothing_is_no_missing_event(run: Path) -> None:
    """Nothing stored and nothing served: that is a finding about the stores, not the stream."""

    def no_hits(sent: Sent) -> None:
        sent.external = 0

    def no_stores(event: Event) -> Event:
        if isinstance(event, Snapshot):
            samples = tuple(s for s in event.samples if s.name != "simple_save_outcomes")
            return records.replace(event, samples=samples)
        return event

    verdict = event_lines.judged(
        run, arm=ONLY_SIMPLE, change=only_device, on_request=no_hits, on_event=no_stores
    )
    assert records.outcomes(verdict, "events_complete") == {"pass"}


def test_engine_that_publishes_nothing_is_inconclusive(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        return [line for line in lines if "events" not in line]

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=change)
    finding = records.only(verdict, "events_complete", Outcome.INCONCLUSIVE)
    assert "no KV event came from engine 0" in finding.reason


def test_events_that_were_asked_for_and_not_recorded_are_inconclusive(run: Path) -> None:
    verdict = records.judged(run, arm=ONLY_SIMPLE, sets=event_lines.WITH_EVENTS)
    finding = records.only(verdict, "events_complete", Outcome.INCONCLUSIVE)
    assert "none were recorded of life-1" in finding.reason


def test_recording_that_ended_is_inconclusive(run: Path) -> None:
    def change(lines: list[Line]) -> list[Line]:
        return [*lines, {"failed": "OSError: no space left"}]

    verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=change)
    finding = records.only(verdict, "events_complete", Outcome.INCONCLUSIVE)
    assert "no space left" in finding.reason

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from event_lines import removed, stored
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import RecordError
from kvbench.ledger.kv_event_facts import KvEvents, Tier
from kvbench.ledger.kv_events import Resets, read_kv_events
from kvbench.telemetry.kv_event_wire import digest_of

CLEARED = {"type": "AllBlocksCleared"}
HOST = Tier(0, "CPU", 0)
DEVICE = Tier(0, "GPU", 0)

Line = dict[str, Any]


def mark(window: str, edge: str = "before") -> Line:
    return {"window": window, "edge": edge}


def batch(seq: int, *events: Line, engine: int = 0) -> Line:
    return {"engine": engine, "seq": seq, "rank": engine, "events": list(events)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv_events.jsonl"


def read(path: Path, *lines: Line, resets: Resets | None = None) -> KvEvents:
    path.write_text("".join(json.dumps({"time_s": 1.0, **line}) + "\n" for line in lines))
    return read_kv_events(path, resets)


def kinds(events: KvEvents) -> list[tuple[str, int]]:
    return [(anomaly.kind, anomaly.line) for anomaly in events.anomalies]


def test_windows_cut_the_stream(path: Path) -> None:
    events = read(
        path,
        batch(0, stored(1, "GPU")),
        mark("w1"),
        batch(1, stored(2), stored(3)),
        mark("w1", "after"),
        mark("w2"),
        batch(2, removed(2)),
        mark("w2", "after"),
    )
    assert list(events.windows) == ["", "w1", "w2"]
    assert events.windows[""].events == {("BlockStored", DEVICE): 1}
    assert events.windows["w1"].stored == {HOST: {2, 3}}
    assert events.windows["w1"].held[HOST] == {2, 3}
    assert events.windows["w2"].removed == {HOST: {2}}
    assert events.windows["w2"].held[HOST] == {3}
    assert events.windows["w2"].peak_blocks[0, "CPU"] == 2
    assert events.media == ("CPU", "GPU")
    assert events.anomalies == ()


def test_removed_before_stored_is_an_anomaly_with_its_line(path: Path) -> None:
    events = read(path, mark("w1"), batch(0, stored(1)), batch(1, removed(2)))
    assert kinds(events) == [("removed_before_stored", 3)]
    assert events.anomalies[0].window == "w1"
    assert "removes block 2 from CPU" in events.anomalies[0].words


def test_tiers_groups_and_engines_are_told_apart(path: Path) -> None:
    events = read(
        path,
        batch(0, stored(1)),
        batch(1, removed(1, "GPU")),
        batch(2, removed(1) | {"group_idx": 1}),
        batch(0, removed(1), engine=1),
        batch(3, removed(1)),
    )
    assert kinds(events) == [("removed_before_stored", n) for n in (2, 3, 4)]


def test_equal_blocks_on_the_device_are_removed_one_by_one(path: Path) -> None:
    """vLLM does not merge equal content: a prompt of exactly n blocks recomputes the last one."""
    events = read(
        path,
        mark("w1"),
        batch(0, stored(1, "GPU"), stored(1, "GPU")),
        batch(1, removed(1, "GPU")),
        mark("w2"),
        batch(2, removed(1, "GPU")),
        batch(3, removed(1, "GPU")),
    )
    assert events.windows["w1"].held[DEVICE] == {1}
    assert events.windows["w1"].doubles == ()
    assert kinds(events) == [("removed_before_stored", 6)]


def test_second_store_in_the_host_tier_is_a_double(path: Path) -> None:
    events = read(path, mark("w1"), batch(0, stored(1), stored(2)), batch(1, stored(1)))
    assert [(d.hash, d.line) for d in events.windows["w1"].doubles] == [(1, 3)]


def test_store_after_an_eviction_is_no_double(path: Path) -> None:
    events = read(path, mark("w1"), batch(0, stored(1)), batch(1, removed(1), stored(1)))
    assert events.windows["w1"].doubles == ()


def test_store_after_a_clear_is_no_double(path: Path) -> None:
    events = read(path, mark("w1"), batch(0, stored(1)), batch(1, CLEARED, stored(1)))
    assert events.windows["w1"].doubles == ()


def test_clear_that_nobody_can_place_leaves_the_host_tier_open(path: Path) -> None:
    events = read(path, mark("w1"), batch(0, stored(1), stored(2)), batch(1, CLEARED))
    assert events.windows["w1"].held[HOST] == frozenset()
    assert events.windows["w1"].open_engines == {0}


def test_removal_after_a_clear_shows_that_the_tier_kept_its_blocks(path: Path) -> None:
    events = read(
        path, mark("w1"), batch(0, stored(1), stored(2)), batch(1, CLEARED), batch(2, removed(1))
    )
    assert events.windows["w1"].held[HOST] == {2}
    assert events.anomalies == ()


def test_single_clear_of_a_local_reset_is_the_devices(path: Path) -> None:
    events = read(
        path,
        mark("w1"),
        batch(0, stored(1), stored(1, "GPU")),
        batch(1, CLEARED),
        resets={"w1": ["local"]},
    )
    assert events.windows["w1"].held[HOST] == {1}
    assert events.windows["w1"].held[DEVICE] == frozenset()
    assert events.windows["w1"].open_engines == frozenset()


def test_clears_of_two_resets_in_one_batch_are_not_taken_for_a_local_one(path: Path) -> None:
    events = read(
        path,
        mark("w1"),
        batch(0, stored(1)),
        batch(1, CLEARED, CLEARED, CLEARED),
        resets={"w1": ["local", "all"]},
    )
    assert events.windows["w1"].held[HOST] == frozenset()
    assert events.windows["w1"].open_engines == {0}


def test_full_reset_empties_the_tier(path: Path) -> None:
    events = read(
        path,
        mark("w1"),
        batch(0, stored(1)),
        batch(1, CLEARED, CLEARED),
        resets={"w1": ["all"]},
    )
    assert events.windows["w1"].held[HOST] == frozenset()
    assert events.windows["w1"].open_engines == frozenset()


def test_clear_of_the_host_tier_behind_device_events_spares_them(path: Path) -> None:
    """In one batch the device's events come first: a clear behind them is the connector's."""
    events = read(
        path,
        mark("w1"),
        batch(0, CLEARED, stored(1, "GPU"), CLEARED, stored(2)),
        batch(1, removed(1, "GPU"), removed(2)),
    )
    assert events.anomalies == ()


def test_removal_of_a_device_block_from_before_a_clear_is_an_anomaly(path: Path) -> None:
    events = read(path, batch(0, stored(1, "GPU")), batch(1, CLEARED), batch(2, removed(1, "GPU")))
    assert kinds(events) == [("removed_before_stored", 3)]


def test_missing_batch_is_an_anomaly_and_silences_what_it_may_explain(path: Path) -> None:
    events = read(
        path,
        mark("w1"),
        {"engine": 0, "gap": [3, 5], "replayed": False},
        batch(6, removed(9)),
        batch(0, removed(9), engine=1),
    )
    assert kinds(events) == [("gap", 2), ("removed_before_stored", 4)]
    assert "engine 0: batches 3 to 5" in events.anomalies[0].words
    assert events.windows["w1"].lossy_engines == {0}


def test_replayed_gap_is_none(path: Path) -> None:
    events = read(path, {"engine": 0, "gap": [0, 0], "replayed": True}, batch(0, stored(1)))
    assert events.anomalies == ()
    assert events.windows[""].lossy_engines == frozenset()


def test_undecodable_batch_and_event_are_anomalies(path: Path) -> None:
    events = read(
        path,
        {"engine": 0, "seq": 0, "error": "DecodeError: no", "raw": "c1"},
        batch(1, stored(1), {"type": None, "error": "TypeError: x"}),
        {"engine": 0, "seq": None, "error": "1 frames", "raw": ""},
    )
    assert kinds(events) == [("undecodable", 1), ("undecodable", 2), ("undecodable", 3)]
    assert events.batches == {0: 3}


def test_restart_empties_the_engine(path: Path) -> None:
    events = read(
        path,
        mark("w1"),
        batch(0, stored(1), stored(1, "GPU")),
        {"engine": 0, "restart": [0, 0]},
        batch(0, stored(1)),
    )
    assert kinds(events) == [("restart", 3)]
    assert events.windows["w1"].held[DEVICE] == frozenset()
    assert events.windows["w1"].doubles == ()


def test_events_without_a_medium_are_the_devices(path: Path) -> None:
    old = {"type": "BlockStored", "block_hashes": [1], "tokens": 16, "block_size": 16}
    events = read(path, batch(0, old, stored(2) | {"medium": None}, stored(3, "cpu")))
    assert events.media == ("CPU", "GPU", "none")


def test_unknown_types_are_listed(path: Path) -> None:
    events = read(path, batch(0, {"type": "BlockTouched"}))
    assert events.unknown_types == ("BlockTouched",)
    assert events.anomalies == ()


def test_shapes_say_how_often_and_where_first(path: Path) -> None:
    odd = stored(3) | {"block_size": 7}
    events = read(path, mark("w1"), batch(0, stored(1)), batch(1, odd), batch(2, odd))
    seen = {shape.block_tokens: sight for shape, sight in events.windows["w1"].shapes.items()}
    assert (seen[7].times, seen[7].line, seen[7].seq) == (2, 3, 1)


def test_blocks_of_a_prompt_are_found_by_their_tokens(path: Path) -> None:
    prompt = tuple(range(100, 148))
    other = (*prompt[:16], *range(900, 932))
    one_run = stored(1, "GPU") | {
        "block_hashes": [1, 2],
        "tokens": 32,
        "digest": digest_of(prompt[:32]),
        "block_size": 16,
    }
    rest = stored(3, "GPU") | {
        "parent_block_hash": 2,
        "tokens": 16,
        "digest": digest_of(prompt[32:]),
        "block_size": 16,
    }
    events = read(path, batch(0, one_run), batch(1, rest))

    def find(tokens: tuple[int, ...]) -> tuple[int | str, ...]:
        return events.blocks_of_prompt(tokens, engine=0, group=0, block_tokens=16)

    assert find(prompt) == (1, 2, 3)
    assert find(prompt[:47]) == (1, 2)
    assert find(other) == ()


def test_torn_last_line_is_left_out(path: Path) -> None:
    read(path, batch(0, stored(1)))
    with path.open("a") as file:
        file.write('{"time_s": 1.0, "engine": 0, "se')
    assert read_kv_events(path).batches == {0: 1}


def test_foreign_line_is_an_error_with_its_place(path: Path) -> None:
    path.write_text('{"engine": 0}\n{}\n')
    with pytest.raises(RecordError, match=r"kv_events\.jsonl:1"):
        read_kv_events(path)


def test_end_of_recording_is_kept(path: Path) -> None:
    assert read(path, {"failed": "OSError: full"}).failed == "OSError: full"


Step = tuple[str, int]


@given(st.lists(st.tuples(st.sampled_from(["store", "remove"]), st.integers(0, 5)), max_size=40))
def test_what_is_held_is_what_was_stored_and_not_removed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    counts = dict.fromkeys(range(6), 0)
    bad = 0
    lines = [mark("w1")]
    for number, (what, block) in enumerate(steps):
        if what == "store":
            counts[block] += 1
            lines.append(batch(number, stored(block)))
        else:
            bad += counts[block] == 0
            counts[block] = max(counts[block] - 1, 0)
            lines.append(batch(number, removed(block)))
    path = tmp_path_factory.mktemp("events") / "kv_events.jsonl"
    events = read(path, *lines)
    held = {block for block, count in counts.items() if count}
    assert events.windows["w1"].held.get(HOST, frozenset()) == held
    assert len(events.anomalies) == bad

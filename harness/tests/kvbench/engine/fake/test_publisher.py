from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvbench import clock
from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.publisher import END_OF_REPLAY, Publisher
from kvbench.engine.fake.settings import FaultSetting
from kvbench.telemetry import kv_event_wire as wire
from kvbench.telemetry.kv_events import KvEventStream

LIMIT_MS = 5000
Event = dict[str, Any]


def stored(number: int, **changed: Any) -> Event:
    event: Event = {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "medium": "GPU",
        "group_idx": 0,
    }
    return {**event, **changed}


class Wire:
    """A publisher, and a subscriber that is connected."""

    def __init__(self, folder: Path, *faults: FaultSetting) -> None:
        self.endpoint, self.replay = f"ipc://{folder}/pub", f"ipc://{folder}/replay"
        self.journal: list[Event] = []
        self.faults = ActiveFaults(self.journal.append)
        self.faults.start_with(faults)
        self.context = zmq.Context()
        self.loop = asyncio.new_event_loop()
        self.publisher = self.loop.run_until_complete(self._open())
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.subscribe(b"")
        self.subscriber.setsockopt(zmq.RCVTIMEO, LIMIT_MS)
        monitor = self.subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.subscriber.connect(self.endpoint)
        assert monitor.poll(LIMIT_MS)
        self.subscriber.disable_monitor()
        clock.sleep_s(0.02)  # the subscription itself is not told of

    async def _open(self) -> Publisher:
        return Publisher(
            3, self.faults, endpoint=self.endpoint, replay_endpoint=self.replay, topic="kv"
        )

    def published(self, *batches: list[Event]) -> None:
        for batch in batches:
            self.publisher.publish(batch)

    def seen(self, count: int) -> list[tuple[int, bytes]]:
        """Number and payload of the next messages."""
        frames = [self.subscriber.recv_multipart() for _ in range(count)]
        assert all(frame[0] == b"kv" for frame in frames)
        return [(int.from_bytes(frame[1], "big"), frame[2]) for frame in frames]

    def replayed(self, start: int) -> list[tuple[int, bytes]]:
        """What the replay port has from a number on, while the publisher's loop runs."""
        return self.loop.run_until_complete(self._ask(start))

    async def _ask(self, start: int) -> list[tuple[int, bytes]]:
        asking = self.context.socket(zmq.DEALER)
        asking.connect(self.replay)
        asking.send_multipart([b"", start.to_bytes(8, "big")])
        found: list[tuple[int, bytes]] = []
        while True:
            while not asking.poll(0):
                await asyncio.sleep(0.001)
            _, topic, number, payload = asking.recv_multipart()
            if number == END_OF_REPLAY:
                assert (topic, payload) == (b"", b"")
                asking.close(linger=0)
                return found
            found.append((int.from_bytes(number, "big"), payload))

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close(linger=0)
        self.context.destroy(linger=0)
        self.loop.close()


Open = Callable[..., Wire]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    wires: list[Wire] = []

    def make(kind: str | None = None, times: int | None = None, **options: Any) -> Wire:
        faults = [] if kind is None else [FaultSetting(kind=kind, times=times, options=options)]
        wires.append(Wire(tmp_path, *faults))
        return wires[-1]

    yield make
    for found in wires:
        found.close()


def test_batches_are_numbered_and_have_vllms_form(opened: Open) -> None:
    found = opened()
    found.published([stored(1), stored(2)], [{"type": "AllBlocksCleared"}])
    (first, payload), (second, cleared) = found.seen(2)
    assert (first, second) == (0, 1)
    batch = wire.decode(payload)
    assert (batch.rank, batch.error) == (3, None)
    assert [event["block_hashes"] for event in batch.events] == [[1], [2]]
    assert wire.decode(cleared).events == ({"type": "AllBlocksCleared"},)


def test_replay_gives_what_was_sent_from_a_number_on(opened: Open) -> None:
    found = opened()
    found.published(*[[stored(number)] for number in range(5)])
    assert found.replayed(2) == found.seen(5)[2:]
    assert found.replayed(5) == []


def test_long_replay_loses_nothing(opened: Open) -> None:
    found = opened()
    found.published(*[[stored(number)] for number in range(3000)])
    assert [number for number, _ in found.replayed(0)] == list(range(3000))


def test_recorder_of_the_harness_misses_nothing(opened: Open, tmp_path: Path) -> None:
    found = opened()
    found.published([stored(1)])
    stream = KvEventStream(tmp_path / "events.jsonl", [(found.endpoint, None)])
    stream.start()
    found.published([stored(2)])
    stream.mark("w", "after")
    stream.stop()
    assert stream.problem is None
    assert '"seq":1' in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("replayable", "kept"), [(True, [0, 1, 2]), (False, [1, 2])], ids=["live", "for good"]
)
def test_lost_batch_leaves_a_gap(opened: Open, replayable: bool, kept: list[int]) -> None:
    found = opened("events_gap", times=1, what="lost_batch", replayable=replayable)
    found.published([stored(1)], [stored(2)], [stored(3)])
    assert [number for number, _ in found.seen(2)] == [1, 2]
    assert [number for number, _ in found.replayed(0)] == kept
    assert [entry["what"] for entry in found.journal] == ["lost_batch"]


def test_events_of_the_host_tier_never_come(opened: Open) -> None:
    found = opened("events_gap", what="no_cpu_events")
    found.published([stored(1), stored(2, medium="CPU")], [stored(3, medium="CPU")], [stored(4)])
    batches = [wire.decode(payload).events for _, payload in found.seen(2)]
    assert [[event["medium"] for event in batch] for batch in batches] == [["GPU"], ["GPU"]]
    assert [entry["events"] for entry in found.journal] == [1, 1]


def damaged(opened: Open, what: str, **options: Any) -> list[Event]:
    found = opened("bad_events", times=1, what=what, **options)
    found.published(
        [{"type": "AllBlocksCleared"}], [stored(1), stored(2, group_idx=1)], [stored(3)]
    )
    _, second, third = (wire.decode(payload) for _, payload in found.seen(3))
    assert [event["block_hashes"] for event in third.events] == [[3]]
    assert len(found.journal) == 1
    return list(second.events)


def test_event_of_a_group_that_is_not_cached(opened: Open) -> None:
    *_, last = damaged(opened, "scratch_group")
    assert (last["group_idx"], last["kv_cache_spec_kind"]) == (2, "scratch")


def test_event_of_a_group_that_is_named(opened: Open) -> None:
    assert damaged(opened, "scratch_group", group_index=7)[-1]["group_idx"] == 7


def test_event_of_an_unknown_medium(opened: Open) -> None:
    first, second = damaged(opened, "wrong_medium")
    assert (first["medium"], second["medium"]) == ("TAPE", "GPU")


def test_event_with_a_wrong_size(opened: Open) -> None:
    first, second = damaged(opened, "wrong_block_size")
    assert (first["block_size"], second["block_size"]) == (3, 2)


def test_block_is_removed_before_it_was_stored(opened: Open) -> None:
    first, second, third = damaged(opened, "removed_before_stored")
    assert first["type"] == "BlockRemoved"
    assert first["block_hashes"] not in (second["block_hashes"], third["block_hashes"])


def test_batch_that_cannot_be_decoded_leaves_its_neighbours(opened: Open) -> None:
    found = opened("bad_events", times=1, what="undecodable")
    found.published([stored(1)], [stored(2)])
    batches = [wire.decode(payload) for _, payload in found.seen(3)]
    assert [batch.error is None for batch in batches] == [True, False, True]
    assert [number for number, _ in found.replayed(0)] == [0, 1, 2]

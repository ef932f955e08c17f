"""The recorder against the fake engine's own publisher, with its faults of the event stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.publisher import Publisher
from kvbench.engine.fake.settings import FaultSetting
from kvbench.ledger.kv_events import read_kv_events
from kvbench.telemetry.kv_events import KvEventStream


def stored(number: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
    }


class Engine:
    """A publisher in an event loop of its own, as in the fake server."""

    def __init__(self, folder: Path) -> None:
        self.endpoints = (f"ipc://{folder}/events", f"ipc://{folder}/replay")
        self.faults = ActiveFaults(lambda detail: None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._publisher = self._call(self._make())

    async def _make(self) -> Publisher:
        endpoint, replay = self.endpoints
        return Publisher(0, self.faults, endpoint=endpoint, replay_endpoint=replay, topic="kv")

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5)

    def publish(self, *events: dict[str, Any]) -> None:
        async def send() -> None:
            self._publisher.publish(list(events))

        self._call(send())

    def fault(self, kind: str, **options: Any) -> None:
        self.faults.start_with((FaultSetting(kind=kind, times=1, options=options),))

    def close(self) -> None:
        async def end() -> None:
            self._publisher.close()

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.close()


def recorded(engine: Engine, path: Path) -> list[dict[str, Any]]:
    """What is recorded of four batches, the faults being on."""
    stream = KvEventStream(path, [engine.endpoints])
    stream.start()
    stream.mark("w001", "before")
    for number in range(4):
        engine.publish(stored(number))
    stream.mark("w001", "after")
    stream.stop()
    assert stream.problem is None
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_batch_is_recorded_once_in_its_window(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "kv_events.jsonl"
    assert [line["seq"] for line in recorded(engine, path) if "seq" in line] == [0, 1, 2, 3]
    events = read_kv_events(path)
    assert sum(events.windows["w001"].blocks.values()) == 4
    assert events.anomalies == ()


def test_lost_batch_is_replayed(engine: Engine, tmp_path: Path) -> None:
    engine.fault("events_gap", replayable=True)
    lines = recorded(engine, tmp_path / "kv_events.jsonl")
    assert [line["seq"] for line in lines if "seq" in line] == [0, 1, 2, 3]
    assert [(line["gap"], line["replayed"]) for line in lines if "gap" in line] == [([0, 0], True)]


def test_batch_that_is_lost_for_good_is_a_gap(engine: Engine, tmp_path: Path) -> None:
    engine.fault("events_gap")
    path = tmp_path / "kv_events.jsonl"
    assert [line["seq"] for line in recorded(engine, path) if "seq" in line] == [1, 2, 3]
    assert [anomaly.kind for anomaly in read_kv_events(path).anomalies] == ["gap"]


def test_undecodable_batch_is_recorded(engine: Engine, tmp_path: Path) -> None:
    engine.fault("bad_events", what="undecodable")
    path = tmp_path / "kv_events.jsonl"
    assert len([line for line in recorded(engine, path) if "seq" in line]) == 5
    assert [anomaly.kind for anomaly in read_kv_events(path).anomalies] == ["undecodable"]

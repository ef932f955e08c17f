"""The recorder against real ZMQ sockets that speak as vLLM's publisher does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvbench.telemetry.kv_event_wire import digest_of
from kvbench.telemetry.kv_events import KvEventStream

END = b"\xff" * 8
TOKENS = list(range(32))


def stored(*hashes: int | bytes, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    """One BlockStored in the map form, two tokens short of nothing."""
    event = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": TOKENS[: 16 * len(hashes)],
        "block_size": 16,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
        "extra_keys": [("salt",)],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return event | more


class Publisher:
    """A PUB socket and a ROUTER socket with vLLM's framing, and a wire that can be cut."""

    def __init__(self, folder: Path, *, replays: bool = True) -> None:
        self.endpoint = f"ipc://{folder}/pub"
        self.replay_endpoint = f"ipc://{folder}/replay" if replays else None
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(self.endpoint)
        self._buffer: list[tuple[int, bytes]] = []
        self._ended = threading.Event()
        self.requests: list[int] = []
        self.seq = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._router = self._context.socket(zmq.ROUTER)
        if self.replay_endpoint is not None:
            self._router.bind(self.replay_endpoint)
        self._thread.start()

    def batch(
        self, *events: Any, lost: bool = False, forgotten: bool = False, rank: int | None = 0
    ) -> None:
        """Publish one batch; `lost`: only a replay has it; `forgotten`: not even that."""
        payload = msgspec.msgpack.encode([1.5, list(events), rank])
        self.payload(payload, lost=lost or forgotten, forgotten=forgotten)

    def payload(self, payload: bytes, *, lost: bool = False, forgotten: bool = False) -> None:
        """Publish a payload under the next number."""
        if not lost:
            self._pub.send_multipart((b"kv", self.seq.to_bytes(8, "big"), payload))
        if not forgotten:
            self._buffer.append((self.seq, payload))
        self.seq += 1

    def raw(self, *frames: bytes) -> None:
        """Publish frames of any kind."""
        self._pub.send_multipart(frames)

    def _serve(self) -> None:
        while not self._ended.is_set():
            if not self._router.poll(5):
                continue
            client, _, start = self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.requests.append(first)
            for seq, payload in list(self._buffer):
                if seq >= first:
                    self._router.send_multipart(
                        (client, b"", b"kv", seq.to_bytes(8, "big"), payload)
                    )
            self._router.send_multipart((client, b"", b"", END, b""))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)


Publishing = Callable[..., Publisher]


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publishing]:
    made: list[Publisher] = []

    def make(**options: Any) -> Publisher:
        folder = tmp_path / f"p{len(made)}"
        folder.mkdir()
        made.append(Publisher(folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Callable[..., KvEventStream]]:
    made: list[KvEventStream] = []

    def start(*publishers: Publisher) -> KvEventStream:
        endpoints = [(each.endpoint, each.replay_endpoint) for each in publishers]
        made.append(KvEventStream(tmp_path / "kv_events.jsonl", endpoints))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop()


def lines(stream: KvEventStream) -> list[dict[str, Any]]:
    """What was recorded, without times."""
    found = [json.loads(line) for line in stream.path.read_text().splitlines()]
    for line in found:
        assert line.pop("time_s") > 0
    return found


def seqs(stream: KvEventStream) -> list[int]:
    return [line["seq"] for line in lines(stream) if "seq" in line]


def gaps(stream: KvEventStream) -> list[tuple[list[int], bool]]:
    return [(line["gap"], line["replayed"]) for line in lines(stream) if "gap" in line]


Streaming = Callable[..., KvEventStream]


def test_batch_becomes_one_line_with_tokens_counted(
    publisher: Publishing, stream: Streaming
) -> None:
    source = publisher()
    recorded = stream(source)
    recorded.mark("w001", "before")
    source.batch(stored(2**64 - 1, b"\x00\xff"))
    recorded.mark("w001", "after")
    before, batch, after = lines(recorded)
    assert before == {"window": "w001", "edge": "before"}
    assert after == {"window": "w001", "edge": "after"}
    assert batch == {
        "engine": 0,
        "seq": 0,
        "rank": 0,
        "events": [
            {
                "type": "BlockStored",
                "block_hashes": [2**64 - 1, "00ff"],
                "parent_block_hash": None,
                "tokens": 32,
                "digest": digest_of(TOKENS),
                "block_size": 16,
                "medium": "GPU",
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        ],
    }


def test_older_array_form_is_read_alike(publisher: Publishing, stream: Streaming) -> None:
    source = publisher()
    recorded = stream(source)
    source.batch(
        ["BlockStored", [7], None, TOKENS[:16], 16, None],
        ["BlockStored", [8], 7, TOKENS[:16], 16, None, "GPU"],
        ["BlockRemoved", [7]],
        ["BlockRemoved", [8], "GPU"],
        ["AllBlocksCleared"],
        rank=None,
    )
    recorded.stop()
    first, second, removed, removed_gpu, cleared = lines(recorded)[0]["events"]
    assert "medium" not in first
    assert (first["block_hashes"], first["tokens"]) == ([7], 16)
    assert (second["medium"], second["parent_block_hash"]) == ("GPU", 7)
    assert removed == {"type": "BlockRemoved", "block_hashes": [7]}
    assert removed_gpu == {"type": "BlockRemoved", "block_hashes": [8], "medium": "GPU"}
    assert cleared == {"type": "AllBlocksCleared"}


def test_struct_of_vllm_encodes_as_expected(publisher: Publishing, stream: Streaming) -> None:
    """The array form as msgspec itself writes it: defaults at the tail are left out."""

    class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
        block_hashes: list[int]
        medium: str | None = None

    source = publisher()
    recorded = stream(source)
    source.batch(BlockRemoved([1]), BlockRemoved([2], "CPU"))
    recorded.stop()
    assert [e["block_hashes"] for e in lines(recorded)[0]["events"]] == [[1], [2]]
    assert lines(recorded)[0]["events"][1]["medium"] == "CPU"


def test_gap_is_replayed_in_order(publisher: Publishing, stream: Streaming) -> None:
    source = publisher()
    recorded = stream(source)
    source.batch(stored(1))
    source.batch(stored(2), lost=True)
    source.batch(stored(3), lost=True)
    source.batch(stored(4))
    recorded.mark("w001", "after")
    assert seqs(recorded) == [0, 1, 2, 3]
    assert gaps(recorded) == [([1, 2], True)]


def test_gap_that_no_replay_fills_is_recorded(publisher: Publishing, stream: Streaming) -> None:
    source = publisher()
    recorded = stream(source)
    source.batch(stored(1))
    source.batch(stored(2), forgotten=True)
    source.batch(stored(3), lost=True)
    source.batch(stored(4))
    recorded.mark("w001", "after")
    assert seqs(recorded) == [0, 2, 3]
    assert gaps(recorded) == [([1, 1], False), ([2, 2], True)]


def test_gap_without_a_replay_endpoint_is_recorded(
    publisher: Publishing, stream: Streaming
) -> None:
    source = publisher(replays=False)
    recorded = stream(source)
    source.batch(stored(1), lost=True)
    source.batch(stored(2))
    recorded.mark("w001", "after")
    assert seqs(recorded) == [1]
    assert gaps(recorded) == [([0, 0], False)]


def test_what_was_published_before_comes_first(publisher: Publishing, stream: Streaming) -> None:
    """The slow joiner: no subscription existed when these were sent."""
    source = publisher()
    source.batch(stored(1))
    source.batch(stored(2))
    recorded = stream(source)
    recorded.mark("w001", "before")
    source.batch(stored(3))
    recorded.mark("w001", "after")
    order = [line.get("seq", line.get("edge")) for line in lines(recorded)]
    assert order == [0, 1, "before", 2, "after"]
    assert gaps(recorded) == []


def test_lost_last_batch_is_in_its_window(publisher: Publishing, stream: Streaming) -> None:
    source = publisher()
    recorded = stream(source)
    recorded.mark("w001", "before")
    source.batch(stored(1))
    source.batch(stored(2), lost=True)
    recorded.mark("w001", "after")
    recorded.mark("w002", "before")
    source.batch(stored(3))
    recorded.mark("w002", "after")
    order = [line.get("seq", line.get("edge")) for line in lines(recorded) if "gap" not in line]
    assert order == ["before", 0, 1, "after", "before", 2, "after"]


GARBAGE = {
    "no batch": b"\xc1",
    "a number": msgspec.msgpack.encode(5),
    "events are no list": msgspec.msgpack.encode([1.0, "x", 0]),
    "rank is a list": msgspec.msgpack.encode([1.0, [], []]),
    "deep": b"\x91" * 5000,
    "empty": b"",
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_undecodable_batch_is_recorded_and_survived(
    publisher: Publishing, stream: Streaming, payload: bytes
) -> None:
    source = publisher()
    recorded = stream(source)
    source.payload(payload)
    source.batch(stored(1))
    recorded.mark("w001", "after")
    bad, good, _ = lines(recorded)
    assert (bad["engine"], bad["seq"]) == (0, 0)
    assert bad["error"]
    assert bad["raw"] == payload[:64].hex()
    assert good["seq"] == 1
    assert recorded.problem is None


@pytest.mark.parametrize(
    "event",
    [
        b"\x00\x01",
        {"block_hashes": [1]},
        stored(1) | {"block_hashes": "x"},
        stored(1) | {"block_hashes": [1.5]},
        stored(1) | {"block_size": "16"},
        stored(1) | {"token_ids": [2**64 - 1]},
        [],
        None,
    ],
)
def test_undecodable_event_does_not_cost_its_neighbours(
    publisher: Publishing, stream: Streaming, event: Any
) -> None:
    source = publisher()
    recorded = stream(source)
    source.batch(stored(1), event, stored(2))
    recorded.mark("w001", "after")
    first, bad, last = lines(recorded)[0]["events"]
    assert (first["block_hashes"], last["block_hashes"]) == ([1], [2])
    assert bad["type"] is None
    assert bad["error"]


def test_frames_that_are_no_batch_are_recorded(publisher: Publishing, stream: Streaming) -> None:
    source = publisher()
    recorded = stream(source)
    source.raw(b"kv")
    source.raw(b"kv", b"123", b"\x90")
    source.raw(b"kv", END, b"\x90")
    source.batch(stored(1))
    recorded.mark("w001", "after")
    *bad, good, _ = lines(recorded)
    assert [line["seq"] for line in bad] == [None, None, None]
    assert all("sequence number" in line["error"] for line in bad)
    assert good["seq"] == 0


def test_absurd_sequence_number_costs_no_time(publisher: Publishing, stream: Streaming) -> None:
    source = publisher(replays=False)
    recorded = stream(source)
    source.raw(b"kv", (2**63).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [], 0]))
    source.batch(stored(1))
    recorded.mark("w001", "after")
    found = lines(recorded)
    assert {"engine": 0, "gap": [0, 2**63 - 1], "replayed": False} in found
    assert {"engine": 0, "restart": [2**63, 0]} in found
    assert seqs(recorded) == [2**63, 0]


def test_engine_that_counts_anew_is_a_restart(publisher: Publishing, stream: Streaming) -> None:
    source = publisher(replays=False)
    recorded = stream(source)
    source.batch(stored(1))
    source.batch(stored(2))
    source.seq = 0
    source.batch(stored(3))
    recorded.mark("w001", "after")
    found = lines(recorded)
    assert [line.get("seq", line.get("restart")) for line in found[:-1]] == [0, 1, [1, 0], 0]


def test_engines_are_told_apart(publisher: Publishing, stream: Streaming) -> None:
    first, second = publisher(), publisher()
    recorded = stream(first, second)
    first.batch(stored(1))
    second.batch(stored(2), rank=1)
    second.batch(stored(3), lost=True)
    second.batch(stored(4))
    recorded.mark("w001", "after")
    batches = [line for line in lines(recorded) if "seq" in line]
    assert [b["seq"] for b in batches if b["engine"] == 0] == [0]
    assert [b["seq"] for b in batches if b["engine"] == 1] == [0, 1, 2]
    assert [line["engine"] for line in lines(recorded) if "gap" in line] == [1]


def test_silent_replay_is_asked_only_a_few_times(
    publisher: Publishing, stream: Streaming, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kvbench.telemetry.kv_events.REPLAY_LIMIT_S", 0.01)
    source = publisher(replays=False)
    source.replay_endpoint = f"ipc://{tmp_path}/nobody"
    recorded = stream(source)
    for hash_number in range(4):
        source.batch(stored(hash_number), lost=True)
        source.batch(stored(hash_number))
    recorded.mark("w001", "after")
    assert seqs(recorded) == [1, 3, 5, 7]
    assert recorded.problem is None


def test_nobody_publishing_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.telemetry.kv_events.CONNECT_LIMIT_S", 0.02)
    monkeypatch.setattr("kvbench.telemetry.kv_events.REPLAY_LIMIT_S", 0.02)
    recorded = KvEventStream(
        tmp_path / "kv_events.jsonl", [(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/b")]
    )
    recorded.start()
    recorded.mark("w001", "before")
    recorded.mark("w001", "after")
    recorded.stop()
    assert [line["edge"] for line in lines(recorded)] == ["before", "after"]


def test_unwritable_path_ends_recording_and_not_the_run(
    publisher: Publishing, tmp_path: Path
) -> None:
    source = publisher()
    recorded = KvEventStream(tmp_path / "no" / "folder", [(source.endpoint, None)])
    recorded.start()
    recorded.mark("w001", "before")
    recorded.stop()
    assert recorded.problem is not None
    assert "FileNotFoundError" in recorded.problem


def test_nothing_happens_before_start_and_after_stop(
    publisher: Publishing, stream: Streaming
) -> None:
    source = publisher()
    never = KvEventStream(Path("unused"), [(source.endpoint, None)])
    never.mark("w001", "before")
    never.stop()
    recorded = stream(source)
    recorded.stop()
    recorded.mark("w001", "after")
    assert lines(recorded) == []

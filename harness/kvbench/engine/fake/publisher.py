"""Publishes one engine's KV events as vLLM does: numbered batches, and a replay of those kept.

Follows ZmqEventPublisher (vllm/distributed/kv_events.py, 0.32), but in the event loop instead of a
thread, so that a batch is on its way before the answer that it belongs to. The trap: a ROUTER drops
what exceeds its high-water mark, so a long replay needs it to be off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec
import zmq

from kvbench import clock
from kvbench.engine.fake.about import BUFFERED_BATCHES
from kvbench.engine.fake.faults.base import ActiveFaults

END_OF_REPLAY: Final = b"\xff" * 8
_HIGH_WATER: Final = 100_000
_REQUEST_FRAMES: Final = 3


class Publisher:
    """The sockets of one engine; `close` frees them. Raises zmq.ZMQError when it cannot bind."""

    def __init__(
        self,
        engine: int,
        faults: ActiveFaults,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str,
    ) -> None:
        self._engine = engine
        self._faults = faults
        self._topic = topic.encode()
        self._sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED_BATCHES)
        self._encode = msgspec.msgpack.Encoder().encode
        self._loop = asyncio.get_running_loop()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.PUB)
        self._socket.set_hwm(_HIGH_WATER)
        self._socket.bind(endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        if replay_endpoint is not None:
            self._replay = context.socket(zmq.ROUTER)
            self._replay.set_hwm(0)
            self._replay.bind(replay_endpoint)
            self._loop.add_reader(self._replay.fileno(), self._answer_replays)

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Publish the events of a step, after the faults have had their way."""
        found: list[dict[str, Any] | bytes] = list(events)
        for fault in self._faults:
            kept = [each for each in found if isinstance(each, dict)]
            raw = [each for each in found if isinstance(each, bytes)]
            found = [*fault.on_events(self._engine, kept), *raw]
        batch = [each for each in found if isinstance(each, dict)]
        if batch:
            self._send(self._encode([clock.now_s(), batch, self._engine]))
        for payload in found:
            if isinstance(payload, bytes):
                self._send(payload)
        self._answer_replays()

    def _send(self, payload: bytes) -> None:
        number, self._sequence = self._sequence, self._sequence + 1
        lost = {fault.loses_batch(self._engine) for fault in self._faults}
        if "for_good" not in lost:
            self._buffer.append((number, payload))
        if lost <= {""}:
            self._socket.send_multipart((self._topic, number.to_bytes(8, "big"), payload))

    def _answer_replays(self) -> None:
        """Answer all requests for a replay; the socket tells of new ones only at an edge."""
        if self._replay is None:
            return
        while self._replay.poll(0, zmq.POLLIN):
            frames = self._replay.recv_multipart()
            if len(frames) != _REQUEST_FRAMES:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in self._buffer:
                if number >= start:
                    at = number.to_bytes(8, "big")
                    self._replay.send_multipart((client, b"", self._topic, at, payload))
            self._replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close the sockets; what was sent is delivered, for a moment at most."""
        self._socket.close(linger=100)
        if self._replay is not None:
            self._loop.remove_reader(self._replay.fileno())
            self._replay.close(linger=0)

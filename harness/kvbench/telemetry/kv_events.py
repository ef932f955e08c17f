"""Records the KV events of a server's engines, one JSON line a batch, while the run goes on.

vLLM (distributed/kv_events.py) publishes numbered batches on a PUB socket per data-parallel engine
and answers on a ROUTER socket with those that it still has. The traps: a PUB socket drops what is
sent before a subscription has reached it (the slow joiner), and a lost *last* batch shows only when
the next one comes. Both are closed by asking for a replay: whenever a number is skipped, and before
a window is closed. Nothing on the wire ends a run: what cannot be decoded is recorded as such.

Lines of the file, in order of arrival:

    {"time_s", "engine", "seq", "rank", "events": [...]}           a batch
    {"time_s", "engine", "seq", "error", "raw"}                    a batch that cannot be decoded
    {"time_s", "engine", "gap": [first, last], "replayed": bool}   numbers that were skipped
    {"time_s", "engine", "restart": [last, seq]}                   an engine that counts anew
    {"time_s", "window", "edge": "before" | "after"}               where the windows of the run lie
    {"time_s", "failed": "..."}                                    recording ended here
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from kvbench import clock
from kvbench.telemetry import kv_event_wire as wire

CONNECT_LIMIT_S: Final = 1.0
"""how long `start` waits for the engines' sockets; later ones are connected to all the same"""
REPLAY_LIMIT_S: Final = 1.0
"""silence after which a replay has failed; vLLM's publisher looks for requests every 0.1 s"""
QUIET_S: Final = 0.05
DRAIN_LIMIT_S: Final = 1.0
_STEP_S: Final = 0.1
_CROSSING_S: Final = 0.02
"""a batch may still be on its way to the subscription when a replay already has it"""
_ANSWER_LIMIT_S: Final = 10.0
_SILENT_REPLAYS: Final = 2
"""so many replays without an answer, and the engine is not asked again"""
_MOST_IN_A_ROW: Final = 1000
"""messages read from one engine before the others and the commands get their turn"""

_WAKE: Final = "inproc://wake"

Edge = Literal["before", "after"]


@dataclass(slots=True)
class _Command:
    window: str | None
    """None: stop"""
    edge: Edge
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Source:
    """One engine's publisher."""

    engine: int
    socket: zmq.Socket[bytes]
    replay: str | None
    next_seq: int = 0
    silent_replays: int = 0
    early: set[int] = field(default_factory=set)
    """numbers that a replay brought, and that the subscription may still bring"""

    @property
    def can_replay(self) -> bool:
        """Whether asking is worth the wait."""
        return self.replay is not None and self.silent_replays < _SILENT_REPLAYS


class KvEventStream:
    """Subscribes to every engine in one background thread and writes `path`.

    `endpoints` are (publisher, replay or None) of each data-parallel engine, in order. No method
    raises for what a server does; `problem` says why nothing is recorded any more.
    """

    def __init__(self, path: Path, endpoints: Sequence[tuple[str, str | None]]) -> None:
        self.path = path
        self.problem: str | None = None
        self._endpoints = tuple(endpoints)
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind(_WAKE)

    def start(self) -> None:
        """Subscribe, and wait until the engines' sockets are connected (`CONNECT_LIMIT_S` at most).

        What was published before is asked for, and recorded before any window. A batch that slips
        between is asked for when the next number or the end of a window shows that it is missing.
        """
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()
        self._ready.wait(_ANSWER_LIMIT_S)

    def mark(self, window_id: str, edge: Edge) -> None:
        """Write where a window begins or ends.

        Before its end, everything that the engines have published until now is taken in: first
        until nothing came for `QUIET_S` (`DRAIN_LIMIT_S` at most), then by a replay.
        """
        self._ask(_Command(window_id, edge))

    def stop(self) -> None:
        """Take in what is left and close the file."""
        if self._thread is not None:
            self._ask(_Command(None, "after"))
            self._thread.join(_ANSWER_LIMIT_S)
            self._thread = None
        self._wake.close(linger=0)
        self._context.destroy(linger=0)

    def _ask(self, command: _Command) -> None:
        with self._lock:
            thread = self._thread
            if thread is None or not thread.is_alive():
                return
            self._commands.put(command)
            try:
                self._wake.send(b"", zmq.NOBLOCK)
            except zmq.Again:  # recording has just ended: nobody listens
                return
        deadline_s = clock.monotonic_s() + _ANSWER_LIMIT_S
        while thread.is_alive() and clock.monotonic_s() < deadline_s:
            if command.done.wait(_STEP_S):
                return

    # ---- everything below runs in the thread ----------------------------------------------------

    def _run(self) -> None:
        sources: list[_Source] = []
        wake = self._context.socket(zmq.PAIR)
        try:
            wake.connect(_WAKE)
            self._file = self.path.open("ab")
            for engine, (_, replay) in enumerate(self._endpoints):
                sources.append(_Source(engine, self._subscription(), replay))
            self._connect(sources)
            for source in sources:
                self._catch_up(source, is_history=True)
            self._file.flush()
            self._ready.set()
            self._loop(wake, sources)
        except (zmq.ZMQError, OSError) as error:
            self.problem = f"{type(error).__name__}: {error}"
            self._write_failure()
        finally:
            self._ready.set()
            for socket in (wake, *(source.socket for source in sources)):
                socket.close(linger=0)
            if self._file is not None:
                self._file.close()

    def _write_failure(self) -> None:
        if self._file is None:
            return
        try:
            self._write(failed=self.problem)
        except OSError as error:  # the disk itself is the reason
            self.problem = f"{self.problem}; {error}"

    def _subscription(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)  # nothing is dropped on this side
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.subscribe(b"")
        return socket

    def _connect(self, sources: Sequence[_Source]) -> None:
        """Connect all, and wait until each has shaken hands."""
        poller = zmq.Poller()
        for source in sources:
            poller.register(
                source.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED), zmq.POLLIN
            )
            source.socket.connect(_connectable(self._endpoints[source.engine][0]))
        deadline_s = clock.monotonic_s() + CONNECT_LIMIT_S
        while poller.sockets and clock.monotonic_s() < deadline_s:
            left_s = max(deadline_s - clock.monotonic_s(), 0.0)
            for monitor, _ in poller.poll(_milliseconds(left_s)):
                recv_monitor_message(monitor)
                poller.unregister(monitor)
        for source in sources:
            source.socket.disable_monitor()

    def _loop(self, wake: zmq.Socket[bytes], sources: Sequence[_Source]) -> None:
        poller = zmq.Poller()
        for socket in (wake, *(source.socket for source in sources)):
            poller.register(socket, zmq.POLLIN)
        while True:
            is_called = wake in dict(poller.poll())
            for source in sources:
                self._take(source)
            if is_called:
                wake.recv()
                command = self._commands.get()
                self._obey(command, sources)
                if command.window is None:
                    return
            self._flush()

    def _obey(self, command: _Command, sources: Sequence[_Source]) -> None:
        try:
            if command.edge == "after":
                self._settle(sources)
            if command.window is not None:
                self._write(window=command.window, edge=command.edge)
            self._flush()
        finally:
            command.done.set()

    def _settle(self, sources: Sequence[_Source]) -> None:
        """Wait until nothing comes any more, then ask for what did not come."""
        deadline_s = clock.monotonic_s() + DRAIN_LIMIT_S
        while self._wait(sources, QUIET_S) and clock.monotonic_s() < deadline_s:
            pass
        for source in sources:
            self._catch_up(source)

    def _wait(self, sources: Sequence[_Source], limit_s: float) -> bool:
        """Take in what comes next; False where nothing came."""
        poller = zmq.Poller()
        for source in sources:
            poller.register(source.socket, zmq.POLLIN)
        if not poller.poll(_milliseconds(limit_s)):
            return False
        for source in sources:
            self._take(source)
        return True

    def _take(self, source: _Source) -> None:
        """Take in what has arrived from one engine; the others get their turn after some."""
        for _ in range(_MOST_IN_A_ROW):
            try:
                frames = source.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._received(source, frames)

    def _received(self, source: _Source, frames: list[bytes]) -> None:
        seq = wire.sequence_of(frames)
        if seq is None:
            error = f"{len(frames)} frames without a sequence number, not [topic, sequence, batch]"
            self._write(
                engine=source.engine, seq=None, error=error, raw=wire.raw_words(b"".join(frames))
            )
            return
        if seq in source.early:
            source.early.discard(seq)
            return
        if seq < source.next_seq:
            self._write(engine=source.engine, restart=[source.next_seq - 1, seq])
            source.next_seq = 0
            source.early.clear()
        if seq > source.next_seq:
            payloads = self._replayed(source)
            self._fill(source, seq - 1, {n: each for n, each in payloads.items() if n < seq})
        self._batch(source, seq, frames[2])

    def _catch_up(self, source: _Source, *, is_history: bool = False) -> None:
        """Ask for what was published and did not arrive; `is_history`: before the subscription."""
        if not source.can_replay:
            return
        payloads = self._replayed(source)
        if payloads and not is_history:
            self._wait([source], _CROSSING_S)
        late = {seq: each for seq, each in payloads.items() if seq >= source.next_seq}
        if late:
            self._fill(source, max(late), late, is_history=is_history)

    def _fill(
        self, source: _Source, last: int, payloads: dict[int, bytes], *, is_history: bool = False
    ) -> None:
        """Record the numbers up to `last`: those that a replay brought, and that others lack."""
        for run in _runs(payloads):
            self._lost(source, run[0] - 1)
            if not is_history:
                self._write(engine=source.engine, gap=[run[0], run[-1]], replayed=True)
            for seq in run:
                self._batch(source, seq, payloads[seq])
            source.early.update(run)
        self._lost(source, last)

    def _lost(self, source: _Source, last: int) -> None:
        if source.next_seq <= last:
            self._write(engine=source.engine, gap=[source.next_seq, last], replayed=False)
            source.next_seq = last + 1

    def _batch(self, source: _Source, seq: int, payload: bytes) -> None:
        source.next_seq = seq + 1
        batch = wire.decode(payload)
        if batch.error is not None:
            self._write(
                engine=source.engine, seq=seq, error=batch.error, raw=wire.raw_words(payload)
            )
            return
        self._write(engine=source.engine, seq=seq, rank=batch.rank, events=batch.events)

    def _replayed(self, source: _Source) -> dict[int, bytes]:
        """Ask for all batches from the next number on; what came until the end or a silence."""
        found: dict[int, bytes] = {}
        if source.replay is None or not source.can_replay:
            return found
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(_connectable(source.replay))
            request = source.next_seq.to_bytes(wire.SEQUENCE_BYTES, "big")
            socket.send_multipart([b"", request])
            deadline_s = clock.monotonic_s() + _ANSWER_LIMIT_S / 2
            while clock.monotonic_s() < deadline_s and socket.poll(_milliseconds(REPLAY_LIMIT_S)):
                frames = socket.recv_multipart()[-wire.FRAMES :]
                if len(frames) == wire.FRAMES and frames[1] == wire.END_OF_REPLAY:
                    source.silent_replays = 0
                    return found
                seq = wire.sequence_of(frames)
                if seq is not None and seq >= source.next_seq:
                    found[seq] = frames[2]
            source.silent_replays += 1
            return found
        finally:
            socket.close(linger=0)

    def _write(self, **fields: Any) -> None:
        assert self._file is not None
        self._file.write(self._encoder.encode({"time_s": clock.now_s(), **fields}) + b"\n")

    def _flush(self) -> None:
        assert self._file is not None
        self._file.flush()


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return the numbers in order, those that follow each other together."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _connectable(endpoint: str) -> str:
    """Return the address to connect to, of one that is written as it is bound."""
    return endpoint.replace("*", "127.0.0.1")


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)

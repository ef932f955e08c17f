"""The fake's process: start, engine cores with their companions, orderly end.

What a person or a harness sees of the process is vLLM's: an API server that listens late, a process
for each engine core, the lines of its log, and exit status 0 after SIGTERM. The trap it shows on
purpose: an engine core can end while the API server goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from contextlib import ExitStack
from functools import partial
from typing import Final

from kvbench import clock
from kvbench.engine.fake import about
from kvbench.engine.fake.companion import Companion, engine_name
from kvbench.engine.fake.control import CONTROL_VARIABLE, JOURNAL_VARIABLE, Control, Journal
from kvbench.engine.fake.core import EngineCore
from kvbench.engine.fake.faults import ActiveFaults, EngineDeath
from kvbench.engine.fake.generation import DEAD_MESSAGE
from kvbench.engine.fake.log import FIRST_LINE, FRONT, Log, write_raw
from kvbench.engine.fake.page import Page
from kvbench.engine.fake.server import Front
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.timings import Timings

_LAG_STEPS: Final = 5
_SHUTDOWN_LIMIT_S: Final = 0.05
"""open requests are cancelled, as vLLM does (mode=abort, timeout=0)"""
_BACKLOG: Final = 2048


def run(settings: FakeSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    import uvloop  # noqa: PLC0415 - what ends at its start needs no event loop

    log = Log(FRONT, os.getpid())
    write_raw(FIRST_LINE)
    about.log_front(log, settings)
    journal = Journal(os.environ.get(JOURNAL_VARIABLE))
    faults = ActiveFaults(journal.write)
    faults.start_with(settings.faults)
    control = Control(os.environ.get(CONTROL_VARIABLE), faults, journal.write)
    control.look()
    for fault in faults:
        fault.on_start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Server(settings, faults, control, log).serve())


class _Server:
    """One life of the process."""

    def __init__(
        self, settings: FakeSettings, faults: ActiveFaults, control: Control, log: Log
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._control = control
        self._log = log
        self._start_s = clock.now_s()
        self._companions: list[Companion] = []
        self._cores: list[EngineCore] = []
        self._front: Front | None = None

    async def serve(self) -> int:
        """Start, serve, and end in order; returns the exit status."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, stopped)
        with ExitStack() as open_things:
            for index in range(self._settings.engines):
                self._start_core(index, open_things)
            delay_s = max([fault.ready_delay_s() for fault in self._faults], default=0.0)
            if delay_s and await _is_set_within(stopped, delay_s):
                return 0
            tasks = [loop.create_task(core.run()) for core in self._cores]
            for index, task in enumerate(tasks):
                task.add_done_callback(partial(self._on_end, index))
            status = await self._serve(stopped)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return status

    def _start_core(self, index: int, open_things: ExitStack) -> None:
        settings = self._settings
        companion = Companion(engine_name(index, settings.engines))
        open_things.callback(companion.end)
        self._companions.append(companion)
        about.log_engine(Log(companion.name, companion.pid), settings)
        publish = None
        config = about.events_config(settings, index)
        if config is not None:
            from kvbench.engine.fake.publisher import Publisher  # noqa: PLC0415 - events are rare

            publisher = Publisher(
                index,
                self._faults,
                endpoint=config["endpoint"],
                replay_endpoint=config["replay_endpoint"],
                topic=config["topic"],
            )
            open_things.callback(publisher.close)
            publish = publisher.publish
        self._cores.append(EngineCore(index, settings, self._faults, publish))

    async def _serve(self, stopped: asyncio.Event) -> int:
        settings, loop = self._settings, asyncio.get_running_loop()
        timings = [Timings() for _ in self._cores]
        page = Page(settings, self._cores, timings, start_s=self._start_s)
        front = Front(settings, self._cores, self._faults, self._control, page, timings)
        self._front = front
        delay_s = max([fault.generation_delay_s() for fault in self._faults], default=0.0)
        front.refuse_until(clock.monotonic_s() + delay_s)
        handler = front.server()
        try:
            server = await loop.create_server(
                handler, settings.host, settings.port, backlog=_BACKLOG
            )
        except OSError as error:
            write_raw(f"Traceback (most recent call last):\nOSError: {_bind_words(error)}")
            return 1
        host, port = server.sockets[0].getsockname()[:2]
        self._log.write("INFO", "entry.py:140", f"Starting vLLM server on http://{host}:{port}")
        write_raw("INFO:     Application startup complete.")
        follower = loop.create_task(_follow(page, settings.counters_lag_s))
        await stopped.wait()
        follower.cancel()
        self._log.write("INFO", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        server.close()
        await handler.shutdown(_SHUTDOWN_LIMIT_S)
        write_raw("INFO:     Application shutdown complete.")
        return 0

    def _on_signal(self, stopped: asyncio.Event) -> None:
        if False not in [fault.on_stop() for fault in self._faults]:
            stopped.set()

    def _on_end(self, index: int, done: asyncio.Task[None]) -> None:
        """A core has ended by itself: its companion ends in the same way, and all requests fail."""
        error = None if done.cancelled() else done.exception()
        if error is None:
            return
        companion = self._companions[index]
        if isinstance(error, EngineDeath) and error.signal is not None:
            companion.kill()
            words = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            self._log.write("WARNING", "core_client.py:817", words)
        else:
            _log_death(Log(companion.name, companion.pid), error)
            companion.fail()
            lines = f"AsyncLLM output_handler failed.\n{_DEAD_LINE}".splitlines()
            self._log.write("ERROR", "async_llm.py:906", *lines)
        if self._front is not None:
            self._front.fail()
        for core in self._cores:
            if not core.is_dead:
                core.die(str(error))


_DEAD_LINE: Final = f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD_MESSAGE}"


def _log_death(log: Log, error: BaseException) -> None:
    """vLLM's lines for an exception in the engine core."""
    lines = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):"]
    for frame in traceback.format_tb(error.__traceback__):
        lines += frame.rstrip().splitlines()
    last = str(error) if isinstance(error, EngineDeath) else f"{type(error).__name__}: {error}"
    log.write("ERROR", "core.py:1512", *lines, last)


def _bind_words(error: OSError) -> str:
    """As Python words it in a server that binds its socket itself."""
    return f"[Errno {error.errno}] {os.strerror(error.errno or 0)}"


async def _is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), limit_s)
    except TimeoutError:
        return False
    return True


async def _follow(page: Page, lag_s: float) -> None:
    """Give a page that lags something to show."""
    while lag_s:
        page.remember(clock.now_s())
        await asyncio.sleep(lag_s / _LAG_STEPS)

"""The fake engine's front and cores in a thread: no process, no signals, quick to start."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvbench import clock
from kvbench.client import Client
from kvbench.engine.fake.control import Control, Journal
from kvbench.engine.fake.core import EngineCore
from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.page import Page
from kvbench.engine.fake.server import Front
from kvbench.engine.fake.settings import FakeSettings, FaultSetting
from kvbench.engine.fake.timings import Timings

LIMIT_S = 10.0


class FakeFront:
    """A running front; `url`, and what was journalled."""

    def __init__(self, settings: FakeSettings, folder: Path) -> None:
        self.settings = settings
        self.control = folder / "fault.json"
        self.journal = folder / "faults.jsonl"
        self.page: Page
        self.port = 0
        self.cores: list[EngineCore] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def switch(self, *faults: dict[str, Any]) -> None:
        """Replace the control file as the harness does."""
        temporary = self.control.with_suffix(".tmp")
        temporary.write_text(json.dumps({"faults": faults} if faults else {"mode": "none"}))
        temporary.replace(self.control)

    def applied(self) -> list[dict[str, Any]]:
        """The journal."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        journal = Journal(str(self.journal))
        faults = ActiveFaults(journal.write)
        faults.start_with(self.settings.faults)
        control = Control(str(self.control), faults, journal.write)
        self.cores = [
            EngineCore(index, self.settings, faults, None) for index in range(self.settings.engines)
        ]
        timings = [Timings() for _ in self.cores]
        self.page = Page(self.settings, self.cores, timings, start_s=clock.now_s())
        front = Front(self.settings, self.cores, faults, control, self.page, timings)
        handler = front.server()
        server = await self._loop.create_server(handler, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        tasks = [asyncio.create_task(core.run()) for core in self.cores]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        await handler.shutdown(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    @contextmanager
    def running(self) -> Iterator[FakeFront]:
        """Serve in a thread."""
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        thread.start()
        assert self._ready.wait(LIMIT_S), "the fake did not come up"
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stopped.set)
            thread.join(LIMIT_S)


@contextmanager
def front(folder: Path, *faults: FaultSetting, **settings: Any) -> Iterator[FakeFront]:
    """A front with these settings and faults that are on from the start."""
    with FakeFront(FakeSettings(faults=faults, **settings), folder).running() as running:
        yield running


@contextmanager
def client(running: FakeFront) -> Iterator[Client]:
    """kvbench's own client of it."""
    with Client(running.url, running.settings.model_id, LIMIT_S) as found:
        yield found

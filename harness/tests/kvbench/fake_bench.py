"""An engine core in a test: its step loop, requests, and what they hit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from kvbench.engine.fake.core import EngineCore
from kvbench.engine.fake.faults import ActiveFaults, EngineDeath
from kvbench.engine.fake.request import FakeRequest
from kvbench.engine.fake.settings import FakeGroup, FakeSettings, FaultSetting

FAST = {
    "prefill_tokens_per_s": 1e12,
    "decode_tokens_per_s": 1e12,
    "load_bytes_per_s": 1e18,
    "store_bytes_per_s": 1e18,
}
_NUMBERS = count()


def settings(**changes: Any) -> FakeSettings:
    """Settings of a fast engine."""
    return FakeSettings(**{**FAST, **changes})


def group(kind: str = "full_attention", block_tokens: int = 16, **more: Any) -> FakeGroup:
    return FakeGroup(kind=kind, block_tokens=block_tokens, **more)  # type: ignore[arg-type]


class Bench:
    """One core with its journal of faults and its KV events."""

    def __init__(
        self,
        config: FakeSettings,
        *,
        faults: Sequence[FaultSetting] = (),
        with_events: bool = False,
    ) -> None:
        self.journal: list[dict[str, Any]] = []
        self.faults = ActiveFaults(self.journal.append)
        self.faults.switch(list(faults))
        self.batches: list[list[dict[str, Any]]] = []
        on_events = self.batches.append if with_events else None
        self.core = EngineCore(0, config, self.faults, on_events)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for batch in self.batches for event in batch]

    def submit(self, prompt: Sequence[int], new_tokens: int = 1, **more: Any) -> FakeRequest:
        request_id = more.pop("request_id", f"r{next(_NUMBERS)}")
        request = FakeRequest(request_id, tuple(prompt), new_tokens, **more)
        self.core.submit(request)
        return request

    async def ask(self, prompt: Sequence[int], new_tokens: int = 1, **more: Any) -> FakeRequest:
        """One request, from an idle engine to an idle engine."""
        request = self.submit(prompt, new_tokens, **more)
        assert request.done is not None
        await request.done
        await self.settle()
        return request

    async def together(self, prompts: Sequence[Sequence[int]], **more: Any) -> list[FakeRequest]:
        """Requests at once."""
        requests = [self.submit(prompt, **more) for prompt in prompts]
        for request in requests:
            assert request.done is not None
            await request.done
        await self.settle()
        return requests

    async def settle(self) -> None:
        while not self.core.is_idle:
            await asyncio.sleep(0)

    def hits(self) -> tuple[float, float]:
        counters = self.core.counters
        return counters.local_hits, counters.external_hits


@asynccontextmanager
async def running(
    config: FakeSettings, *, faults: Sequence[FaultSetting] = (), with_events: bool = False
) -> AsyncIterator[Bench]:
    """A core that steps until the block ends."""
    bench = Bench(config, faults=faults, with_events=with_events)
    task = asyncio.create_task(bench.core.run())
    try:
        yield bench
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, EngineDeath):
            await task


def tokens(seed: int, length: int) -> tuple[int, ...]:
    """Distinct prompts for distinct seeds."""
    return tuple((seed * 7919 + i * 31 + (i * i) % 97) % 30_000 for i in range(length))


def ids(request: FakeRequest) -> list[int]:
    return [token.token_id for token in request.output]

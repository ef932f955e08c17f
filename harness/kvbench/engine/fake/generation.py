"""Generation in the front: hands requests to engine cores and sends what comes back.

A client that leaves ends its request. The trap it shows on purpose: an answer can be damaged, cut
or lost on its way out, though the engine has done its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from kvbench import clock
from kvbench.engine.fake.asked import Asked, RefusedError
from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.page import Page
from kvbench.engine.fake.reply import Reply
from kvbench.engine.fake.request import EngineDeadError, FakeRequest, TokenOut
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.timings import Timings

DEAD_MESSAGE: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DEAD_BODY: Final = {
    "error": {
        "message": DEAD_MESSAGE,
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
Response = web.StreamResponse
Read = Callable[[bytes, Mapping[str, str], FakeSettings], Asked]
_encode = msgspec.json.Encoder().encode


class Core(Protocol):
    """An engine core, as far as the front needs it."""

    @property
    def counters(self) -> Any:
        """Its `Counters`."""

    def submit(self, request: FakeRequest) -> asyncio.Future[None]:
        """Queue a request."""

    def abort(self, request_id: str) -> None:
        """End a request early."""

    def reset(self, *, external: bool) -> bool:
        """Clear the caches."""


def json_response(body: Any, status: int = 200) -> Response:
    """A whole body as JSON."""
    return web.Response(status=status, body=_encode(body), content_type="application/json")


class Generation:
    """Answers completions and chats."""

    def __init__(
        self,
        settings: FakeSettings,
        cores: Sequence[Core],
        faults: ActiveFaults,
        page: Page,
        timings: Sequence[Timings],
    ) -> None:
        self._settings = settings
        self._cores = cores
        self._faults = faults
        self._page = page
        self._timings = timings
        self._turn = 0
        self.is_dead = False
        """an engine core has ended"""
        self.from_s = 0.0
        """monotonic time before which it refuses to generate"""

    async def answer(self, request: web.BaseRequest, read: Read) -> Response:
        """Answer one request; raises RefusedError and EngineDeadError."""
        begin_s = clock.monotonic_s()
        if begin_s < self.from_s:
            raise RefusedError("the engine is starting", status=503, kind="ServiceUnavailable")
        asked = read(await request.read(), request.headers, self._settings)
        if self.is_dead:
            raise EngineDeadError(DEAD_MESSAGE)
        engine = self._least_loaded() if asked.rank is None else asked.rank
        arrivals = _Arrivals(is_streamed=asked.is_streamed)
        asked.request.on_token = arrivals
        core = self._cores[engine]
        try:
            done = core.submit(asked.request)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        try:
            if asked.is_streamed:
                done.add_done_callback(arrivals.wake)
                response = await self._stream(request, asked, done, arrivals)
            else:
                await done
                response = self._whole(request, asked)
        except (asyncio.CancelledError, ConnectionError):
            core.abort(asked.request.request_id)
            raise
        if done.done() and asked.request.output:
            self._timings[engine].observe(
                begin_s, arrivals.first_s, clock.monotonic_s(), len(asked.request.output)
            )
        return response

    def _least_loaded(self) -> int:
        """The engine with the fewest requests; equal ones in turn."""
        count = len(self._cores)
        if count == 1:
            return 0
        self._turn += 1
        order = [(self._turn + place) % count for place in range(count)]
        loads = [core.counters.running + core.counters.waiting for core in self._cores]
        return min(order, key=loads.__getitem__)

    def _whole(self, request: web.BaseRequest, asked: Asked) -> Response:
        reply = Reply(asked, self._settings.model_id, self._settings.generation)
        body = self._damaged(asked, reply.whole())
        self._count_restarts(asked)
        if not body:
            return _hang_up(request)
        return json_response(body)

    async def _stream(
        self,
        request: web.BaseRequest,
        asked: Asked,
        done: asyncio.Future[None],
        arrivals: _Arrivals,
    ) -> Response:
        assert arrivals.has_more is not None
        reply = Reply(asked, self._settings.model_id, self._settings.generation)
        stream = _Stream(request)
        waiting = [opening] if (opening := reply.opening()) is not None else []
        while True:
            await arrivals.has_more.wait()
            arrivals.has_more.clear()
            is_last = done.done()
            if is_last and done.exception() is not None:
                if not stream.is_open:
                    raise EngineDeadError(DEAD_MESSAGE)
                return await stream.end(DEAD_BODY)
            tokens, arrivals.tokens = arrivals.tokens, []
            finish = asked.request.finish_reason if is_last else None
            waiting.append(reply.chunk(tokens, finish))
            if is_last and (closing := reply.closing()) is not None:
                waiting.append(closing)
            for body in waiting:
                damaged = self._damaged(asked, body)
                if not damaged:
                    return await self._cut(asked, done, stream)
                await stream.send(damaged)
            waiting = []
            if is_last:
                self._count_restarts(asked)
                return await stream.end()

    async def _cut(self, asked: Asked, done: asyncio.Future[None], stream: _Stream) -> Response:
        """End an answer where a fault wants it; the engine finishes it all the same."""
        await asyncio.wait([done])
        self._count_restarts(asked)
        return await stream.cut()

    def _damaged(self, asked: Asked, body: dict[str, Any]) -> dict[str, Any]:
        for fault in self._faults if self._faults else ():
            if body:
                body = fault.on_answer(asked.request.request_id, body)
        return body

    def _count_restarts(self, asked: Asked) -> None:
        name = asked.request.request_id
        if self._faults and True in [fault.restarts_counters(name) for fault in self._faults]:
            self._page.start_anew(clock.now_s())


class _Arrivals:
    """The tokens of an answer as they come, and when the first one came."""

    __slots__ = ("first_s", "has_more", "tokens")

    def __init__(self, *, is_streamed: bool) -> None:
        self.first_s = 0.0
        self.tokens: list[TokenOut] = []
        self.has_more = asyncio.Event() if is_streamed else None

    def __call__(self, token: TokenOut) -> None:
        if not self.first_s:
            self.first_s = clock.monotonic_s()
        if self.has_more is not None:
            self.tokens.append(token)
            self.has_more.set()

    def wake(self, _: object) -> None:
        """The answer has ended, or failed."""
        if self.has_more is not None:
            self.has_more.set()


class _Stream:
    """An answer in pieces (server-sent events); it opens with the first one."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything was sent."""
        return self._response is not None

    async def send(self, body: dict[str, Any]) -> web.StreamResponse:
        """Send one event."""
        return await self._write(b"data: " + _encode(body) + b"\n\n")

    async def _write(self, data: bytes) -> web.StreamResponse:
        if self._response is None:
            headers = {"Content-Type": "text/event-stream; charset=utf-8"}
            self._response = web.StreamResponse(headers=headers)
            await self._response.prepare(self._request)
        await self._response.write(data)
        return self._response

    async def end(self, error: dict[str, Any] | None = None) -> Response:
        """Close the stream in order, after an error if there is one."""
        if error is not None:
            await self.send(error)
        response = await self._write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def cut(self) -> Response:
        """Close the stream without its end; without a beginning, close the connection."""
        if self._response is None:
            return _hang_up(self._request)
        await self._response.write_eof()
        return self._response


def _hang_up(request: web.BaseRequest) -> Response:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

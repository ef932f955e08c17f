"""The HTTP side of the client: a loop of its own, a time limit on every call, no generation twice.

The traps: some of vLLM's development endpoints hang for ever; a misspelt query parameter is
answered with `success: true`; a repeated generation would change the caches that are being
measured; and a proxy from the environment must not stand between kvbench and its own machine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import aiohttp

from kvbench import clock
from kvbench.client.answers import Answer, Completion, RawAnswer, parse
from kvbench.errors import EngineError

RESET_PATH: Final = "/reset_prefix_cache"
RESET_EXTERNAL_QUERY: Final = "reset_external=true"
SERVER_INFO_PATH: Final = "/server_info?config_format=json"

CALL_LIMIT_S: Final = 10.0
SERVER_INFO_LIMIT_S: Final = 60.0
"""vLLM collects facts about the machine at the first call"""
RESET_LIMIT_S: Final = 30.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.25
_HANDOVER_S: Final = 5.0

_T = TypeVar("_T")


class Watch(Protocol):
    """Something that looks at a server while answers are waited for."""

    pause_s: float

    def look(self) -> None:
        """Look once; an error that it raises ends the wait and cancels the requests."""


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """One answer to a reset; `success` is None when the body did not say."""

    http_status: int | None
    body: str
    success: bool | None


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int | None
    """None: no answer; `text` then says why"""
    text: str


class Client:
    """A client of one server; safe to use from several threads. Close it, or use it in `with`."""

    def __init__(
        self, url: str, model_id: str, request_limit_s: float, *, api_key: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.model_id = model_id
        self.request_limit_s = request_limit_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kvbench-client", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open connections; requests under way are cancelled. May be called again."""
        if not self._thread.is_alive():
            return
        self._run(self._close_session(), _HANDOVER_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def complete(
        self,
        prompt: Sequence[int],
        *,
        request_id: str,
        new_tokens: int,
        top_logprobs: int,
        data_parallel_rank: int | None = None,
        limit_s: float | None = None,
    ) -> Answer:
        """Send one prompt of token ids and wait for the whole answer.

        A failed request is an answer with an `error`; it is never sent again. `limit_s` replaces
        the client's own limit.
        """
        request = Completion(
            prompt=prompt,
            request_id=request_id,
            new_tokens=new_tokens,
            top_logprobs=top_logprobs,
            data_parallel_rank=data_parallel_rank,
        )
        return self.complete_many([request], concurrency=1, limit_s=limit_s)[0]

    def complete_many(
        self,
        requests: Sequence[Completion],
        concurrency: int,
        *,
        limit_s: float | None = None,
        watch: Watch | None = None,
    ) -> list[Answer]:
        """Send a wave, at most `concurrency` at a time; answers come in the order of `requests`.

        Each request has the limit of one request. An interrupt cancels what is under way, and the
        server aborts it; so does an error that `watch` raises, which is called while answers are
        waited for.
        """
        each_s = self.request_limit_s if limit_s is None else limit_s
        whole_s = each_s * len(requests) + _HANDOVER_S
        raws = self._run(self._wave(requests, concurrency, each_s), whole_s, watch)
        return [parse(raw, request) for raw, request in zip(raws, requests, strict=True)]

    def reset_prefix_cache(self, *, external: bool) -> ResetAnswer:
        """Ask once for a reset of the device's prefix cache, and of the connector's if `external`.

        What the answer says is not yet true: some connectors keep everything and say success.
        """
        path = f"{RESET_PATH}?{RESET_EXTERNAL_QUERY}" if external else RESET_PATH
        reply = self._call("POST", path, RESET_LIMIT_S)
        success = None
        if reply.status == 200:
            body = _json_object(reply.text)
            said = body.get("success") if body else None
            success = said if isinstance(said, bool) else None
        return ResetAnswer(http_status=reply.status, body=reply.text, success=success)

    def reset_until(self, *, external: bool, limit_s: float) -> list[ResetAnswer]:
        """Ask again while the server refuses (blocks are still held), for at most `limit_s`.

        Returns all answers in order. Only a plain `success: false` is asked again; anything else is
        an answer that stays.
        """
        deadline_s = clock.monotonic_s() + limit_s
        answers = [self.reset_prefix_cache(external=external)]
        while answers[-1].success is False and clock.monotonic_s() < deadline_s:
            clock.sleep_s(_PAUSE_S)
            answers.append(self.reset_prefix_cache(external=external))
        return answers

    def metrics_page(self) -> str:
        """Fetch `/metrics`; raises EngineError when it cannot be had."""
        reply = self._get_again("/metrics", CALL_LIMIT_S)
        if reply.status != 200:
            raise EngineError(f"{self.url}/metrics: {_reply_text(reply)}")
        return reply.text

    def health(self) -> bool:
        """Tell whether `/health` answers 200; one try."""
        return self._call("GET", "/health", CALL_LIMIT_S).status == 200

    def server_info(self, *, limit_s: float = SERVER_INFO_LIMIT_S) -> dict[str, Any] | None:
        """Fetch vLLM's whole configuration; None without development mode or in time."""
        reply = self._call("GET", SERVER_INFO_PATH, limit_s)
        return _json_object(reply.text) if reply.status == 200 else None

    def version(self) -> str | None:
        """Fetch vLLM's version; None when the server does not say."""
        reply = self._get_again("/version", CALL_LIMIT_S)
        body = _json_object(reply.text) if reply.status == 200 else None
        version = body.get("version") if body else None
        return version if isinstance(version, str) else None

    def models(self) -> list[dict[str, Any]]:
        """Fetch the served models (`id`, `root`, `max_model_len`); raises EngineError."""
        reply = self._get_again("/v1/models", CALL_LIMIT_S)
        body = _json_object(reply.text) if reply.status == 200 else None
        data = body.get("data") if body else None
        if not isinstance(data, list):
            raise EngineError(f"{self.url}/v1/models: {_reply_text(reply)}")
        return data

    def _get_again(self, path: str, limit_s: float) -> _Reply:
        """Read a page, again when there was no answer; reading changes nothing on the server."""
        for _ in range(_TRIES - 1):
            reply = self._call("GET", path, limit_s)
            if reply.status is not None:
                return reply
            clock.sleep_s(_PAUSE_S)
        return self._call("GET", path, limit_s)

    def _call(self, method: str, path: str, limit_s: float) -> _Reply:
        return self._run(self._fetch(method, path, limit_s), limit_s + _HANDOVER_S)

    def _run(self, work: Coroutine[Any, Any, _T], limit_s: float, watch: Watch | None = None) -> _T:
        """Run `work` on the loop's thread; whatever interrupts the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        deadline_s = clock.monotonic_s() + limit_s
        try:
            while True:
                left_s = max(deadline_s - clock.monotonic_s(), 0.0)
                pause_s = left_s if watch is None else min(watch.pause_s, left_s)
                done, _ = concurrent.futures.wait([future], timeout=pause_s)
                if done:
                    return future.result()
                if clock.monotonic_s() >= deadline_s:
                    raise EngineError(f"{self.url}: no end of a call after {limit_s:.0f} s")
                if watch is not None:
                    watch.look()
        finally:
            future.cancel()

    async def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A connection for each request: one that idled can be closed by the server just when a
            # request is written to it, and that request must not be sent again.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, read_bufsize=1 << 20
            )
        return self._session

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _fetch(self, method: str, path: str, limit_s: float) -> _Reply:
        session = await self._open()
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with session.request(method, self.url + path, timeout=timeout) as response:
                return _Reply(response.status, await response.text(errors="replace"))
        except TimeoutError:
            return _Reply(None, f"no answer within {limit_s:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return _Reply(None, f"{type(error).__name__}: {error}")

    async def _wave(
        self, requests: Sequence[Completion], concurrency: int, limit_s: float
    ) -> list[RawAnswer]:
        places = asyncio.Semaphore(concurrency)

        async def one(request: Completion) -> RawAnswer:
            async with places:
                return await self._generate(request, limit_s)

        return list(await asyncio.gather(*(one(request) for request in requests)))

    async def _generate(self, request: Completion, limit_s: float) -> RawAnswer:
        session = await self._open()
        url = f"{self.url}/v1/completions"
        body = request.body(self.model_id)
        timeout = aiohttp.ClientTimeout(total=limit_s)
        raw = RawAnswer(sent_s=clock.now_s(), begin_s=clock.monotonic_s(), pieces=[])
        assert raw.pieces is not None
        try:
            async with session.post(
                url, json=body, headers=request.headers(), timeout=timeout
            ) as response:
                raw.http_status = response.status
                async for piece in response.content.iter_any():
                    raw.pieces.append((clock.monotonic_s(), piece))
        except TimeoutError:
            raw.failure = ("timeout", f"no complete answer within {limit_s:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            raw.failure = ("connection", f"{type(error).__name__}: {error}")
        raw.end_s = clock.monotonic_s()
        return raw


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _reply_text(reply: _Reply) -> str:
    return reply.text if reply.status is None else f"HTTP {reply.status}: {reply.text[:200]}"

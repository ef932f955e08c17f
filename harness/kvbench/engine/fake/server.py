"""The HTTP front: vLLM's endpoints as kvbench uses them, over one or several engine cores.

The low-level server of aiohttp, without routing and middleware, because the fake must not be what
limits a test. The trap it shows on purpose: the front lives on when the engine behind it is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from kvbench import clock
from kvbench.engine.fake import about, tokenizer
from kvbench.engine.fake.asked import RefusedError, TokenizeBody, read_chat, read_completion
from kvbench.engine.fake.control import Control
from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.generation import (
    DEAD_BODY,
    DEAD_MESSAGE,
    Core,
    Generation,
    Read,
    Response,
    json_response,
)
from kvbench.engine.fake.page import CONTENT_TYPE, Page
from kvbench.engine.fake.reply import VERSIONS
from kvbench.engine.fake.request import EngineDeadError
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.timings import Timings

_BODY_LIMIT_BYTES: Final = 256 << 20
_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})


class Front:
    """Answers requests; `fail` is for the process, when an engine core has ended."""

    def __init__(
        self,
        settings: FakeSettings,
        cores: Sequence[Core],
        faults: ActiveFaults,
        control: Control,
        page: Page,
        timings: Sequence[Timings],
    ) -> None:
        self._settings = settings
        self._cores = cores
        self._faults = faults
        self._control = control
        self._page = page
        self._generation = Generation(settings, cores, faults, page, timings)
        self._loop = asyncio.get_running_loop()
        self._reset_tries = 0
        self._routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[Response]]] = {
            ("POST", "/v1/completions"): lambda r: self._generate(r, read_completion),
            ("POST", "/v1/chat/completions"): lambda r: self._generate(r, read_chat),
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/version"): self._version,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/kv_event_sources"): self._event_sources,
        }

    def server(self) -> web.Server:
        """A protocol factory for `loop.create_server`."""

        def make(message: Any, body: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            return web.BaseRequest(
                message, body, protocol, writer, task, self._loop, client_max_size=_BODY_LIMIT_BYTES
            )

        return web.Server(
            self._handle, request_factory=make, handler_cancellation=True, access_log=None
        )

    def fail(self) -> None:
        """Refuse everything that needs an engine from here on."""
        self._generation.is_dead = True

    def refuse_until(self, monotonic_s: float) -> None:
        """Answer 503 instead of generating until then."""
        self._generation.from_s = monotonic_s

    async def _handle(self, request: web.BaseRequest) -> Response:
        route = self._routes.get((request.method, request.path))
        if route is None:
            return json_response({"detail": "Not Found"}, 404)
        try:
            return await route(request)
        except RefusedError as error:
            return json_response(error.body, error.status)
        except EngineDeadError:
            return json_response(DEAD_BODY, 500)

    async def _generate(self, request: web.BaseRequest, read: Read) -> Response:
        self._control.look()
        return await self._generation.answer(request, read)

    async def _metrics(self, _: web.BaseRequest) -> Response:
        self._control.look()
        page = self._page.render(clock.now_s())
        for fault in self._faults:
            page = fault.on_page(page)
        return web.Response(text=page, headers={"Content-Type": CONTENT_TYPE})

    async def _reset(self, request: web.BaseRequest) -> Response:
        self._control.look()
        if not self._settings.dev_mode:
            return json_response({"detail": "Not Found"}, 404)
        if self._generation.is_dead:
            raise EngineDeadError(DEAD_MESSAGE)
        self._reset_tries += 1
        answers = [fault.on_reset_answer(self._reset_tries) for fault in self._faults]
        said = next((answer for answer in answers if answer is not None), None)
        if said is not None and said[1]:
            return web.Response(status=said[0], text=said[1], content_type="application/json")
        external = request.query.get("reset_external", "").lower() in _TRUE
        success = False not in [core.reset(external=external) for core in self._cores]
        if success:
            self._reset_tries = 0
        return json_response({"success": success}) if said is None else web.Response(status=said[0])

    async def _tokenize(self, request: web.BaseRequest) -> Response:
        try:
            body = msgspec.json.decode(await request.read(), type=TokenizeBody)
        except msgspec.DecodeError as error:
            raise RefusedError(str(error)) from error
        tokens = tokenizer.encode(body.text(), self._settings.vocabulary_tokens)
        limit = self._settings.max_model_len_tokens
        found = {"count": len(tokens), "max_model_len": limit, "tokens": tokens}
        return json_response({**found, "token_strs": None})

    async def _health(self, _: web.BaseRequest) -> Response:
        return web.Response()

    async def _models(self, _: web.BaseRequest) -> Response:
        return json_response(about.models(self._settings))

    async def _version(self, _: web.BaseRequest) -> Response:
        return json_response({"version": VERSIONS[self._settings.generation]})

    async def _server_info(self, _: web.BaseRequest) -> Response:
        if not self._settings.dev_mode:
            return json_response({"detail": "Not Found"}, 404)
        return json_response(about.server_info(self._settings))

    async def _event_sources(self, _: web.BaseRequest) -> Response:
        found = {}
        for engine in range(len(self._cores)):
            if (config := about.events_config(self._settings, engine)) is not None:
                found[str(engine)] = config
        return json_response(found)

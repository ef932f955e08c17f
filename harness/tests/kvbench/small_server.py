"""An HTTP server in a thread, whose answers a test writes down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class SmallServer:
    """`routes` maps `GET /path` (with its query) to a function that answers on the handler."""

    routes: dict[str, Callable[[Handler], None]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    port: int = 0


class Handler(BaseHTTPRequestHandler):
    small: SmallServer

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        seen = Seen(self.command, self.path, dict(self.headers), self.body)
        self.small.seen.append(seen)
        answer = self.small.routes.get(f"{self.command} {self.path}", not_found)
        answer(self)

    do_GET = do_POST = _any  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def give(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, *chunks: bytes) -> None:
        """Answer without a length: the body ends where the connection does."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(chunk)
            self.wfile.flush()


def not_found(handler: Handler) -> None:
    handler.give(404, b'{"detail":"Not Found"}')


def text(body: str, status: int = 200) -> Callable[[Handler], None]:
    return lambda handler: handler.give(status, body.encode())


def in_turn(*answers: Callable[[Handler], None]) -> Callable[[Handler], None]:
    """Each answer once, and the last one for ever."""
    left = list(answers)

    def answer(handler: Handler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@contextmanager
def serving() -> Iterator[SmallServer]:
    small = SmallServer()

    class Bound(Handler):
        pass

    Bound.small = small
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    small.port = server.server_address[1]
    small.url = f"http://127.0.0.1:{small.port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield small
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

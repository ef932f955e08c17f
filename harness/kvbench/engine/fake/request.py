"""A request inside the fake engine, and what comes out of it. The border of surface and core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenOut:
    """One generated position; log-probabilities in nats, None where a fault lost them."""

    token_id: int
    logprob: float | None
    top: list[tuple[int, float | None]]
    """the k best, best first; empty where none were asked for"""


@dataclass(slots=True)
class FakeRequest:
    """What the surface hands to an engine core, and what the core fills in."""

    request_id: str
    prompt: tuple[int, ...]
    new_tokens: int
    top: int = 0
    """log-probabilities per position; 0: none"""
    salt: str = ""
    on_token: Callable[[TokenOut], None] | None = None
    """called in the event loop as each token comes (streaming)"""
    cached_tokens: int = 0
    """local + external hit tokens; set before the first token"""
    output: list[TokenOut] = field(default_factory=list)
    finish_reason: str = "length"
    done: asyncio.Future[None] | None = None
    """set by `submit`; fails with EngineDeadError when the core dies"""


class EngineDeadError(Exception):
    """The core behind the front has died; its message is what the front answers."""

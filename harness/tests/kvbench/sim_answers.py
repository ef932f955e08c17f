"""What a simulated engine answers, and the ways in which a test can change an answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kvbench.events import Event, Role, Token

TOP = 20


@dataclass
class Sent:
    """One request of the simulation, before it is counted and filed; tests change it."""

    life: str
    stage: str
    arm: str
    window: str
    phase: str
    kind: str
    run: int
    concurrency: int
    prompt_id: str
    role: Role
    wave: int
    prompt_tokens: int
    new_tokens: int
    local: int
    external: int
    tokens: list[Token]
    cached: int | None = None
    """None: local + external"""
    engine: str = "0"
    error: str | None = None
    error_kind: str | None = None
    http_status: int = 200
    finish_reason: str | None = "length"
    counted_local: int | None = None
    counted_external: int | None = None
    counted_queries: int | None = None
    preemptions: int = 0

    @property
    def name(self) -> str:
        """Prompt id without its stage."""
        return self.prompt_id.rpartition("/")[2]


OnRequest = Callable[[Sent], None]
OnEvent = Callable[[Event], Event | None]


def keep(event: Event) -> Event:
    """An `on_event` that changes nothing."""
    return event


def leave(sent: Sent) -> None:
    """An `on_request` that changes nothing."""


@cache
def answer(prompt_id: str, new_tokens: int, salt: int = 0) -> tuple[Token, ...]:
    """What the engine says to a prompt: tokens with spread-out log-probabilities."""
    rng = random.Random(f"{prompt_id}/{salt}")
    tokens = []
    for _ in range(new_tokens):
        ids = rng.sample(range(1000), TOP)
        values = sorted((-rng.uniform(0.5, 6.0) for _ in ids), reverse=True)
        top = {str(name): value for name, value in zip(ids, values, strict=True)}
        tokens.append(Token(token_id=ids[0], logprob=values[0], top=dict(top)))
    return tuple(tokens)


def with_noise(tokens: list[Token], size: float, seed: object) -> list[Token]:
    """The same tokens, each log-probability moved by up to `size` nats."""
    rng = random.Random(str(seed))
    moved = []
    for token in tokens:
        top = {
            name: None if value is None else value + rng.uniform(-size, size)
            for name, value in token.top.items()
        }
        moved.append(Token(token_id=token.token_id, logprob=top[str(token.token_id)], top=top))
    return moved


def change_one(tokens: list[Token], position: int, by: float) -> list[Token]:
    """One log-probability of one position moved; same tokens."""
    changed = list(tokens)
    old = changed[position]
    name = str(old.token_id)
    top = {**old.top, name: (old.top[name] or 0.0) + by}
    changed[position] = Token(token_id=old.token_id, logprob=top[name], top=top)
    return changed


def flip(tokens: list[Token], position: int) -> list[Token]:
    """From `position` on other tokens, as after a real divergence."""
    other = answer(f"flip/{tokens[position].token_id}", len(tokens), 1)
    second = list(tokens[position].top)[1]
    first = Token(
        token_id=int(second),
        logprob=tokens[position].top[second],
        top=tokens[position].top,
    )
    return [*tokens[:position], first, *other[position + 1 :]]

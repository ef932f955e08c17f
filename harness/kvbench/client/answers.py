"""Turns the streamed bytes of one completion into an answer with token ids and log-probabilities.

The traps: a stream can end early and look complete, NaN in a KV block comes as `null` inside a
stream and as HTTP 400 "Out of range float values" outside one (corruption, not a client error), and
a server may repeat another prompt than the one that was sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from kvbench.events import Token

ErrorKind = Literal["nan", "timeout", "connection", "http", "truncated", "prompt"]

NAN_MESSAGE: Final = "Out of range float values"
TOKEN_ID_PREFIX: Final = "token_id:"  # noqa: S105 - what vLLM writes before an id
_BODY_LIMIT_CHARACTERS: Final = 500
_DATA = b"data:"


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion to ask for; `prompt` is token ids."""

    prompt: Sequence[int]
    request_id: str
    new_tokens: int
    top_logprobs: int
    """0: the answer is not scored, so no log-probabilities are asked for"""
    data_parallel_rank: int | None = None
    """engine that must answer (X-data-parallel-rank); None: the server chooses"""

    def body(self, model_id: str) -> dict[str, Any]:
        """Build the JSON that is sent: greedy, streamed, exactly `new_tokens` tokens."""
        body: dict[str, Any] = {
            "model": model_id,
            "prompt": list(self.prompt),
            "max_tokens": self.new_tokens,
            "temperature": 0,
            "seed": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if self.top_logprobs > 0:
            body |= {"logprobs": self.top_logprobs, "return_tokens_as_token_ids": True}
        return body

    def headers(self) -> dict[str, str]:
        """Build the headers of this request."""
        headers = {"X-Request-Id": self.request_id}
        if self.data_parallel_rank is not None:
            headers["X-data-parallel-rank"] = str(self.data_parallel_rank)
        return headers


@dataclass(slots=True)
class RawAnswer:
    """What came over the wire, with the time of each piece; parsed after the load has ended."""

    sent_s: float
    begin_s: float
    end_s: float = 0.0
    http_status: int | None = None
    failure: tuple[ErrorKind, str] | None = None
    pieces: list[tuple[float, bytes]] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered or failed request; the fields are those of `events.RequestDone`.

    Values that the server did not give are None. `error` is None only when the answer is complete:
    as many tokens as asked for, each with finite log-probabilities where they were asked for.
    """

    request_id: str
    sent_s: float
    ttft_s: float | None
    latency_s: float
    http_status: int | None
    error: str | None
    error_kind: ErrorKind | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    tokens: tuple[Token, ...]


@dataclass(slots=True)
class _Stream:
    """What the events of a stream have said so far."""

    tokens: list[Token]
    first_token_s: float | None = None
    done: bool = False
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    echoed: list[int] | None = None
    error: str | None = None


def parse(raw: RawAnswer, request: Completion) -> Answer:
    """Judge whether the answer is complete, and take it apart."""
    stream = _Stream(tokens=[])
    body = b"".join(piece for _, piece in raw.pieces or ())
    if raw.http_status == 200:
        _read_stream(raw.pieces or [], stream)
    failure = raw.failure or refusal(raw.http_status, body) or _defect(stream, request)
    usage = stream.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        request_id=request.request_id,
        sent_s=raw.sent_s,
        ttft_s=None if stream.first_token_s is None else stream.first_token_s - raw.begin_s,
        latency_s=raw.end_s - raw.begin_s,
        http_status=raw.http_status,
        error=failure[1] if failure else None,
        error_kind=failure[0] if failure else None,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        finish_reason=stream.finish_reason,
        tokens=tuple(stream.tokens),
    )


def refusal(status: int | None, body: bytes) -> tuple[ErrorKind, str] | None:
    """Name what an answer without HTTP 200 says; None for 200."""
    if status == 200:
        return None
    text = body.decode(errors="replace")
    kind: ErrorKind = "nan" if NAN_MESSAGE in text else "http"
    return kind, f"HTTP {status}: {text[:_BODY_LIMIT_CHARACTERS]}"


def _read_stream(pieces: list[tuple[float, bytes]], stream: _Stream) -> None:
    unread = b""
    for time_s, piece in pieces:
        *lines, unread = (unread + piece).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                _read_event(line[len(_DATA) :].strip(), time_s, stream)


def _read_event(data: bytes, time_s: float, stream: _Stream) -> None:
    if data == b"[DONE]":
        stream.done = True
        return
    event = decode_object(data)
    if event is None or "error" in event:
        stream.error = stream.error or data.decode(errors="replace")[:_BODY_LIMIT_CHARACTERS]
        return
    stream.usage = event.get("usage") or stream.usage
    for choice in event.get("choices") or ():
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
        if choice.get("prompt_token_ids") is not None and stream.echoed is None:
            stream.echoed = choice["prompt_token_ids"]
        tokens = tokens_of(choice)
        if tokens and stream.first_token_s is None:
            stream.first_token_s = time_s
        stream.tokens.extend(tokens)


def decode_object(data: bytes) -> dict[str, Any] | None:
    """Decode one event; Python's own decoder also takes the word NaN, which is not JSON."""
    try:
        event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        try:
            event = json.loads(data)
        except ValueError:
            return None
    return event if isinstance(event, dict) else None


def tokens_of(choice: dict[str, Any]) -> list[Token]:
    """Read the positions of one choice, of a stream or of a whole answer."""
    logprobs = choice.get("logprobs") or {}
    names = logprobs.get("tokens") or []
    values = logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or []
    ids = choice.get("token_ids")
    if ids is None:
        ids = [_token_id(name) for name in names]
    return [
        Token(
            token_id=token_id,
            logprob=values[place] if place < len(values) else None,
            top=_top(tops[place] if place < len(tops) else None),
        )
        for place, token_id in enumerate(ids)
    ]


def _top(entries: dict[str, float | None] | None) -> dict[str, float | None]:
    return {name.removeprefix(TOKEN_ID_PREFIX): value for name, value in (entries or {}).items()}


def _token_id(name: str) -> int:
    """Read `token_id:123`; -1 for a server that answers with text in spite of the request."""
    number = name.removeprefix(TOKEN_ID_PREFIX)
    return int(number) if number.isdigit() else -1


def _defect(stream: _Stream, request: Completion) -> tuple[ErrorKind, str] | None:
    """Name what makes an HTTP 200 unusable."""
    if stream.error is not None:
        return ("nan" if NAN_MESSAGE in stream.error else "http"), stream.error
    count = len(stream.tokens)
    if not stream.done:
        return "truncated", f"the stream ended after {count} tokens without [DONE]"
    if count < request.new_tokens:
        return "truncated", f"{count} of {request.new_tokens} tokens ({stream.finish_reason})"
    if stream.echoed is not None and stream.echoed != list(request.prompt):
        return "prompt", f"the server answered another prompt ({len(stream.echoed)} tokens)"
    if request.top_logprobs > 0:
        return bad_logprobs(stream.tokens, request.top_logprobs)
    return None


def bad_logprobs(tokens: list[Token], wanted: int) -> tuple[ErrorKind, str] | None:
    """Find a missing or infinite value, or none: that is what NaN in the cache looks like."""
    for place, token in enumerate(tokens):
        if token.token_id < 0:
            return "http", f"position {place}: the server gave no token id"
        if not _is_finite(token.logprob):
            return "nan", f"position {place}: log-probability of the token is {token.logprob}"
        bad = [name for name, value in token.top.items() if not _is_finite(value)]
        if bad:
            return "nan", f"position {place}: log-probability of token {bad[0]} is not finite"
        if len(token.top) < wanted:
            return "nan", f"position {place}: {len(token.top)} of {wanted} log-probabilities"
    return None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

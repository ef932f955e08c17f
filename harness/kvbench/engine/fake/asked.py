"""What a client asks for: vLLM's request bodies, checked and turned into a request of the core.

The subset that kvbench, lm-eval and AIPerf use; every other field is taken and has no effect. The
fake has no end token, so `ignore_eos` and `stop` change nothing: an answer ends at its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

import msgspec

from kvbench.engine.fake import tokenizer
from kvbench.engine.fake.request import FakeRequest
from kvbench.engine.fake.settings import FakeSettings

REQUEST_ID_HEADER: Final = "X-Request-Id"
RANK_HEADER: Final = "X-data-parallel-rank"
MOST_LOGPROBS: Final = 20
_DEFAULT_NEW_TOKENS: Final = 16
"""of /v1/completions; a chat may use all that is left"""


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind, "param": param or None, "code": status}
        }


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of either endpoint."""

    include_usage: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both endpoints."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    cache_salt: str | None = None
    n: int | None = 1


class CompletionBody(Body, frozen=True, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation; parts of another type than text are left out."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """Its whole text."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class ChatBody(Body, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None


class TokenizeBody(msgspec.Struct, frozen=True):
    """Body of /tokenize, in either of its forms."""

    prompt: str | None = None
    messages: list[Message] | None = None

    def text(self) -> str:
        """What is to be taken apart."""
        if self.messages is not None:
            return tokenizer.render_chat([(each.role, each.text()) for each in self.messages])
        return self.prompt or ""


@dataclass(slots=True)
class Asked:
    """One request, and the form that its answer must have."""

    request: FakeRequest
    is_chat: bool
    prompt: tuple[int, ...]
    """as it came; a fault may give the core another one"""
    is_streamed: bool
    has_usage: bool
    has_ids: bool
    names_are_ids: bool
    top: int | None
    """log-probabilities per position; None: none at all; 0: only that of the token"""
    rank: int | None


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)


def read_completion(data: bytes, headers: Mapping[str, str], settings: FakeSettings) -> Asked:
    """Read a request for /v1/completions; raises RefusedError."""
    try:
        body = _COMPLETION.decode(data)
    except msgspec.DecodeError as error:
        raise RefusedError(str(error)) from error
    prompt = _prompt(body, settings)
    wanted = _DEFAULT_NEW_TOKENS if body.max_tokens is None else body.max_tokens
    return _asked(body, headers, settings, prompt, new_tokens=wanted, top=body.logprobs)


def read_chat(data: bytes, headers: Mapping[str, str], settings: FakeSettings) -> Asked:
    """Read a request for /v1/chat/completions; raises RefusedError."""
    try:
        body = _CHAT.decode(data)
    except msgspec.DecodeError as error:
        raise RefusedError(str(error)) from error
    text = tokenizer.render_chat([(each.role, each.text()) for each in body.messages])
    prompt = tuple(tokenizer.encode(text, settings.vocabulary_tokens))
    left = max(settings.max_model_len_tokens - len(prompt), 1)
    wanted = body.max_completion_tokens or body.max_tokens or left
    top = (body.top_logprobs or 0) if body.logprobs else None
    return _asked(body, headers, settings, prompt, new_tokens=wanted, top=top)


def _prompt(body: CompletionBody, settings: FakeSettings) -> tuple[int, ...]:
    """The one prompt of a body; lists of prompts are only taken with one element."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt, settings.vocabulary_tokens))
    if set(map(type, prompt)) - {int}:
        raise RefusedError("the fake engine takes one prompt a request", param="prompt")
    if prompt and not 0 <= min(prompt) <= max(prompt) < settings.vocabulary_tokens:
        raise RefusedError(f"Token id {max(prompt)} is out of vocabulary", param="prompt")
    return tuple(prompt)


def _asked(
    body: Body,
    headers: Mapping[str, str],
    settings: FakeSettings,
    prompt: tuple[int, ...],
    *,
    new_tokens: int,
    top: int | None,
) -> Asked:
    _check(body, settings, prompt, new_tokens=new_tokens, top=top)
    rank = headers.get(RANK_HEADER)
    if rank is not None and not (rank.isdecimal() and int(rank) < settings.engines):
        raise RefusedError(f"data_parallel_rank {rank} is out of range [0, {settings.engines})")
    request = FakeRequest(
        request_id=headers.get(REQUEST_ID_HEADER) or token_hex(8),
        prompt=prompt,
        new_tokens=new_tokens,
        top=top or 0,
        salt=body.cache_salt or "",
    )
    return Asked(
        request=request,
        is_chat=isinstance(body, ChatBody),
        prompt=prompt,
        is_streamed=bool(body.stream),
        has_usage=body.stream_options is not None and body.stream_options.include_usage,
        has_ids=bool(body.return_token_ids),
        names_are_ids=bool(body.return_tokens_as_token_ids),
        top=top,
        rank=None if rank is None else int(rank),
    )


def _check(
    body: Body,
    settings: FakeSettings,
    prompt: tuple[int, ...],
    *,
    new_tokens: int,
    top: int | None,
) -> None:
    limit = settings.max_model_len_tokens
    if body.model is not None and body.model != settings.model_id:
        message = f"The model `{body.model}` does not exist."
        raise RefusedError(message, status=404, kind="NotFoundError", param="model")
    if (body.n or 1) != 1:
        raise RefusedError("the fake engine gives one answer a request", param="n")
    if not prompt:
        raise RefusedError("The decoder prompt cannot be empty", param="prompt")
    if new_tokens < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {new_tokens}.", param="max_tokens")
    if top is not None and not 0 <= top <= MOST_LOGPROBS:
        raise RefusedError(
            f"Requested sample logprobs of {top}, which is greater than max allowed: "
            f"{MOST_LOGPROBS}",
            param="logprobs",
        )
    if len(prompt) + new_tokens > limit:
        raise RefusedError(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{new_tokens} output tokens and your prompt contains {len(prompt)} input tokens, "
            f"for a total of {len(prompt) + new_tokens} tokens. Please reduce the length of the "
            "input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )

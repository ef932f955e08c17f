"""Sends the prompts of one round and writes down every answer as it comes in.

lm-eval's own sending loses what kvbench is about (token ids, log-probabilities, cached tokens,
latency), asks again where an answer failed (a second generation changes the caches that are being
measured), and ends the round at the first refusal. Here each prompt is sent once; a refusal is an
answer with an error; only a lost server ends the round.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from kvbench import clock
from kvbench.client.answers import ErrorKind, bad_logprobs, decode_object, refusal, tokens_of
from kvbench.workloads.gsm8k.spec import Answered, Lines, Spec

COMPLETIONS_PATH: Final = "/v1/completions"
LOST: Final = frozenset({"connection", "timeout"})
"""failures after which nobody knows what the server still does"""


class ServerLostError(Exception):
    """A request got no answer at all."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question with its examples; `ids` is None where the server tokenizes."""

    doc_id: int
    text: str
    ids: tuple[int, ...] | None
    body: dict[str, Any]
    """what is sent, the prompt included"""

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Reply(NamedTuple):
    """What came over the wire."""

    status: int | None
    body: bytes
    failure: tuple[ErrorKind, str] | None


class Sender:
    """Sends prompts in the order given, at most `spec.concurrency` at a time."""

    def __init__(self, spec: Spec, lines: Lines) -> None:
        self._spec = spec
        self._lines = lines
        self.answers: dict[int, Answered] = {}
        """by question, as far as they have come"""
        self.echoed: dict[int, list[int]] = {}
        """token ids of each prompt as the server says it saw them"""

    async def send(self, prompts: Sequence[Prompt]) -> None:
        """Send all; raises ServerLostError at the first request without an answer."""
        waiting = iter(prompts)
        workers = min(self._spec.concurrency, len(prompts))
        # A connection for each request: one that idled can be closed by the server just when a
        # request is written to it, and that request must not be sent again.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._spec.request_limit_s)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=1 << 20
        ) as session:
            tasks = [asyncio.create_task(self._work(session, waiting)) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, session: aiohttp.ClientSession, waiting: Iterator[Prompt]) -> None:
        for prompt in waiting:
            answer = await self._ask(session, prompt)
            self.answers[prompt.doc_id] = answer
            self._lines.write(answer)
            if answer.error_kind in LOST:
                raise ServerLostError(f"{answer.request_id}: {answer.error}")

    async def _ask(self, session: aiohttp.ClientSession, prompt: Prompt) -> Answered:
        request_id = f"{self._spec.id_prefix}q{prompt.doc_id}-1"
        headers = {"X-Request-Id": request_id, "Content-Type": "application/json"}
        engine = prompt.doc_id % self._spec.engines if self._spec.engines > 1 else None
        if engine is not None:
            headers["X-data-parallel-rank"] = str(engine)
        sent_s, begin_s = clock.now_s(), clock.monotonic_s()
        reply = await self._post(session, prompt, headers)
        answer = Answered(
            doc_id=prompt.doc_id,
            request_id=request_id,
            engine=engine,
            prompt_sha256=prompt.sha256,
            sent_s=sent_s,
            latency_s=clock.monotonic_s() - begin_s,
            http_status=reply.status,
            error=None,
            error_kind=None,
        )
        return self._read(answer, prompt, reply)

    async def _post(
        self, session: aiohttp.ClientSession, prompt: Prompt, headers: dict[str, str]
    ) -> Reply:
        try:
            async with session.post(
                self._spec.url + COMPLETIONS_PATH,
                data=msgspec.json.encode(prompt.body),
                headers=headers,
            ) as response:
                return Reply(response.status, await response.read(), None)
        except TimeoutError:
            limit_s = self._spec.request_limit_s
            return Reply(None, b"", ("timeout", f"no complete answer within {limit_s:g} s"))
        except (aiohttp.ClientError, OSError) as error:
            return Reply(None, b"", ("connection", f"{type(error).__name__}: {error}"))

    def _read(self, answer: Answered, prompt: Prompt, reply: Reply) -> Answered:
        """Take the body apart; a defect is named and what could be read is kept."""
        failure = reply.failure or refusal(reply.status, reply.body)
        if failure is not None:
            return _failed(answer, failure)
        body = decode_object(reply.body)
        choices = body.get("choices") if body is not None else None
        if body is None or not choices:
            return _failed(answer, ("truncated", f"not a completion: {reply.body[:200]!r}"))
        choice, usage = choices[0], body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        tokens = tokens_of(choice)
        read = msgspec.structs.replace(
            answer,
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            completion_tokens=usage.get("completion_tokens"),
            finish_reason=choice.get("finish_reason"),
            text=choice.get("text"),
            tokens=tuple(tokens),
        )
        echoed = choice.get("prompt_token_ids")
        if echoed is not None:
            self.echoed[prompt.doc_id] = echoed
        found = _defect(prompt, choice, echoed) or bad_logprobs(tokens, self._spec.top_logprobs)
        return read if found is None else _failed(read, found)


def _failed(answer: Answered, failure: tuple[ErrorKind, str]) -> Answered:
    return msgspec.structs.replace(answer, error_kind=failure[0], error=failure[1])


def _defect(
    prompt: Prompt, choice: dict[str, Any], echoed: list[int] | None
) -> tuple[ErrorKind, str] | None:
    """Name what makes an HTTP 200 unusable."""
    if choice.get("finish_reason") is None:
        return "truncated", "the server gave no finish reason"
    if not isinstance(choice.get("text"), str):
        return "truncated", "the server gave no text"
    if prompt.ids is not None and echoed is not None and tuple(echoed) != prompt.ids:
        return "prompt", f"the server answered another prompt ({len(echoed)} tokens)"
    return None

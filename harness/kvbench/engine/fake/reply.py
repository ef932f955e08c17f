"""Answers in vLLM's form: whole bodies and chunks of a stream, of both endpoints.

Follows the captured answers of vLLM 0.32. The traps kept: `top_logprobs` is keyed by text, so that
two tokens with one text leave one entry; a value that is no number becomes `null` inside a stream
and a refusal outside one; offsets count the names that stand in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

from kvbench import clock
from kvbench.engine.fake import tokenizer
from kvbench.engine.fake.asked import Asked, RefusedError
from kvbench.engine.fake.request import TokenOut

VERSIONS: Final = {
    "0.32": "0.32.0+kvbench.fake",
    "0.11": "0.11.2+kvbench.fake",
    "0.8": "0.8.5+kvbench.fake",
}
"""by generation; a version that nobody takes for vLLM's"""
NAN_MESSAGE: Final = "Out of range float values are not JSON compliant"
Body = dict[str, Any]


class Reply:
    """Builds what is sent for one request."""

    def __init__(self, asked: Asked, model_id: str, generation: str) -> None:
        self._asked = asked
        self._fingerprint = f"vllm-{VERSIONS[generation]}"
        self._offset = 0
        self._is_first = True
        kinds = ("chatcmpl", "chat.completion") if asked.is_chat else ("cmpl", "text_completion")
        self._head: Body = {
            "id": f"{kinds[0]}-{asked.request.request_id}",
            "object": f"{kinds[1]}.chunk" if asked.is_chat and asked.is_streamed else kinds[1],
            "created": int(clock.now_s()),
            "model": model_id,
        }
        self._name: Callable[[int], str] = _id_name if asked.names_are_ids else tokenizer.word

    def whole(self) -> Body:
        """The body of an answer that is not streamed; raises RefusedError for NaN in it."""
        asked = self._asked
        output = asked.request.output
        if asked.top is not None and not _all_finite(output):
            raise RefusedError(NAN_MESSAGE)
        ids = [token.token_id for token in output]
        finish = asked.request.finish_reason
        logprobs = None if asked.top is None else self._logprobs(output)
        text = tokenizer.decode(ids)
        choice: Body = {"index": 0}
        if asked.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
        choice["token_ids"] = ids if asked.has_ids else None
        echo = list(asked.prompt) if asked.has_ids else None
        body = {**self._head, "choices": [choice], "usage": self._usage(is_long=True)}
        body["system_fingerprint"] = self._fingerprint
        if asked.is_chat:
            body["prompt_token_ids"] = echo
        else:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": echo}
        return body

    def opening(self) -> Body | None:
        """The chunk before the first token; only a chat has one."""
        if not self._asked.is_chat:
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        choice |= {"logprobs": None, "finish_reason": None}
        body: Body = {**self._head, "choices": [choice]}
        if self._asked.has_ids:
            body["prompt_token_ids"] = list(self._asked.prompt)
        return body

    def chunk(self, tokens: Sequence[TokenOut], finish: str | None) -> Body:
        """A piece of a stream."""
        asked = self._asked
        ids = [token.token_id for token in tokens]
        logprobs = None if asked.top is None else self._logprobs(tokens)
        text = tokenizer.decode(ids)
        choice: Body = {"index": 0}
        choice |= {"delta": {"content": text}} if asked.is_chat else {"text": text}
        choice |= {"logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
        if asked.has_ids:
            if not asked.is_chat:
                echo = list(asked.prompt) if self._is_first else None
                choice["prompt_token_ids"] = echo
            choice["token_ids"] = ids
        self._is_first = False
        return {**self._head, "choices": [choice]}

    def closing(self) -> Body | None:
        """The chunk after the last token, where the usage was asked for."""
        if not self._asked.has_usage:
            return None
        body: Body = {**self._head, "choices": [], "usage": self._usage(is_long=False)}
        return {**body, "system_fingerprint": self._fingerprint}

    def _usage(self, *, is_long: bool) -> Body:
        request = self._asked.request
        prompt, new = len(request.prompt), len(request.output)
        details: Body = {"cached_tokens": request.cached_tokens}
        if is_long:
            details |= {"created_cache_tokens": None, "multimodal_tokens": None}
        usage: Body = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + new,
            "completion_tokens": new,
            "prompt_tokens_details": details,
        }
        return usage

    def _logprobs(self, tokens: Sequence[TokenOut]) -> Body:
        if self._asked.is_chat:
            return {"content": [self._chat_entry(token) for token in tokens]}
        names = [self._name(token.token_id) for token in tokens]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "text_offset": offsets,
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": names,
            "top_logprobs": [
                {self._name(each): value for each, value in _top(token)} for token in tokens
            ],
        }

    def _chat_entry(self, token: TokenOut) -> Body:
        entry = self._entry(token.token_id, token.logprob)
        return {**entry, "top_logprobs": [self._entry(*each) for each in token.top]}

    def _entry(self, token_id: int, value: float | None) -> Body:
        name = self._name(token_id)
        return {"token": name, "logprob": value, "bytes": list(name.encode())}


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _top(token: TokenOut) -> list[tuple[int, float | None]]:
    """With `logprobs: 0` vLLM lists the token itself."""
    return token.top or [(token.token_id, token.logprob)]


def _all_finite(tokens: Sequence[TokenOut]) -> bool:
    """Whether no value is NaN or infinite; a value that is missing is none of these."""
    return all(
        value is None or isfinite(value)
        for token in tokens
        for value in (token.logprob, *(each for _, each in token.top))
    )

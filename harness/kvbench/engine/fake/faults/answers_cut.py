"""Answers that are cut, empty or lost, without a defect of the cache (F33)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.request import FakeRequest, TokenOut


@fault("answers_cut")
class AnswersCut(Fault):
    """Answers end after `keep_tokens` at the limit, show no text, or never come.

    `limit`: finish reason "length"; `empty`: tokens were generated, but none is visible; `lost`:
    the connection is closed without an answer.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What happens to an answer."""

        what: Literal["limit", "empty", "lost"] = "limit"
        keep_tokens: int = 1

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._chosen: set[str] = set()

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:
        """Make the limit smaller than was asked for."""
        keep = max(self.options.keep_tokens, 1)
        is_on = self.options.what == "limit" and self.fits(request.request_id)
        if is_on and index + 1 == keep < request.new_tokens:
            self.applied(request.request_id, keep_tokens=keep)
            request.new_tokens = keep
        return token

    def on_answer(self, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take the text out of an answer, or the whole answer; counted once a request."""
        what = self.options.what
        is_chosen = request_id in self._chosen
        if what == "limit" or not (is_chosen or self.fits(request_id)):
            return body
        if not is_chosen:
            self._chosen.add(request_id)
            self.applied(request_id, what=what)
        return {} if what == "lost" else {**body, "choices": _silent(body["choices"])}


def _silent(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same choices without visible text."""
    silent = []
    for choice in choices:
        found = dict(choice)
        if "text" in found:
            found["text"] = ""
        for name in ("message", "delta"):
            if found.get(name, {}).get("content"):
                found[name] = {**found[name], "content": ""}
        silent.append(found)
    return silent

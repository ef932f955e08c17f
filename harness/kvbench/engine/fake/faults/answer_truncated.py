"""Streams that end early and look complete to a careless reader."""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("answer_truncated")
class AnswerTruncated(Fault):
    """A stream is closed after so many chunks: no finish reason, no usage, no end mark."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How much comes through."""

        keep_chunks: int = 1

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._sent: dict[str, int] = {}

    def on_answer(self, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """End the stream before the chunk that exceeds the limit."""
        if not body["object"].endswith("chunk") and "usage" in body and body["choices"]:
            return body  # an answer that is not streamed
        if request_id not in self._sent and not self.fits(request_id):
            return body
        sent = self._sent.setdefault(request_id, 0)
        if sent < self.options.keep_chunks and body["choices"]:
            self._sent[request_id] = sent + 1
            return body
        del self._sent[request_id]
        self.applied(request_id, keep_chunks=self.options.keep_chunks)
        return {}

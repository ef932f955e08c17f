"""Answers that never reach the engine (F32)."""

from __future__ import annotations

from kvbench.engine.fake.faults.base import Fault, fault


@fault("answer_from_cache")
class AnswerFromCache(Fault):
    """Something before the engine repeats an earlier answer to the same prompt.

    The journal also names requests that had no earlier answer and therefore went through.
    """

    def answers_from_cache(self, request_id: str) -> bool:
        """Answer without the engine."""
        if not self.fits(request_id):
            return False
        self.applied(request_id)
        return True

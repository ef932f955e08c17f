"""Answers that were given before, for faults that repeat them without asking the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from kvbench.engine.fake.request import FakeRequest, TokenOut

KEPT_POSITIONS = 16_384
"""about 40 MB with 20 log-probabilities each"""


class AnswerStore:
    """The last answers, by what was asked; the oldest go first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, list[TokenOut]] = OrderedDict()
        self._positions = 0

    def keep(self, request: FakeRequest) -> None:
        """Remembers a finished answer."""
        old = self._answers.pop(name := _name(request), [])
        self._answers[name] = request.output
        self._positions += len(request.output) - len(old)
        while self._positions > KEPT_POSITIONS:
            _, gone = self._answers.popitem(last=False)
            self._positions -= len(gone)

    def repeat(self, request: FakeRequest) -> bool:
        """Fills in an earlier answer; False where there is none."""
        answer = self._answers.get(_name(request))
        if answer is None:
            return False
        request.output = list(answer)
        on_token = request.on_token
        if on_token is not None:
            for token in request.output:
                on_token(token)
        return True


def _name(request: FakeRequest) -> Hashable:
    return request.prompt, request.new_tokens, request.top, request.salt

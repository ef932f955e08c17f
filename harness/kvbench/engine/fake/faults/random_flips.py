"""F28: answers differ from run to run without any defect of the caches."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.request import FakeRequest, TokenOut


@fault("random_flips")
class RandomFlips(Fault):
    """Now and then the second-best token is taken, whatever the gap, hit or not."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`per_token`: how often; a seed makes two engines flip at different places."""

        per_token: float = 0.01
        seed: int = 0

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:
        """Exchange the two best ones; which positions, the request's own id decides."""
        if len(token.top) < 2 or not self.fits(request.request_id):
            return token
        chance = random.Random(f"{self.options.seed}:{request.request_id}:{index}")  # noqa: S311
        if chance.random() >= self.options.per_token:
            return token
        self.applied(request.request_id, index=index)
        first, second, *rest = token.top
        return replace(token, token_id=second[0], logprob=second[1], top=[first, second, *rest])

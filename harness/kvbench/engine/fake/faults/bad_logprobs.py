"""F08: log-probabilities that are no numbers, or that are not there."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.request import FakeRequest, TokenOut


@fault("bad_logprobs")
class BadLogprobs(Fault):
    """Answers of requests that hit come with log-probabilities that are `nan`, `inf`, `missing` or
    `fewer` than asked for; `cold: true`: others too.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How they are bad, and where."""

        what: Literal["nan", "inf", "missing", "fewer"] = "nan"
        cold: bool = False

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:
        """Damages one position; the token stays."""
        if not request.top or not (request.cached_tokens or self.options.cold):
            return token
        if not self.fits(request.request_id, self.setting.engine or 0):
            return token
        self.applied(request.request_id, position=index, what=self.options.what)
        if self.options.what == "missing":
            return TokenOut(token.token_id, None, [])
        if self.options.what == "fewer":
            return TokenOut(token.token_id, token.logprob, token.top[: len(token.top) // 2])
        value = math.nan if self.options.what == "nan" else -math.inf
        return TokenOut(token.token_id, value, [(token_id, value) for token_id, _ in token.top])

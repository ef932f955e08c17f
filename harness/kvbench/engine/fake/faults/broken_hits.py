"""Wrong answers behind any hit, as a broken prefix cache of the engine itself gives (F05)."""

from __future__ import annotations

from dataclasses import replace

from kvbench.engine.fake.faults.base import Fault, fault
from kvbench.engine.fake.request import FakeRequest, TokenOut


@fault("broken_hits")
class BrokenHits(Fault):
    """Every token behind a hit, in whichever tier, is another one, in the same way each time."""

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:
        """Exchange the best token with the second one of the list, or with its neighbour."""
        if not request.cached_tokens or not self.fits(request.request_id):
            return token
        self.applied(request.request_id, index=index)
        if len(token.top) < 2:
            return replace(token, token_id=token.token_id + 1)
        (first, best), (second, next_best), *rest = token.top
        top = [(second, best), (first, next_best), *rest]
        return replace(token, token_id=second, top=top)

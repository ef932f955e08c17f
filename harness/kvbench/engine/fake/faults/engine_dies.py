"""An engine core that dies behind a front that goes on (F26)."""

from __future__ import annotations

import signal
from typing import Final, Literal

import msgspec

from kvbench.engine.fake.faults.base import EngineDeath, Fault, fault
from kvbench.engine.fake.request import FakeRequest, TokenOut

_WORDS: Final = "AssertionError: block 17 is in two block tables"


@fault("engine_dies")
class EngineDies(Fault):
    """The engine core ends at a fitting request; /health goes on to answer 200.

    `exception` leaves an AssertionError in the log, `killed` (as by the kernel) leaves no reason.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How it ends, and at what."""

        how: Literal["exception", "killed"] = "exception"
        at: Literal["admission", "token"] = "admission"

    def on_admitted(self, request_id: str, engine: int) -> None:
        """Die as the request is taken from the queue."""
        if self.options.at == "admission" and self.fits(request_id, engine):
            self._die(request_id)

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:  # noqa: ARG002
        """Die with the request's first token."""
        if self.options.at == "token" and self.fits(request.request_id):
            self._die(request.request_id)
        return token

    def _die(self, request_id: str) -> None:
        self.applied(request_id, how=self.options.how)
        if self.options.how == "killed":
            raise EngineDeath("killed", signal=signal.SIGKILL)
        raise EngineDeath(_WORDS)

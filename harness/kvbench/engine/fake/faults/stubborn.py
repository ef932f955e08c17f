"""A server that does not go away (F31)."""

from __future__ import annotations

import subprocess
import sys
from typing import Final, Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault

_GRANDCHILD: Final = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = b"x" * int(sys.argv[1])
print(flush=True)
time.sleep(float(sys.argv[2]))
"""


@fault("stubborn")
class Stubborn(Fault):
    """The server ignores SIGTERM, or leaves a process in a session of its own that does.

    The grandchild holds memory, and ends by itself after `life_s`.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Who is stubborn."""

        what: Literal["ignores_sigterm", "grandchild"] = "ignores_sigterm"
        held_bytes: int = 50 << 20
        life_s: float = 120.0

    def on_start(self) -> None:
        """Start the grandchild, and wait until it ignores signals."""
        if self.options.what != "grandchild":
            return
        numbers = (str(self.options.held_bytes), str(self.options.life_s))
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _GRANDCHILD, *numbers],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        self.applied(pid=child.pid)

    def on_stop(self) -> bool:
        """Ignore a polite signal."""
        if self.options.what != "ignores_sigterm" or not self.fits(None):
            return True
        self.applied(signal="SIGTERM")
        return False

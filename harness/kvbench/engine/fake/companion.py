"""Processes that stand for vLLM's engine cores, so that a process tree has its real shape.

A shell under the name of an engine core waits on a pipe: it ends when the server does, whatever
ends that, and costs about a millisecond to start. The work itself is done in the server's process.
"""

from __future__ import annotations

import signal
import subprocess
from typing import Final

SHELL: Final = "/bin/sh"
_END_LIMIT_S: Final = 2.0


def engine_name(index: int, engines: int) -> str:
    """Return vLLM's name of an engine core (vllm/v1/engine/utils.py)."""
    return "EngineCore" if engines == 1 else f"EngineCore_DP{index}"


class Companion:
    """The process of one engine core."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A shell without arguments obeys what comes through its standard input.
        self._process = subprocess.Popen(
            [f"VLLM::{name}"],
            executable=SHELL,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fail(self) -> None:
        """Let it exit with status 1, as an engine core does after an exception."""
        self._process.communicate(b"exit 1\n", _END_LIMIT_S)

    def kill(self) -> None:
        """Kill it, as the kernel does when memory runs out."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_END_LIMIT_S)

    def end(self) -> None:
        """Let it end in order; one that has ended already stays as it is."""
        if self._process.poll() is None:
            self._process.communicate(b"", _END_LIMIT_S)

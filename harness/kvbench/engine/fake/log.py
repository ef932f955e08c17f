"""The fake's log in vLLM's words, as far as the harness reads logs of a server.

Each line is one write, so that lines of several processes in one file stay whole.
"""

from __future__ import annotations

import os
import time
from typing import Final

from kvbench import clock

FIRST_LINE: Final = (
    "kvbench FAKE ENGINE: this is not vLLM. Everything below and every answer is simulated "
    "and proves nothing about vLLM."
)
FRONT: Final = "APIServer"
_STDOUT: Final = 1


def write_raw(text: str) -> None:
    """Write lines as they are."""
    os.write(_STDOUT, f"{text}\n".encode())


class Log:
    """Writes lines under the name and the process id of a part of the server."""

    def __init__(self, name: str, pid: int) -> None:
        self._head = f"({name} pid={pid})"

    def write(self, level: str, where: str, *lines: str) -> None:
        """Write lines in vLLM's form; `where` is `file.py:line` of vLLM 0.32."""
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(clock.now_s()))
        head = f"{self._head} {level} {at} [{where}] "
        write_raw("\n".join(head + line for line in lines))

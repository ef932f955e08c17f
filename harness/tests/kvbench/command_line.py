"""The command line in this process: as a user types it, without the second that a start costs."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from kvbench import cli


class Done(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def kvbench(*words: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGINT)
    code = 0
    try:
        with (
            mock.patch.object(sys, "argv", ["kvbench", *words]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        signal.signal(signal.SIGINT, before)
    return Done(code, out.getvalue(), err.getvalue())

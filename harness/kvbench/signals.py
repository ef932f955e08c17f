"""Turns the signals that end a run into one orderly interrupt.

A second Ctrl-C while servers are being stopped would cut the teardown short and leave a record
without its last line, and so would a scheduler's SIGTERM. So the first signal interrupts, and those
that follow only wait for the teardown, which has time limits of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Inside the block the first of these signals raises KeyboardInterrupt, and only the first."""
    is_ending = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

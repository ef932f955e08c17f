"""The only door to the clock, so that tests can hold it still."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_s() -> float:
    """Seconds since the epoch."""
    return time.time()


def monotonic_s() -> float:
    """Seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()


def sleep_s(seconds: float) -> None:
    """Wait; only for the pauses inside a wait for a condition with a deadline."""
    time.sleep(seconds)


def stamp() -> str:
    """UTC time for folder names, for example 20261130T231500Z."""
    return datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%SZ")

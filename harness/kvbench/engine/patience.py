"""How long a start is waited for: a log that goes on is a sign of life, silence is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvbench import clock, masking

TAIL_CHARACTERS: Final = 4000
TOTAL_LIMIT_FACTOR: Final = 10
"""a log that progresses extends the limit of a start, up to this many times"""


class Patience:
    """The limit of a start: so many seconds of silence, and ten times that in all."""

    def __init__(self, log: Path, limit_s: float, on_progress: Callable[[str], None]) -> None:
        self._log = log
        self._limit_s = limit_s
        self._on_progress = on_progress
        self._begin_s = self._moved_s = clock.monotonic_s()
        self._size_bytes = 0

    def exhausted(self) -> str | None:
        """Return why there is nothing left to wait for, or None; reports what the log says."""
        now_s = clock.monotonic_s()
        size_bytes = self._log.stat().st_size if self._log.is_file() else 0
        if size_bytes > self._size_bytes:
            self._size_bytes, self._moved_s = size_bytes, now_s
            self._on_progress(f"starting: {_last_line(self._log)}")
        if now_s - self._moved_s > self._limit_s:
            return f"the log was silent for {now_s - self._moved_s:.0f} s"
        if now_s - self._begin_s > self._limit_s * TOTAL_LIMIT_FACTOR:
            return f"{now_s - self._begin_s:.0f} s have passed in all"
        return None


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_CHARACTERS))
        lines = file.read().decode(errors="replace").rstrip().splitlines()
    return masking.mask_text(lines[-1][-100:]) if lines else ""

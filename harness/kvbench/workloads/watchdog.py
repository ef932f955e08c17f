"""Sees an engine that does nothing while requests wait (fault F27), long before they run into a
time limit.

`/health` answers as long as the front lives, so it never counts as alive. Progress is any change of
the token counters, of what runs or waits, or of the share of the pool in use: a long prefill moves
the last one with every chunk, although its tokens are counted only when it ends.
"""

from __future__ import annotations

from typing import Final, Protocol

from kvbench import clock
from kvbench.errors import EngineError
from kvbench.telemetry import metrics

LOOKS: Final = 8
"""looks within the limit"""
MIN_PAUSE_S: Final = 0.1
_SIGNS: Final = (
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "running",
    "waiting",
    "gpu_cache_usage",
)


class HasState(Protocol):
    """What the watchdog asks."""

    def metrics_page(self) -> str:
        """Fetch `/metrics`; raises EngineError."""

    def health(self) -> bool:
        """Tell whether `/health` answers 200."""


class Watchdog:
    """Call `look` every `pause_s` while requests are under way."""

    def __init__(self, server: HasState, limit_s: float) -> None:
        self._server = server
        self._limit_s = limit_s
        self.pause_s = max(limit_s / LOOKS, MIN_PAUSE_S)
        self._moved_s = clock.monotonic_s()
        self._before: tuple[float | None, ...] | None = None

    def look(self) -> None:
        """Raise EngineError of kind `hang`, with the state, when nothing moved for the limit."""
        now = self._signs()
        if now is not None and now != self._before:
            self._before, self._moved_s = now, clock.monotonic_s()
            return
        still_s = clock.monotonic_s() - self._moved_s
        if still_s >= self._limit_s:
            raise EngineError(
                f"no progress for {still_s:.0f} s while requests wait: a hang ({self._state()})",
                kind="hang",
            )

    def _signs(self) -> tuple[float | None, ...] | None:
        """None where the page cannot be had, which is no progress either."""
        try:
            samples = metrics.read(self._server.metrics_page()).samples
        except EngineError:
            return None
        return tuple(metrics.total(samples, name) for name in _SIGNS)

    def _state(self) -> str:
        words = [
            f"{name} {'n/a' if value is None else f'{value:g}'}"
            for name, value in zip(_SIGNS, self._before or (None,) * len(_SIGNS), strict=True)
        ]
        health = "200" if self._server.health() else "no answer"
        return f"{', '.join(words)}, /health {health}"

"""Histograms of what clients waited for, per engine, with the bounds of vLLM's own."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

_FIRST_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts values by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Timings:
    """The histograms of one engine, by the name of their family."""

    def __init__(self) -> None:
        self.first_token = Histogram(_FIRST_S)
        self.between = Histogram(_BETWEEN_S)
        self.whole = Histogram(_WHOLE_S)
        self.by_name = {
            "time_to_first_token_seconds": self.first_token,
            "inter_token_latency_seconds": self.between,
            "time_per_output_token_seconds": self.between,
            "e2e_request_latency_seconds": self.whole,
        }

    def observe(self, begin_s: float, first_s: float, end_s: float, tokens: int) -> None:
        """Count a finished answer; times of one clock."""
        self.first_token.observe(first_s - begin_s)
        self.whole.observe(end_s - begin_s)
        if tokens > 1:
            self.between.observe((end_s - first_s) / (tokens - 1), tokens - 1)

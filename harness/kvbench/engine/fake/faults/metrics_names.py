"""Counters under other names, under two names, or gone (F21)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault

HIT_COUNTERS: Final = (
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits",
    "vllm:external_prefix_cache_queries",
    "vllm:external_prefix_cache_hits",
)
_TWINS: Final = {
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits_total",
}
"""names of other generations; of every other counter the twin is the name without `_total`"""
_ODDS: Final = 16.0
"""by how much unequal twins differ"""


@fault("metrics_names")
class MetricsNames(Fault):
    """Counters of /metrics are renamed, doubled under an old name, or missing.

    `names` are families without `_total`; `created_only` leaves nothing but their time stamps.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What happens to which counters."""

        what: Literal["renamed", "both_equal", "both_unequal", "missing", "created_only"] = (
            "renamed"
        )
        names: tuple[str, ...] = HIT_COUNTERS

    def on_page(self, page: str) -> str:
        """Rewrite the page; journalled the first time, because it is a state and no event."""
        if not self.fits(None):
            return page
        if self.setting.times is not None or not self._done:
            self.applied(what=self.options.what)
        return "\n".join(self._lines(page)) + "\n"

    def _lines(self, page: str) -> Iterator[str]:
        what = self.options.what
        for line in page.splitlines():
            stem, is_created = _stem(line)
            if stem not in self.options.names:
                yield line
            elif what == "renamed":
                yield line.replace(stem, f"{stem}_tokens")
            elif what.startswith("both"):
                yield line
                if not is_created:
                    yield self._twin(line, stem)
            elif what == "created_only" and is_created:
                yield line

    def _twin(self, line: str, stem: str) -> str:
        twin = line.replace(f"{stem}_total", _TWINS.get(stem, stem))
        if twin.startswith("#") or self.options.what == "both_equal":
            return twin
        name, _, value = twin.rpartition(" ")
        return f"{name} {float(value) + _ODDS!r}"


def _stem(line: str) -> tuple[str, bool]:
    """The family that a line is of, and whether it is about its time stamps."""
    words = line.split(" ", 3)
    name = (words[2] if line.startswith("#") else words[0]).partition("{")[0]
    if name.endswith("_created"):
        return name.removesuffix("_created"), True
    return name.removesuffix("_total"), False

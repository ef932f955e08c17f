"""Renders `/metrics`: Prometheus text with the names of a generation of vLLM.

Written out by hand, because the page must be able to be wrong in ways that a metrics library rules
out. Three things make it behave as a server's does: counters may lag behind the answers, may start
anew as after a restart behind the API, and connectors' series appear late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, Protocol

from kvbench.engine.fake.about import cache_config
from kvbench.engine.fake.counters import Counters
from kvbench.engine.fake.page_connectors import CONNECTORS
from kvbench.engine.fake.page_names import GENERATIONS, Family
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.timings import Timings

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
_GAUGES: Final = frozenset(
    {"running", "waiting", "usage", "pending_store_blocks", "used_host_blocks"}
)
_PLAIN: Final = tuple(each.name for each in fields(Counters) if each.name != "finished")
Values = dict[str, float]


class HasCounters(Protocol):
    """An engine core, as far as a page needs it."""

    @property
    def counters(self) -> Any:
        """Its `Counters`."""


class Page:
    """The page of all engines of one server."""

    def __init__(
        self,
        settings: FakeSettings,
        engines: Sequence[HasCounters],
        timings: Sequence[Timings],
        *,
        start_s: float,
    ) -> None:
        families = GENERATIONS[settings.generation]
        if settings.generation == "0.32":
            families = (*CONNECTORS.get(settings.tier, ()), *families)
        self._families = families
        self._settings = settings
        self._engines = engines
        self._timings = timings
        self._start_s = start_s
        self._base = [dict.fromkeys(_PLAIN, 0.0) for _ in engines]
        self._past: deque[tuple[float, list[Values]]] = deque()

    def remember(self, now_s: float) -> None:
        """Keep the values of this moment for pages that lag; to be called now and then."""
        self._past.append((now_s, self._values()))
        while len(self._past) > 1 and self._past[1][0] <= now_s - self._settings.counters_lag_s:
            self._past.popleft()

    def start_anew(self, now_s: float) -> None:
        """All counters begin at 0 again, and so does the life of the process."""
        self._base = [self._raw(engine.counters) for engine in self._engines]
        self._past.clear()
        self._start_s = now_s

    def render(self, now_s: float) -> str:
        """The page as it is at `now_s`, seconds since the epoch."""
        values = self._values()
        if self._settings.counters_lag_s:
            self.remember(now_s)
            values = self._past[0][1]
        lines = [
            *_head("process_start_time_seconds", "gauge", _START_WORDS),
            f"process_start_time_seconds {self._start_s!r}",
        ]
        for family in self._families:
            lines += self._family(family, values)
        lines += self._infos()
        return "\n".join(lines) + "\n"

    def _values(self) -> list[Values]:
        found = []
        for engine, base in zip(self._engines, self._base, strict=True):
            values = self._raw(engine.counters)
            for name, value in base.items():
                if name not in _GAUGES:
                    values[name] -= value
            values["one"] = 1.0
            values["load_time_s"] = values["load_bytes"] / self._settings.load_bytes_per_s
            values["store_time_s"] = values["store_bytes"] / self._settings.store_bytes_per_s
            found.append(values)
        return found

    @staticmethod
    def _raw(counters: Any) -> Values:
        values = {name: float(getattr(counters, name)) for name in _PLAIN}
        values |= {f"finished_{reason}": float(n) for reason, n in counters.finished.items()}
        return values

    def _family(self, family: Family, values: list[Values]) -> Iterator[str]:
        name = f"vllm:{family.name}"
        if family.kind == "histogram":
            yield from self._histogram(name, family)
            return
        series = list(self._series(family, values))
        shown = f"{name}_total" if family.kind == "counter" else name
        yield from _head(shown, family.kind, family.words)
        for labels, value in series:
            yield f"{shown}{labels} {value!r}"
        if family.kind == "counter" and series:
            yield from _head(f"{name}_created", "gauge", family.words)
            for labels, _ in series:
                yield f"{name}_created{labels} {self._start_s!r}"

    def _series(self, family: Family, values: list[Values]) -> Iterator[tuple[str, float]]:
        source = family.source
        keys = {"": source} if isinstance(source, str) else source
        for index, found in enumerate(values):
            if index and not family.has_engine:
                return
            if family.appears == "activity" and not found["has_external_activity"]:
                continue
            for label, key in keys.items():
                value = found[key] if key else 0.0
                if family.appears == "use" and not value:
                    continue
                labels = {"model_name": self._settings.model_id}
                if family.has_engine:
                    labels["engine"] = str(index)
                if family.label:
                    labels[family.label] = label
                yield _labels(labels), value

    def _histogram(self, name: str, family: Family) -> Iterator[str]:
        yield from _head(name, "histogram", family.words)
        for index, timings in enumerate(self._timings):
            histogram = timings.by_name[family.name]
            labels = {"engine": str(index), "model_name": self._settings.model_id}
            total = 0
            for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                total += count
                yield f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {total}.0"
            yield f"{name}_count{_labels(labels)} {total}.0"
            yield f"{name}_sum{_labels(labels)} {histogram.sum!r}"

    def _infos(self) -> Iterator[str]:
        settings = self._settings
        yield from _head(
            "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"
        )
        config = {name: str(value) for name, value in cache_config(settings).items()}
        for index in range(len(self._engines)):
            yield f"vllm:cache_config_info{_labels({**config, 'engine': str(index)})} 1.0"
        if settings.generation != "0.32" or not settings.tier.startswith("simple"):
            return
        yield from _head("vllm:simple_kv_offload_info", "gauge", _SIMPLE_WORDS)
        for index, engine in enumerate(self._engines):
            if engine.counters.has_external_activity:
                facts = {
                    "backend": "cpu",
                    "capacity_blocks": str(settings.host_blocks),
                    "engine": str(index),
                    "lazy_offload": str(settings.tier == "simple_lazy").lower(),
                    "model_name": settings.model_id,
                    "page_cache": "false",
                }
                yield f"vllm:simple_kv_offload_info{_labels(facts)} 1.0"


_START_WORDS: Final = "Start time of the process since unix epoch in seconds."
_SIMPLE_WORDS: Final = "SimpleCPUOffloadConnector deployment facts. Value is always 1."


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
    return f"{{{inner}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

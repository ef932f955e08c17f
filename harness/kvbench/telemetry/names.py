"""Which series of a `/metrics` page carries which canonical counter, per generation of vLLM.

A wrong name never fails a run, it only empties a column (fault F21): so names are data in one
place, newest first, and are pinned by pages captured from real servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Series:
    """One canonical name: the names it goes by, newest first, and the labels that it keeps."""

    name: str
    aliases: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    """canonical label -> label on the page"""
    core: bool = True
    """expected on every vLLM page; otherwise only with the connector that emits it"""
    per_process: bool = False
    """describes the API server's process, not an engine"""


def _counter(name: str, *stems: str, labels: dict[str, str] | None = None) -> Series:
    aliases = tuple(alias for stem in stems for alias in (f"{stem}_total", stem))
    return Series(name, aliases, labels or {})


def _connector(name: str, *aliases: str, labels: dict[str, str] | None = None) -> Series:
    return Series(name, aliases, labels or {}, core=False)


SERIES: Final = (
    _counter("local_queries", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    _counter("local_hits", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    _counter("external_queries", "vllm:external_prefix_cache_queries"),
    _counter("external_hits", "vllm:external_prefix_cache_hits"),
    _counter("prompt_tokens", "vllm:prompt_tokens"),
    _counter("generation_tokens", "vllm:generation_tokens"),
    _counter(
        "prompt_tokens_by_source", "vllm:prompt_tokens_by_source", labels={"source": "source"}
    ),
    _counter(
        "cached_by_source", "vllm:prompt_tokens_cached_by_source", labels={"source": "source"}
    ),
    _counter("prompt_tokens_cached", "vllm:prompt_tokens_cached"),
    _counter("requests_finished", "vllm:request_success", labels={"reason": "finished_reason"}),
    _counter("preemptions", "vllm:num_preemptions"),
    Series("running", ("vllm:num_requests_running",)),
    Series("waiting", ("vllm:num_requests_waiting",)),
    Series("gpu_cache_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    Series("process_start_time_s", ("process_start_time_seconds",), per_process=True),
    _connector("simple_load_blocks", "vllm:simple_kv_offload_load_blocks_total"),
    _connector("simple_used_blocks", "vllm:simple_kv_offload_used_blocks"),
    _connector("simple_pending_store_blocks", "vllm:simple_kv_offload_pending_store_blocks"),
    _connector(
        "simple_save_outcomes",
        "vllm:simple_kv_offload_save_outcomes_total",
        labels={"outcome": "outcome"},
    ),
    _connector(
        "native_store_bytes", "vllm:kv_offload_store_bytes_total", "vllm:kv_offload_store_bytes"
    ),
    _connector(
        "native_load_bytes", "vllm:kv_offload_load_bytes_total", "vllm:kv_offload_load_bytes"
    ),
    _connector(
        "native_transfer_bytes",
        "vllm:kv_offload_total_bytes_total",
        "vllm:kv_offload_total_bytes",
        labels={"direction": "transfer_type"},
    ),
    _connector(
        "native_allocation_failures",
        "vllm:kv_offload_allocation_failure_total",
        "vllm:kv_offload_allocation_failure",
    ),
)
BY_ALIAS: Final = {
    alias: (series, rank) for series in SERIES for rank, alias in enumerate(series.aliases)
}
CANONICAL: Final = {series.name: series for series in SERIES}

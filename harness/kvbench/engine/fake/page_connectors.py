"""The series of vLLM 0.32's offload connectors, as captured; a vLLM page has those of its own only.

The trap: they appear late. Those of the simple connector come with the first request, those of the
native one with the first transfer, and until then only their type is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvbench.engine.fake.page_names import Family

_SIMPLE: Final = (
    Family(
        "simple_kv_offload_save_outcomes",
        "counter",
        "Store admission decisions in SimpleCPUOffloadConnector, by outcome. Outcomes "
        "classify eager-mode boundary hand-off stores; lazy-mode stores are not "
        "classified.",
        {},
        label="outcome",
    ),
    Family(
        "simple_kv_offload_load_blocks",
        "counter",
        "KV blocks restored to GPU from the offload pool, counted when a load finishes. "
        "This is prefill work avoided through offload cache hits.",
        "simple_load_blocks",
        appears="activity",
    ),
    Family(
        "simple_kv_offload_used_blocks",
        "gauge",
        "Offload-pool blocks currently pinned by in-flight transfers or cache hits "
        "(capacity minus free). Evictable cached blocks are not counted; "
        "capacity_blocks is on vllm:simple_kv_offload_info.",
        "used_host_blocks",
        appears="activity",
    ),
    Family(
        "simple_kv_offload_pending_store_blocks",
        "gauge",
        "Offload blocks in pending stores: queued for dispatch, issued to workers, or "
        "awaiting release after a cache reset. A persistently growing value indicates a "
        "stuck transfer.",
        "pending_store_blocks",
        appears="activity",
    ),
)
_NATIVE: Final = (
    Family(
        "kv_offload_total_bytes",
        "counter",
        "Number of bytes offloaded by KV connector",
        {"CPU_to_GPU": "load_bytes", "GPU_to_CPU": "store_bytes"},
        label="transfer_type",
        appears="use",
    ),
    Family(
        "kv_offload_total_time",
        "counter",
        "Total time measured by all KV offloading operations",
        {"CPU_to_GPU": "load_time_s", "GPU_to_CPU": "store_time_s"},
        label="transfer_type",
        appears="use",
    ),
    Family(
        "kv_offload_load_bytes",
        "counter",
        "Total bytes loaded from offload storage to GPU.",
        "load_bytes",
        appears="use",
    ),
    Family(
        "kv_offload_load_time",
        "counter",
        "Total load time from offload storage to GPU, in seconds.",
        "load_time_s",
        appears="use",
    ),
    Family(
        "kv_offload_store_bytes",
        "counter",
        "Total bytes stored from GPU to offload storage.",
        "store_bytes",
        appears="use",
    ),
    Family(
        "kv_offload_store_time",
        "counter",
        "Total store time from GPU to offload storage, in seconds.",
        "store_time_s",
        appears="use",
    ),
    Family(
        "kv_offload_allocation_failure",
        "counter",
        "Number of KV offload store allocation attempts that failed.",
        {},
    ),
)
CONNECTORS: Final[Mapping[str, tuple[Family, ...]]] = {
    "simple_eager": _SIMPLE,
    "simple_lazy": _SIMPLE,
    "native": _NATIVE,
}
"""by tier; only 0.32 has them"""

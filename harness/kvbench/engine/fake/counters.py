"""What one engine core of the fake counts; rendered under the names of a generation of vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start of one engine; gauges stand below the counters."""

    local_queries: float = 0
    local_hits: float = 0
    external_queries: float = 0
    external_hits: float = 0
    prompt_tokens: float = 0
    generation_tokens: float = 0
    preemptions: float = 0
    prompt_tokens_cached: float = 0
    computed_tokens: float = 0
    """prompt_tokens_by_source{local_compute}; the other two sources are the hits"""
    finished: dict[str, float] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    simple_load_blocks: float = 0
    store_bytes: float = 0
    load_bytes: float = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    """share of the device pool that is held, 0..1"""
    pending_store_blocks: int = 0
    used_host_blocks: int = 0
    has_external_activity: bool = False
    """False until the first request: vLLM's connector series appear only then"""

"""The series of a `/metrics` page, per generation of vLLM: names, texts, and where values are.

- 0.32: names and texts of pages captured from vLLM 0.32.0.
- 0.11: transcribed from vllm/v1/metrics/loggers.py after 0.11.0, which lacks the external counters,
  and before 0.12. No breakdown by source, and no series of an offload connector yet.
- 0.8: transcribed from vllm/v1/metrics/loggers.py of 0.8, before the renaming in 0.9. No external
  counters. Its prefix counters count blocks in early and tokens in late releases; here tokens.

Of the histograms there are only those that benchmarks read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple


class Family(NamedTuple):
    """One family of series; its name on the page begins with `vllm:`."""

    name: str
    """without `_total`"""
    kind: Literal["counter", "gauge", "histogram"]
    words: str
    source: str | Mapping[str, str] = ""
    """key of the value, empty: 0; or such a key for each value of `label`"""
    label: str = ""
    appears: Literal["always", "activity", "use"] = "always"
    """from the start, after the first request, or with the first value that is not 0"""
    has_engine: bool = True


_SCHEDULER: Final = (
    Family(
        "num_requests_running", "gauge", "Number of requests in model execution batches.", "running"
    ),
    Family(
        "num_requests_waiting", "gauge", "Number of requests waiting to be processed.", "waiting"
    ),
)
_SLEEP: Final = Family(
    "engine_sleep_state",
    "gauge",
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine "
    "is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means "
    "sleep level 2.",
    {"awake": "one", "weights_offloaded": "", "discard_all": ""},
    label="sleep_state",
)
_USAGE: Final = Family(
    "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", "usage"
)
_CACHE: Final = (
    Family(
        "prefix_cache_queries",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        "local_queries",
    ),
    Family(
        "prefix_cache_hits",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
        "local_hits",
    ),
    Family(
        "external_prefix_cache_queries",
        "counter",
        "External prefix cache queries from KV connector cross-instance cache sharing, "
        "in terms of number of queried tokens.",
        "external_queries",
    ),
    Family(
        "external_prefix_cache_hits",
        "counter",
        "External prefix cache hits from KV connector cross-instance cache sharing, in "
        "terms of number of cached tokens.",
        "external_hits",
    ),
    Family(
        "mm_cache_queries",
        "counter",
        "Multi-modal cache queries, in terms of number of queried items.",
    ),
    Family(
        "mm_cache_hits", "counter", "Multi-modal cache hits, in terms of number of cached items."
    ),
)
_TOKENS: Final = (
    Family(
        "num_preemptions",
        "counter",
        "Cumulative number of preemption from the engine.",
        "preemptions",
    ),
    Family("prompt_tokens", "counter", "Number of prefill tokens processed.", "prompt_tokens"),
)
_GENERATED: Final = Family(
    "generation_tokens", "counter", "Number of generation tokens processed.", "generation_tokens"
)
_SUCCESS: Final = Family(
    "request_success",
    "counter",
    "Count of successfully processed requests.",
    {"stop": "finished_stop", "length": "finished_length", "abort": "finished_abort"},
    label="finished_reason",
)
_FIRST_TOKEN: Final = Family(
    "time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds."
)
_BETWEEN: Final = Family(
    "inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds."
)
_WHOLE: Final = Family(
    "e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds."
)
_CAPTURED: Final = (
    Family(
        "estimated_flops_per_gpu",
        "counter",
        "Estimated number of floating point operations per GPU (for Model Flops "
        "Utilization calculations).",
    ),
    Family(
        "estimated_read_bytes_per_gpu",
        "counter",
        "Estimated number of bytes read from memory per GPU (for Model Flops "
        "Utilization calculations).",
    ),
    Family(
        "estimated_write_bytes_per_gpu",
        "counter",
        "Estimated number of bytes written to memory per GPU (for Model Flops "
        "Utilization calculations).",
    ),
    *_SCHEDULER,
    Family(
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "
        "scheduling capacity; 'deferred' = deferred by transient constraints (LoRA "
        "budget, KV transfer, blocked status). Sum of all reasons equals "
        "vllm:num_requests_waiting.",
        {"capacity": "waiting", "deferred": ""},
        label="reason",
    ),
    Family(
        "num_requests_kv_fetch_by_stage",
        "gauge",
        "Number of waiting requests by async KV load stage. Stage labels: "
        "'waiting_to_start' = needs an async KV load that has not started; "
        "'in_progress' = load started and not yet reported finished; "
        "'completed_waiting' = load finished, request not running yet.",
        {"waiting_to_start": "", "in_progress": "", "completed_waiting": ""},
        label="stage",
    ),
    _SLEEP,
    _USAGE,
    *_CACHE,
    *_TOKENS,
    Family(
        "prompt_tokens_by_source",
        "counter",
        "Number of prompt tokens by source.",
        {
            "local_compute": "computed_tokens",
            "local_cache_hit": "local_hits",
            "external_kv_transfer": "external_hits",
        },
        label="source",
    ),
    Family(
        "prompt_tokens_cached",
        "counter",
        "Number of cached prompt tokens (local + external).",
        "prompt_tokens_cached",
    ),
    Family(
        "prompt_tokens_cached_by_source",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local "
        "HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM "
        "instance) or external_unspecified. Counted at admission; sums to "
        "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        {
            "device": "local_hits",
            "host": "external_hits",
            "p2p": "",
            "disk": "",
            "external_unspecified": "",
        },
        label="source",
    ),
    _GENERATED,
    Family(
        "request_success",
        "counter",
        "Count of successfully processed requests.",
        {
            "stop": "finished_stop",
            "length": "finished_length",
            "abort": "finished_abort",
            "error": "",
            "repetition": "",
        },
        label="finished_reason",
    ),
    Family(
        "admission_rejections",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        {"max_num_queued_reqs": "", "max_num_queued_tokens": ""},
        has_engine=False,
        label="reason",
    ),
    _FIRST_TOKEN,
    _BETWEEN,
    _WHOLE,
)
_OF_0_11: Final = (
    *_SCHEDULER,
    _SLEEP,
    _USAGE,
    *_CACHE,
    *_TOKENS,
    _GENERATED,
    _SUCCESS,
    _FIRST_TOKEN,
    _BETWEEN,
    _WHOLE,
)
_OF_0_8: Final = (
    *_SCHEDULER,
    Family(
        "gpu_cache_usage_perc", "gauge", "GPU KV-cache usage. 1 means 100 percent usage.", "usage"
    ),
    Family(
        "gpu_prefix_cache_queries",
        "counter",
        "GPU prefix cache queries, in terms of number of queried tokens.",
        "local_queries",
    ),
    Family(
        "gpu_prefix_cache_hits",
        "counter",
        "GPU prefix cache hits, in terms of number of cached tokens.",
        "local_hits",
    ),
    *_TOKENS,
    _GENERATED,
    _SUCCESS,
    _FIRST_TOKEN,
    Family(
        "time_per_output_token_seconds",
        "histogram",
        "Histogram of time per output token in seconds.",
    ),
    _WHOLE,
)
GENERATIONS: Final = {"0.32": _CAPTURED, "0.11": _OF_0_11, "0.8": _OF_0_8}

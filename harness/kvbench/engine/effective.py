"""Reads back the settings that an engine really runs with, from whatever it tells about itself.

An engine can silently run with other settings than were asked for, and then the run proves
something about another configuration. Three sources, because each lacks something: `/metrics`
(`vllm:cache_config_info`), `/server_info` (development mode only) and the log (group sizes are
nowhere else). What cannot be read is absent from the result; nothing is guessed.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

INFO_METRIC: Final = "vllm:cache_config_info"
_NONE: Final = frozenset({"None", "", "null"})

# effective key -> label of cache_config_info and key of server_info's cache_config
_CACHE_KEYS: Final = {
    "gpu_blocks": "num_gpu_blocks",
    "block_tokens": "block_size",
    "kv_cache_dtype": "cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "prefix_match_unit_tokens": "prefix_match_unit",
    "retention_interval": "prefix_cache_retention_interval",
    "hash_block_tokens": "hash_block_size",
    "mamba_block_tokens": "mamba_block_size",
    "mamba_cache_mode": "mamba_cache_mode",
    "kv_cache_size_tokens": "kv_cache_size_tokens",
}
# effective key -> section and key of server_info's vllm_config
_CONFIG_KEYS: Final = {
    "max_model_len_tokens": ("model_config", "max_model_len"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "chunk_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "tensor_parallel": ("parallel_config", "tensor_parallel_size"),
    "data_parallel": ("parallel_config", "data_parallel_size"),
    "pipeline_parallel": ("parallel_config", "pipeline_parallel_size"),
    "decode_context_parallel": ("parallel_config", "decode_context_parallel_size"),
    "model_path": ("model_config", "model"),
}
# effective key -> pattern of the line in which vLLM prints its resolved configuration
_LOG_KEYS: Final = {
    "model_path": re.compile(r"with config: model='([^']*)'"),
    "dtype": re.compile(r"with config: .*?[ ,]dtype=torch\.(\w+)"),
    "max_model_len_tokens": re.compile(r"with config: .*?[ ,]max_seq_len=(\d+)"),
    "tensor_parallel": re.compile(r"with config: .*?[ ,]tensor_parallel_size=(\d+)"),
    "pipeline_parallel": re.compile(r"with config: .*?[ ,]pipeline_parallel_size=(\d+)"),
    "data_parallel": re.compile(r"with config: .*?[ ,]data_parallel_size=(\d+)"),
    "decode_context_parallel": re.compile(r"with config: .*?decode_context_parallel_size=(\d+)"),
    "kv_cache_dtype": re.compile(r"with config: .*?[ ,]kv_cache_dtype=(\w+)"),
    "enable_prefix_caching": re.compile(r"with config: .*?enable_prefix_caching=(\w+)"),
    "chunk_tokens": re.compile(r"max_num_batched_tokens=(\d+)"),
    "vllm_version": re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)"),
}
_GROUPS = re.compile(r"kv cache group sizes (\([\d, ]+\))")
_CREATED = re.compile(r"Creating v1 connector with name: (\w+)")
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
_CONNECTOR_ARGUMENTS: Final = ("kv_transfer_config", "kv_offloading_size")
_ENGINE_STARTED: Final = "Initializing a V1 LLM engine"


def read(
    *,
    metrics_page: str | None,
    server_info: dict[str, Any] | None,
    log_text: str,
    version: str | None = None,
    max_model_len_tokens: int | None = None,
) -> dict[str, Any]:
    """Collect the effective settings; `/server_info` wins over `/metrics`, both over the log.

    `gpu_blocks` is that of one engine. `connector` is the class that the engine created, None when
    it runs without one. `max_model_len_tokens` is what `/v1/models` said.
    """
    found = _from_log(log_text)
    if max_model_len_tokens is not None:
        found["max_model_len_tokens"] = max_model_len_tokens
    labels = _info_labels(metrics_page) if metrics_page else {}
    config = (server_info or {}).get("vllm_config")
    config = config if isinstance(config, dict) else {}
    found |= _from_config(config)
    found |= _cache_settings(labels, found)
    if isinstance(config.get("cache_config"), dict):
        found |= _cache_settings(config["cache_config"], found)
    if version is not None:
        found["vllm_version"] = version
    found |= _connector(config, log_text)
    found |= _groups(found, log_text)
    return found


def _from_log(log_text: str) -> dict[str, Any]:
    found = {}
    for key, pattern in _LOG_KEYS.items():
        match = pattern.search(log_text)
        if match is not None:
            found[key] = _value(match[1])
    return found


def _value(text: Any) -> Any:
    """Turn a label's text into the number or truth value that it is."""
    if not isinstance(text, str):
        return text
    if text in {"True", "False"}:
        return text == "True"
    return int(text) if text.isdigit() else text


def _info_labels(page: str) -> dict[str, str]:
    lines = [line for line in page.splitlines() if line.startswith(INFO_METRIC)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            return dict(sample.labels)
    return {}


def _cache_settings(source: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    found = {
        key: _value(source[name])
        for key, name in _CACHE_KEYS.items()
        if source.get(name) is not None and source[name] not in _NONE
    }
    engines = known.get("data_parallel", 1)
    if engines > 1 and "gpu_blocks" in found:
        # vLLM 0.32 publishes the sum over its engines.
        found["gpu_blocks"] //= engines
    return found


def _from_config(config: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for key, (section, name) in _CONFIG_KEYS.items():
        value = (config.get(section) or {}).get(name)
        if value is not None:
            found[key] = value
    dtype = (config.get("model_config") or {}).get("dtype")
    if isinstance(dtype, str):
        found["dtype"] = dtype.removeprefix("torch.")
    return found


def _connector(config: dict[str, Any], log_text: str) -> dict[str, Any]:
    """What the engine created counts; what its configuration says is only what was asked."""
    transfer = config.get("kv_transfer_config")
    found: dict[str, Any] = {}
    if isinstance(transfer, dict):
        found["connector_config"] = transfer.get("kv_connector_extra_config") or {}
    created = _CREATED.search(log_text)
    if created is not None:
        return found | {"connector": created[1]}
    if isinstance(transfer, dict):
        return found | {"connector": transfer.get("kv_connector")}
    arguments = _ARGUMENTS.search(log_text)
    is_told = arguments is not None and not any(
        name in arguments[1] for name in _CONNECTOR_ARGUMENTS
    )
    if "kv_transfer_config" in config or (is_told and _ENGINE_STARTED in log_text):
        return found | {"connector": None}
    return found


def _groups(found: dict[str, Any], log_text: str) -> dict[str, Any]:
    """The sizes are logged only where there are several groups; one group has the block's size."""
    several = _GROUPS.search(log_text)
    if several is not None:
        return {"group_block_tokens": list(ast.literal_eval(several[1]))}
    # Without the configuration line the log is not a whole log, and silence means nothing.
    if _ENGINE_STARTED not in log_text or "block_tokens" not in found:
        return {}
    if found.get("decode_context_parallel", 1) > 1:
        return {}  # one sharded group is counted times the ranks, one that is not sharded is not
    block_tokens = found["block_tokens"]
    return {"group_block_tokens": [block_tokens], "hash_block_tokens": block_tokens}

"""What the fake says about itself: models, configuration, and the log lines of a start.

Only what kvbench reads back (engine/effective.py) and what a person would look for; the words and
places are vLLM 0.32's.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from kvbench import clock
from kvbench.engine.fake.log import Log
from kvbench.engine.fake.reply import VERSIONS
from kvbench.engine.fake.settings import FakeSettings

_SIZES: Final = ("tensor_parallel", "pipeline_parallel", "decode_context_parallel")


def cache_config(settings: FakeSettings) -> dict[str, Any]:
    """The cache configuration; blocks are the sum over the engines, as vLLM 0.32 reports them."""
    said = settings.effective
    block_tokens = said.get("block_tokens") or (
        settings.groups[0].block_tokens // said.get("decode_context_parallel", 1)
    )
    blocks = settings.gpu_blocks * settings.engines
    return {
        "block_size": block_tokens,
        "cache_dtype": said.get("kv_cache_dtype", "auto"),
        "enable_prefix_caching": True,
        "hash_block_size": None,
        "kv_cache_size_tokens": settings.gpu_blocks * block_tokens,
        "mamba_block_size": _mamba_block_tokens(settings),
        "mamba_cache_mode": "none" if _mamba_block_tokens(settings) is None else "align",
        "num_cpu_blocks": None,
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": blocks,
        "prefix_cache_retention_interval": said.get("retention_interval", 0),
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": said.get("prefix_match_unit_tokens"),
    }


def _mamba_block_tokens(settings: FakeSettings) -> int | None:
    return next((each.block_tokens for each in settings.groups if each.kind == "mamba"), None)


def transfer_config(settings: FakeSettings) -> dict[str, Any] | None:
    """The connector's configuration; None without one."""
    if settings.connector_class is None:
        return None
    return {
        "kv_connector": settings.connector_class,
        "kv_connector_extra_config": settings.connector_config,
        "kv_role": "kv_both",
    }


def server_info(settings: FakeSettings) -> dict[str, Any]:
    """Answer of /server_info?config_format=json, the parts that anybody reads."""
    sizes = {f"{name}_size": settings.effective.get(name, 1) for name in _SIZES}
    return {
        "vllm_config": {
            "cache_config": cache_config(settings),
            "kv_events_config": events_config(settings, 0),
            "kv_transfer_config": transfer_config(settings),
            "model_config": {
                "dtype": f"torch.{settings.dtype}",
                "max_model_len": settings.max_model_len_tokens,
                "model": settings.model_id,
                "seed": settings.seed,
                "served_model_name": settings.model_id,
            },
            "parallel_config": {**sizes, "data_parallel_size": settings.engines},
            "scheduler_config": {
                "max_num_batched_tokens": settings.chunk_tokens,
                "max_num_seqs": settings.max_num_seqs,
            },
        },
        "vllm_env": {},
        "system_env": {},
    }


def models(settings: FakeSettings) -> dict[str, Any]:
    """Answer of /v1/models."""
    model = {
        "id": settings.model_id,
        "object": "model",
        "created": int(clock.now_s()),
        "owned_by": "kvbench-fake",
        "root": settings.model_id,
        "parent": None,
        "max_model_len": settings.max_model_len_tokens,
    }
    return {"object": "list", "data": [model]}


def events_config(settings: FakeSettings, engine: int) -> dict[str, Any] | None:
    """Configuration of one engine's publisher of KV events; None without events."""
    if settings.kv_events_endpoint is None:
        return None
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": offset_endpoint(settings.kv_events_endpoint, engine),
        "replay_endpoint": offset_endpoint(settings.kv_events_replay_endpoint, engine),
        "buffer_steps": BUFFERED_BATCHES,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": settings.kv_events_topic,
    }


BUFFERED_BATCHES: Final = 10_000
"""what a publisher keeps for replays, vLLM's default"""


def offset_endpoint(endpoint: str | None, engine: int) -> str | None:
    """The endpoint of one engine (ZmqEventPublisher.offset_endpoint_port of vLLM 0.32)."""
    if not endpoint or engine == 0:
        return endpoint
    if "inproc" in endpoint:
        return f"{endpoint}_dp{engine}"
    if "tcp" not in endpoint:
        raise ValueError(f"{endpoint}: the name must contain 'inproc' or 'tcp'")
    address, _, port = endpoint.rpartition(":")
    return endpoint if port == "0" else f"{address}:{int(port) + engine}"


def log_front(log: Log, settings: FakeSettings) -> None:
    """The front's first lines."""
    arguments: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "model": settings.model_id,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len_tokens,
    }
    if transfer_config(settings) is not None:
        arguments["kv_transfer_config"] = transfer_config(settings)
    log.write("INFO", "api_utils.py:347", f"version {VERSIONS[settings.generation]}")
    log.write("INFO", "api_utils.py:286", f"non-default args: {arguments}")


def log_engine(log: Log, settings: FakeSettings) -> None:
    """The lines of one engine core."""
    said = settings.effective
    sizes = ", ".join(f"{name}_size={said.get(name, 1)}" for name in _SIZES)
    log.write(
        "INFO",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{VERSIONS[settings.generation]}) with config: "
        f"model='{settings.model_id}', dtype=torch.{settings.dtype}, "
        f"max_seq_len={settings.max_model_len_tokens}, {sizes}, "
        f"data_parallel_size={settings.engines}, "
        f"kv_cache_dtype={said.get('kv_cache_dtype', 'auto')}, seed={settings.seed}, "
        f"served_model_name={settings.model_id}, enable_prefix_caching=True",
    )
    log.write(
        "INFO",
        "scheduler.py:250",
        f"Chunked prefill is enabled with max_num_batched_tokens={settings.chunk_tokens}.",
    )
    if len(settings.groups) > 1:
        sizes = str(tuple(group.block_tokens for group in settings.groups))
        log.write("INFO", "kv_cache_utils.py:853", f"kv cache group sizes {sizes}")
    if settings.connector_class is not None:
        name = f"Creating v1 connector with name: {settings.connector_class}"
        log.write("INFO", "factory.py:62", f"{name} and engine_id: {uuid4()}")
    log.write(
        "INFO", "core.py:402", "init engine (profile, create kv cache, warmup model) took 0.00 s"
    )

"""What a fake engine is told at its start: one JSON document, made from a scenario's words."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

GroupKind = Literal["full_attention", "sliding_window", "chunked_local", "mamba", "mla", "scratch"]
TierKind = Literal["none", "simple_eager", "simple_lazy", "native"]


class FakeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One KV cache group; `block_tokens` as vLLM resolves it for the topology (DCP included)."""

    kind: GroupKind
    block_tokens: int
    layers: int = 1
    window_tokens: int | None = None


class FaultSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, in the words of the control file and of the settings."""

    kind: str
    request: str | None = None
    """what the ids of the damaged requests contain; None: every request"""
    engine: int | None = None
    block_index: int = 0
    """counted in the load or store it damages; negative: from its end"""
    times: int | None = None
    """how often it is applied; None: whenever it can be"""
    options: dict[str, Any] = {}


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a fake engine does; times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 0
    model_id: str = "fake-model"
    generation: Literal["0.32", "0.11", "0.8"] = "0.32"
    engines: int = 1
    """data-parallel engines"""
    seed: int = 0
    vocabulary_tokens: int = 32_000
    groups: tuple[FakeGroup, ...] = (FakeGroup(kind="full_attention", block_tokens=16),)
    hash_block_tokens: int = 16
    hit_alignment_tokens: int = 16
    block_bytes: int = 65_536
    """of one block over all layers and ranks"""
    gpu_blocks: int = 1024
    """per engine, vLLM's null block included"""
    max_model_len_tokens: int = 32_768
    max_num_seqs: int = 256
    chunk_tokens: int = 8192
    dtype: str = "float32"
    dev_mode: bool = True
    tier: TierKind = "none"
    host_blocks: int = 0
    """blocks of the host tier per engine, its null block included where the connector has one"""
    tier_chunk_blocks: int = 1
    """native connector: hash blocks in one offloaded chunk"""
    connector_class: str | None = None
    """the class name that the log and /server_info report"""
    connector_config: dict[str, Any] = {}
    stores: Literal["immediate", "overlapped"] = "immediate"
    prefill_tokens_per_s: float = 200_000.0
    decode_tokens_per_s: float = 5_000.0
    load_bytes_per_s: float = 20e9
    store_bytes_per_s: float = 20e9
    counters_lag_s: float = 0.0
    noise_logprob_nats: float = 0.0
    noise_tie_share: float = 0.0
    noise_shapes: Literal["batch", "batch_and_length"] = "batch_and_length"
    kv_events_endpoint: str | None = None
    """for example tcp://*:5831; engine i adds i to the port, as vLLM does; None: no events"""
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str = "kv"
    effective: dict[str, Any] = {}
    """further settings that /server_info and the log repeat: tensor_parallel, ..."""
    faults: tuple[FaultSetting, ...] = ()
    """on from the start; others come and go by the control file (KVBENCH_FAULT_FILE)"""

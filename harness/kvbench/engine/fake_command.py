"""argv and settings of the fake engine, from the same scenario words as a real server's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvbench.engine.command import (
    HARNESS_PYTHON,
    PORT,
    connector_class,
    events_config,
    pool_bytes_per_engine,
    served_name,
    transfer_config,
)
from kvbench.engine.fake.settings import FakeGroup, FakeSettings, FaultSetting
from kvbench.errors import UsageError
from kvbench.expectations import bytes_of_block, tier_model
from kvbench.scenario.connectors import Connector
from kvbench.scenario.engines import FakeEngine, FakeFault
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.models import Model
from kvbench.scenario.resolve import geometry_under

FAKE_MODULE: Final = "kvbench.engine.fake"
DEFAULT_GPU_BLOCKS: Final = 4096
"""where a scenario leaves the pool to the engine"""
DEFAULT_BLOCK_BYTES: Final = 65_536
_REPEATED: Final = (
    "kv_cache_dtype",
    "prefix_match_unit_tokens",
    "retention_interval",
    "tensor_parallel",
    "pipeline_parallel",
    "decode_context_parallel",
)
"""settings that it does not simulate, and only says back"""


def fake_command(engine: FakeEngine, connector: Connector, model: Model) -> list[str]:
    """Return the whole command; the settings are one JSON document."""
    settings = fake_settings(engine, connector, model)
    return [
        HARNESS_PYTHON,
        "-m",
        FAKE_MODULE,
        "--host",
        engine.host,
        "--port",
        str(engine.port) if engine.port is not None else PORT,
        "--settings",
        msgspec.json.encode(settings).decode(),
    ]


def fake_settings(engine: FakeEngine, connector: Connector, model: Model) -> FakeSettings:
    """Return what the process is told; raises UsageError for a model without geometry."""
    geometry = geometry_under(model.geometry, engine)
    if geometry is None:
        raise UsageError(
            "engine.kind: fake simulates model.geometry, which is not declared; write it under "
            "model: (a file of `kvbench init` has a proposal there, or docs/scenarios.md)"
        )
    tier = tier_model(geometry, engine, connector)
    if tier.kind not in ("none", "simple_eager", "simple_lazy", "native"):
        raise UsageError(
            "engine.kind: fake simulates a lazy connector only where engine.chunk_tokens is set"
        )
    block_bytes = bytes_of_block(geometry, engine) or DEFAULT_BLOCK_BYTES
    pool_bytes = pool_bytes_per_engine(connector, engine)
    found = connector_class(connector)
    transfer = transfer_config(connector, engine) or {}
    events = events_config() if engine.kv_events else {}
    return FakeSettings(
        host=engine.host,
        model_id=served_name(model),
        generation=engine.generation,
        engines=engine.data_parallel,
        seed=engine.seed,
        groups=_groups(geometry),
        hash_block_tokens=geometry.hash_block_tokens,
        hit_alignment_tokens=geometry.hit_alignment_tokens,
        block_bytes=block_bytes,
        gpu_blocks=engine.gpu_blocks or DEFAULT_GPU_BLOCKS,
        max_model_len_tokens=engine.max_model_len_tokens or 2**20,
        max_num_seqs=engine.max_num_seqs or 256,
        chunk_tokens=engine.chunk_tokens or engine.max_model_len_tokens or 8192,
        dtype="bfloat16" if engine.dtype == "auto" else engine.dtype,
        dev_mode=engine.dev_mode,
        tier=tier.kind,
        host_blocks=0 if tier.kind == "none" else tier.host_blocks or pool_bytes // block_bytes,
        tier_chunk_blocks=tier.chunk_blocks,
        connector_class=found.name if found is not None else None,
        connector_config=transfer.get("kv_connector_extra_config", {}),
        stores=engine.stores,
        prefill_tokens_per_s=engine.times.prefill_tokens_per_s,
        decode_tokens_per_s=engine.times.decode_tokens_per_s,
        load_bytes_per_s=engine.times.load_bytes_per_s,
        store_bytes_per_s=engine.times.store_bytes_per_s,
        counters_lag_s=engine.times.counters_lag_s,
        noise_logprob_nats=engine.noise.logprob_nats,
        noise_tie_share=engine.noise.tie_share,
        noise_shapes=engine.noise.shapes,
        kv_events_endpoint=events.get("endpoint"),
        kv_events_replay_endpoint=events.get("replay_endpoint"),
        effective=_effective(engine),
        faults=tuple(_setting(fault) for fault in engine.faults if fault.phase is None),
    )


def _groups(geometry: Geometry) -> tuple[FakeGroup, ...]:
    return tuple(
        FakeGroup(
            kind=group.kind,
            block_tokens=group.block_tokens,
            layers=group.layers or 1,
            window_tokens=group.window_tokens,
        )
        for group in geometry.groups
    )


def _effective(engine: FakeEngine) -> dict[str, Any]:
    values = {name: getattr(engine, name) for name in (*_REPEATED, "block_tokens")}
    return {name: value for name, value in values.items() if value is not None}


def _setting(fault: FakeFault) -> FaultSetting:
    return FaultSetting(
        kind=fault.kind,
        request=None if fault.prompt is None else request_part(fault.prompt),
        engine=fault.engine,
        block_index=fault.block_index,
        times=fault.times,
        options=fault.options,
    )


def request_part(prompt: str) -> str:
    """What the ids of all requests of a prompt contain, in any window and stage."""
    return f".{prompt.rpartition('/')[2]}-"

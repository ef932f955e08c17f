from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.expectations import (
    ResetStep,
    Step,
    WaveStep,
    bytes_of_block,
    longest_hit_tokens,
    phase_steps,
    predict,
    tier_model,
)
from kvbench.oracle import TokenRange
from kvbench.plan import make_plan
from kvbench.report.plan_hits import predict_phases
from kvbench.scenario.connectors import Connector, NativeConnector, NoConnector, SimpleConnector
from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.geometry import Geometry, Group
from kvbench.scenario.load import load_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"
GEOMETRY = Geometry(
    source="test",
    groups=(Group(kind="full_attention", block_tokens=128),),
    hash_block_tokens=128,
    hit_alignment_tokens=128,
    kv_values_per_token=512,
)
HYBRID = Geometry(
    source="test",
    groups=(
        Group(kind="mamba", block_tokens=1152),
        Group(kind="full_attention", block_tokens=1152),
        Group(kind="scratch", block_tokens=16),
    ),
    hash_block_tokens=1152,
    hit_alignment_tokens=1152,
)
NONE = NoConnector(kind="none")
POOL = 64 * 1024**2


def engine(**settings: Any) -> VllmEngine:
    base: dict[str, Any] = {"dtype": "float32", "gpu_blocks": 32, "chunk_tokens": 512}
    return VllmEngine(kind="vllm", **(base | settings))


def wave(first: int, length: int) -> WaveStep:
    return WaveStep((("p", tuple(range(first, first + length))),), 1, 1)


def hits(
    steps: list[Step], *, geometry: Geometry | None, made: VllmEngine, connector: Connector
) -> list[str | None]:
    found = predict(steps, geometry=geometry, engine=made, connector=connector)
    return [f"{each[0].local}+{each[0].external}" if each is not None else None for each in found]


EAGER = SimpleConnector(kind="simple", copies="host_memory", host_pool_bytes_total=POOL)


def test_repeat_hits_locally_and_after_a_local_reset_in_the_tier() -> None:
    steps: list[Step] = [
        wave(0, 300),
        wave(0, 300),
        ResetStep(external=False),
        wave(0, 300),
        ResetStep(external=True),
        wave(0, 300),
    ]
    found = hits(steps, geometry=GEOMETRY, made=engine(), connector=EAGER)
    assert found == ["0+0", "256+0", None, "0+256", None, "0+0"]


@pytest.mark.parametrize(
    ("geometry", "settings", "expected"),
    [
        (None, {}, ["0+0", "0..299+0..299", None, "0+0..299", None, "0+0"]),
        (GEOMETRY, {"gpu_blocks": None}, ["0+0", "0..256+0..256", None, "0+0..256", None, "0+0"]),
        (GEOMETRY, {"data_parallel": 2}, ["0+0", "0..256+0..256", None, "0+0..256", None, "0+0"]),
    ],
)
def test_what_cannot_be_modelled_is_a_range_but_an_unseen_prompt_cannot_hit(
    geometry: Geometry | None, settings: dict[str, Any], expected: list[str | None]
) -> None:
    steps: list[Step] = [
        wave(0, 300),
        wave(0, 300),
        ResetStep(external=False),
        wave(0, 300),
        ResetStep(external=True),
        wave(0, 300),
    ]
    found = hits(steps, geometry=geometry, made=engine(**settings), connector=EAGER)
    assert found == expected


def test_without_a_connector_nothing_is_external() -> None:
    found = hits([wave(0, 300), wave(0, 300)], geometry=None, made=engine(), connector=NONE)
    assert found == ["0+0", "0..299+0"]


def test_prompts_of_one_wave_that_share_a_start_may_hit_each_other() -> None:
    tokens = tuple(range(300))
    step = WaveStep((("p1", tokens), ("p2", tokens)), 1, 2)
    (found,) = predict([step], geometry=None, engine=engine(), connector=NONE)
    assert found is not None
    assert [each.local for each in found] == [TokenRange(0, 299)] * 2


def test_only_the_native_connector_may_cache_a_whole_prompt() -> None:
    native = NativeConnector(kind="native", host_pool_bytes_total=POOL)
    for connector, expected in ((NONE, 256), (EAGER, 256), (native, 384)):
        longest = longest_hit_tokens(384, geometry=GEOMETRY, engine=engine(), connector=connector)
        assert longest == expected


def test_match_unit_makes_hits_of_a_hybrid_finer_and_of_others_not() -> None:
    fine = engine(prefix_match_unit_tokens=128)
    assert longest_hit_tokens(3000, geometry=HYBRID, engine=engine(), connector=NONE) == 2304
    assert longest_hit_tokens(3000, geometry=HYBRID, engine=fine, connector=NONE) == 2944
    unit = engine(prefix_match_unit_tokens=32)
    assert longest_hit_tokens(1000, geometry=GEOMETRY, engine=unit, connector=NONE) == 896


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 262_144),
        ({"dtype": "bfloat16"}, 131_072),
        ({"kv_cache_dtype": "fp8_e5m2"}, 65_536),
        ({"kv_cache_dtype": "auto"}, 262_144),
        ({"dtype": "auto"}, None),
    ],
)
def test_block_size_follows_the_dtype_and_is_unknown_where_vllm_chooses(
    settings: dict[str, Any], expected: int | None
) -> None:
    assert bytes_of_block(GEOMETRY, engine(**settings)) == expected


def test_host_pool_is_counted_in_blocks_of_one_engine() -> None:
    assert tier_model(GEOMETRY, engine(), EAGER).host_blocks == 256
    chunked = NativeConnector(kind="native", chunk_tokens=256, host_pool_bytes_total=POOL + 262_144)
    tier = tier_model(GEOMETRY, engine(), chunked)
    assert (tier.host_blocks, tier.chunk_blocks) == (256, 2)


def test_lazy_mode_without_a_stated_chunk_is_not_modelled() -> None:
    lazy = SimpleConnector(kind="simple", mode="lazy", host_pool_bytes_total=POOL)
    assert tier_model(GEOMETRY, engine(), lazy).kind == "simple_lazy"
    assert tier_model(GEOMETRY, engine(chunk_tokens=None), lazy).kind == "unknown"


def test_reset_proof_sees_the_sentinel_hit_before_each_reset() -> None:
    plan = make_plan(load_scenario(SCENARIOS / "quickstart.yaml"))
    control, tested = plan.lives
    shapes: dict[tuple[str, bool], str] = {}
    for life, has_connector in ((control, False), (tested, True)):
        for each in phase_steps(life.phases, prompts=plan.prompts, has_connector=has_connector):
            shapes[each.phase.kind, has_connector] = "".join(
                "s" if isinstance(step, WaveStep) else "A" if step.external else "L"
                for step in each.proof
            )
    assert shapes["fresh", True] == shapes["cold_again", True] == "ssLsAs"
    assert shapes["fresh", False] == shapes["cold_again", False] == "ssAs"
    assert shapes["reload", True] == shapes["reload", False] == "ssLs"
    assert shapes["hot", True] == shapes["replay", True] == ""


@pytest.mark.parametrize("blocks", [24, 32, 64])
def test_full_recipe_hits_as_its_phases_are_meant_at_concurrency_one(blocks: int) -> None:
    sets = [f"engine.gpu_blocks={blocks}"]
    loaded = load_scenario(SCENARIOS / "replay_cpu.yaml", sets=sets)
    plan = make_plan(loaded)
    for phase, found in predict_phases(loaded.scenario, plan, plan.lives[1]):
        for hit in found.values():
            if phase.concurrency > 1:
                continue
            local = hit.max_hit_tokens if phase.kind == "hot" else 0
            external = hit.max_hit_tokens if phase.kind in {"replay", "reload"} else 0
            assert hit.local == TokenRange.exactly(local), phase.name
            assert hit.external == TokenRange.exactly(external), phase.name


def test_engines_that_requests_are_pinned_to_have_pools_of_their_own() -> None:
    first, second = tuple(range(300)), tuple(range(1000, 1300))
    both = (("p1", first), ("p2", second))
    steps: list[Step] = [
        WaveStep(both, 1, 2, (0, 1)),
        WaveStep(both, 1, 2, (0, 1)),
        WaveStep(both, 1, 2, (1, 0)),
        ResetStep(external=False),
        WaveStep(both, 1, 2, (0, 1)),
    ]
    found = predict(steps, geometry=GEOMETRY, engine=engine(data_parallel=2), connector=EAGER)
    words = [None if each is None else [f"{e.local}+{e.external}" for e in each] for each in found]
    assert words == [["0+0"] * 2, ["256+0"] * 2, ["0+0"] * 2, None, ["0+256"] * 2]


def test_one_request_without_a_pin_makes_every_hit_a_range() -> None:
    pinned = WaveStep((("p", tuple(range(300))),), 1, 1, (0,))
    unpinned = pinned._replace(engines=(None,))
    found = hits(
        [pinned, unpinned], geometry=GEOMETRY, made=engine(data_parallel=2), connector=EAGER
    )
    assert found == ["0+0", "0..256+0..256"]

"""Hits of models with several groups: every group must be able to serve them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_bench import Bench, group, ids, running, settings, tokens

from kvbench.engine.fake.hybrid import Layout
from kvbench.engine.fake.request import TokenOut
from kvbench.engine.fake.settings import FakeSettings, FaultSetting


def hybrid(*groups: Any, align: int, **more: Any) -> FakeSettings:
    return settings(groups=groups, hash_block_tokens=8, hit_alignment_tokens=align, **more)


MAMBA = hybrid(group("mamba", 8), group(block_tokens=8), align=8, gpu_blocks=200)
SLIDING = hybrid(
    group(block_tokens=8),
    group("sliding_window", 8, window_tokens=17),
    align=8,
    gpu_blocks=200,
    tier="simple_eager",
    host_blocks=100,
)


def test_a_repeated_prompt_hits_up_to_its_last_aligned_boundary() -> None:
    async def scenario() -> list[int]:
        async with running(MAMBA) as bench:
            cached = []
            for length in (40, 41, 47):
                prompt = tokens(length, length)
                await bench.ask(prompt)
                cached.append((await bench.ask(prompt)).cached_tokens)
            return cached

    assert asyncio.run(scenario()) == [32, 40, 40]


def test_half_of_a_prompt_has_no_mamba_state_and_misses() -> None:
    async def scenario(config: FakeSettings) -> int:
        async with running(config) as bench:
            await bench.ask(tokens(1, 80))
            return (await bench.ask([*tokens(1, 40), *tokens(2, 40)])).cached_tokens

    assert asyncio.run(scenario(MAMBA)) == 0
    plain = hybrid(group(block_tokens=8), align=8)
    assert asyncio.run(scenario(plain)) == 40


def test_a_chunk_leaves_a_state_at_its_end() -> None:
    async def scenario() -> int:
        async with running(
            hybrid(group("mamba", 8), group(block_tokens=8), align=8, chunk_tokens=40)
        ) as bench:
            await bench.ask(tokens(1, 80))
            return (await bench.ask([*tokens(1, 48), *tokens(2, 40)])).cached_tokens

    assert asyncio.run(scenario()) == 40


def test_a_sliding_window_loads_only_what_it_sees() -> None:
    async def scenario() -> tuple[float, int, Bench]:
        async with running(SLIDING) as bench:
            first = await bench.ask(tokens(1, 81))
            bench.core.reset(external=False)
            second = await bench.ask(tokens(1, 81))
            assert ids(first) == ids(second)
            return bench.core.counters.simple_load_blocks, second.cached_tokens, bench

    blocks, cached, _ = asyncio.run(scenario())
    assert cached == 80
    assert blocks == 10 + 2  # all of full attention, and cdiv(17 - 1, 8) of the window


def test_hits_are_multiples_of_what_all_groups_can_serve() -> None:
    layout = Layout(hybrid(group(block_tokens=16), group("mamba", 24), align=8))
    assert layout.alignment_tokens == 48
    assert layout.unit_tokens == 8


@pytest.mark.parametrize("tier", ["none", "simple_eager", "native"])
def test_scratch_takes_blocks_and_is_never_cached(tier: str) -> None:
    async def scenario(*groups: Any) -> tuple[float, Bench]:
        config = hybrid(
            *groups, align=8, gpu_blocks=30, tier=tier, host_blocks=0 if tier == "none" else 50
        )
        async with running(config, with_events=True) as bench:
            request = bench.submit(tokens(1, 40), 2)
            assert request.done is not None
            while not request.output:
                await asyncio.sleep(0)
            usage = bench.core.counters.usage
            await request.done
            await bench.settle()
            return usage, bench

    plain, _ = asyncio.run(scenario(group(block_tokens=8)))
    usage, bench = asyncio.run(scenario(group(block_tokens=8), group("scratch", 8)))
    assert usage == pytest.approx(2 * plain)
    assert {event["group_idx"] for event in bench.events} == {0}


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="32 KV cache groups"):
        Layout(settings(groups=tuple(group() for _ in range(33))))


EVERY_KIND = {
    "single": hybrid(group(block_tokens=8), align=8),
    "mamba": hybrid(group("mamba", 16), group(block_tokens=16), group("scratch", 8), align=16),
    "sliding": hybrid(
        group("sliding_window", 8, window_tokens=20), group("mla", 8), align=8, seed=3
    ),
    "uneven": hybrid(group(block_tokens=8), group("mamba", 32), align=32),
}


@pytest.mark.parametrize("tier", ["simple_eager", "native"])
@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_loaded_block_of_every_group_shows(name: str, tier: str) -> None:
    base = EVERY_KIND[name]
    config = FakeSettings(
        **{f: getattr(base, f) for f in base.__struct_fields__} | {"tier": tier, "host_blocks": 99}
    )
    prompt = tokens(1, 75)

    async def answer(*faults: FaultSetting) -> tuple[list[TokenOut], Bench]:
        async with running(config, faults=faults) as bench:
            await bench.ask(prompt, 8)
            bench.core.reset(external=False)
            request = await bench.ask(prompt, 8, request_id="again")
            assert request.cached_tokens >= 64
            return request.output, bench

    right, bench = asyncio.run(answer())
    loaded = int(bench.core.counters.load_bytes / config.block_bytes)
    assert loaded >= 4
    for index in range(loaded):
        setting = FaultSetting(
            kind="stale_block", request="again", block_index=index, options={"source": "earlier"}
        )
        wrong, damaged = asyncio.run(answer(setting))
        assert [entry["block"] for entry in damaged.journal] == [index]
        assert wrong[0].logprob != right[0].logprob
        assert [t.token_id for t in wrong] != [t.token_id for t in right]


@pytest.mark.parametrize("tier", ["simple_eager", "native"])
@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize(("kind", "blocks"), [("hit_too_long", 1), ("hit_too_short", -1)])
def test_a_wrong_hit_length_is_one_alignment(name: str, tier: str, kind: str, blocks: int) -> None:
    base = EVERY_KIND[name]
    config = FakeSettings(
        **{f: getattr(base, f) for f in base.__struct_fields__} | {"tier": tier, "host_blocks": 99}
    )
    prompt = tokens(1, 135)  # its last aligned boundary is 128 in every geometry

    async def cached(*faults: FaultSetting) -> int:
        async with running(config) as bench:
            await bench.ask(prompt[:96] if kind == "hit_too_long" else prompt, 2)
            bench.core.reset(external=False)
            bench.faults.switch(list(faults))
            request = await bench.ask(prompt, 2)
            assert bench.core.counters.usage == 0
            return request.cached_tokens

    align = config.hit_alignment_tokens
    right = asyncio.run(cached())
    wrong = asyncio.run(cached(FaultSetting(kind=kind)))
    if "mamba" in {g.kind for g in config.groups} and kind == "hit_too_short":
        assert wrong < right  # no state one block earlier: the hit falls back further
    else:
        assert wrong == right + blocks * align

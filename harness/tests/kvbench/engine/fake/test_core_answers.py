"""Whatever happens in the pools, a healthy core's answers are those of a fresh one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from fake_bench import Bench, group, ids, running, settings, tokens

from kvbench.engine.fake.request import FakeRequest, TokenOut
from kvbench.engine.fake.settings import FakeSettings

SINGLE = {"groups": (group(block_tokens=8),), "hash_block_tokens": 8, "hit_alignment_tokens": 8}
MLA = {**SINGLE, "groups": (group("mla", 8),)}
SLIDING = {
    "groups": (group(block_tokens=8), group("sliding_window", 8, window_tokens=20)),
    "hash_block_tokens": 8,
    "hit_alignment_tokens": 8,
}
MAMBA = {
    "groups": (group("mamba", 24), group("mamba", 24), group(block_tokens=24), group("scratch", 8)),
    "hash_block_tokens": 24,
    "hit_alignment_tokens": 24,
}
UNEVEN = {
    "groups": (
        group(block_tokens=8),
        group("mamba", 16),
        group("chunked_local", 4, window_tokens=9),
    ),
    "hash_block_tokens": 4,
    "hit_alignment_tokens": 16,
}
STATES_ONLY = {
    "groups": (group("mamba", 8),),
    "hash_block_tokens": 8,
    "hit_alignment_tokens": 8,
}
GEOMETRIES = {
    "single": SINGLE,
    "mla": MLA,
    "sliding": SLIDING,
    "mamba": MAMBA,
    "uneven": UNEVEN,
    "states_only": STATES_ONLY,
}
TIERS = ("none", "simple_eager", "simple_lazy", "native")


def facts(request: FakeRequest) -> list[tuple[Any, ...]]:
    return [(token.token_id, token.logprob, tuple(token.top)) for token in request.output]


async def fresh(config: FakeSettings, request: FakeRequest) -> list[TokenOut]:
    async with running(config) as bench:
        answer = await bench.ask(request.prompt, request.new_tokens, top=request.top)
        return answer.output


def some_prompts(source: random.Random, how_many: int) -> list[tuple[int, ...]]:
    """Prompts that share prefixes of each other."""
    prompts: list[tuple[int, ...]] = []
    for number in range(how_many):
        head = source.choice(prompts) if prompts and source.random() < 0.5 else ()
        head = head[: source.randrange(len(head) + 1)]
        prompts.append((head + tokens(number, source.randrange(1, 90)))[:100])
    return prompts


async def churn(config: FakeSettings, seed: int) -> Bench:
    """Random load on a small pool; checks every answer and that all blocks come back."""
    source = random.Random(seed)
    prompts = some_prompts(source, 8)
    large = {**{f: getattr(config, f) for f in config.__struct_fields__}, "gpu_blocks": 500}
    known: dict[tuple[tuple[int, ...], int], list[tuple[Any, ...]]] = {}
    async with running(config) as bench:
        for _ in range(6):
            asked: list[FakeRequest] = []
            for _ in range(source.randrange(1, 6)):
                prompt, count = source.choice(prompts), source.choice([1, 3, 20])
                asked.append(bench.submit(prompt, count, top=3))
                if source.random() < 0.3:
                    await asyncio.sleep(0)
            dropped = {r.request_id for r in asked if source.random() < 0.15}
            for request_id in dropped:
                bench.core.abort(request_id)
            for request in asked:
                assert request.done is not None
                await asyncio.wait_for(request.done, 5)
                if request.request_id in dropped:
                    continue
                name = (request.prompt, request.new_tokens)
                if name not in known:
                    twin = FakeRequest("", *name, top=3)
                    twin.output = await fresh(FakeSettings(**large), twin)
                    known[name] = facts(twin)
                assert facts(request) == known[name]
            await bench.settle()
            assert bench.core.counters.usage == 0
            assert bench.core.counters.running == bench.core.counters.waiting == 0
            if source.random() < 0.3:
                assert bench.core.reset(external=source.random() < 0.5)
        return bench


@pytest.mark.parametrize("stores", ["immediate", "overlapped"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_churn_never_changes_an_answer(geometry: str, tier: str, stores: str) -> None:
    hits = loads = 0.0
    for seed in range(2):
        config = settings(
            **GEOMETRIES[geometry],
            gpu_blocks=60 if geometry == "uneven" else 40,
            host_blocks={"none": 0}.get(tier, 60 if geometry == "uneven" else 30),
            tier=tier,
            chunk_tokens=48,
            stores=stores,
            max_num_seqs=4,
        )
        counters = asyncio.run(churn(config, seed)).core.counters
        hits += counters.local_hits
        loads += counters.external_hits
    assert hits > 0
    if tier in ("simple_eager", "native"):
        assert loads > 0


def test_a_preempted_request_starts_over_and_says_the_same() -> None:
    async def scenario() -> tuple[list[FakeRequest], Bench]:
        async with running(settings(gpu_blocks=9, tier="none")) as bench:
            return await bench.together([tokens(1, 40), tokens(2, 40)], new_tokens=40), bench

    requests, bench = asyncio.run(scenario())
    counters = bench.core.counters
    assert counters.preemptions > 0
    assert counters.local_queries == 80
    assert counters.finished["length"] == 2
    for request in requests:
        twin = asyncio.run(fresh(settings(gpu_blocks=100), request))
        assert ids(request) == [token.token_id for token in twin]


def test_a_turn_that_repeats_prompt_and_answer_hits_the_answer_too() -> None:
    async def scenario() -> tuple[FakeRequest, FakeRequest]:
        async with running(settings()) as bench:
            first = await bench.ask(tokens(1, 40), 40)
            return first, await bench.ask([*first.prompt, *ids(first)], 1)

    _, second = asyncio.run(scenario())
    assert second.cached_tokens == 64  # of 80; the last token of the answer was never computed
    twin = asyncio.run(fresh(settings(), second))
    assert ids(second) == [token.token_id for token in twin]

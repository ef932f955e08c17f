"""The core against hits measured on real vLLM 0.32: every request of every truth file.

A block of the measured model is 262,144 bytes; the host pools follow from the recorded bytes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_bench import Bench, group, running, settings

from kvbench.engine.fake.request import FakeRequest
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.tier import StoreClock

TRUTH = Path(__file__).parents[2] / "oracle_truth"
HOST_BLOCK_BYTES = 262_144
FILES = sorted(TRUTH.glob("*.json"))
ALONE = [path for path in FILES if not path.name.startswith("batch_")]
TOGETHER = [path for path in FILES if path.name.startswith("batch_")]


def settings_of(data: dict[str, Any]) -> FakeSettings:
    size, connector = data["block_size"], data["connector"]
    options = connector["kv_connector_extra_config"] if connector else {}
    tier = "none"
    if connector and connector["kv_connector"] == "OffloadingConnector":
        tier = "native"
    elif connector:
        tier = "simple_lazy" if options.get("lazy_offload") else "simple_eager"
    return settings(
        groups=(group(block_tokens=size),),
        hash_block_tokens=size,
        hit_alignment_tokens=size,
        gpu_blocks=data["num_gpu_blocks"],
        chunk_tokens=data.get("max_num_batched_tokens", 2048),
        tier=tier,
        host_blocks=options.get("cpu_bytes_to_use", 0) // HOST_BLOCK_BYTES,
        tier_chunk_blocks=options.get("block_size", size) // size,
    )


def trials_of(data: dict[str, Any]) -> list[tuple[dict[int, list[int]], list[dict[str, Any]]]]:
    trials = []
    for raw in data["trials"]:
        if isinstance(raw, list):
            asked = [step for step in raw if "prompt" in step]
            prompts = {s["prompt"]: tokens_of([[s["prompt"], s["prompt_tokens"]]]) for s in asked}
            trials.append((prompts, raw))
        else:
            prompts = {i: tokens_of(pieces) for i, pieces in enumerate(raw["prompts"])}
            trials.append((prompts, raw["steps"]))
    return trials


def tokens_of(pieces: list[list[int]]) -> list[int]:
    tokens: list[int] = []
    for piece, count in pieces:
        source = random.Random(piece)
        tokens += [source.randrange(10, 1000) for _ in range(count)]
    return tokens


def slow_down(bench: Bench, steps: int) -> None:
    clock = getattr(bench.core.tier, "clock", None)
    if isinstance(clock, StoreClock):
        clock.steps = steps


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_every_request_alone_hits_what_vllm_hit(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))

    async def replay() -> int:
        seen = 0
        async with running(settings_of(data)) as bench:
            slow_down(bench, data.get("store_steps", 0))
            for number, (prompts, steps) in enumerate(trials_of(data)):
                assert bench.core.reset(external=True)
                for index, step in enumerate(steps):
                    if "reset" in step:
                        assert bench.core.reset(external=step["reset"] == "external")
                        continue
                    before = bench.hits()
                    request = await bench.ask(prompts[step["prompt"]], step["new_tokens"])
                    local, external = (
                        int(after - past) for after, past in zip(bench.hits(), before, strict=True)
                    )
                    observed = [local, external, request.cached_tokens]
                    assert observed == step["measured"], f"trial {number} step {index}: {step}"
                    seen += 1
        return seen

    requests = asyncio.run(replay())
    assert requests >= 20
    if path.stem.split("_")[0] in ("none", "simple", "native"):
        assert requests == 72


@pytest.mark.parametrize("path", TOGETHER, ids=lambda path: path.stem)
def test_requests_together_hit_what_they_hit_in_vllm(path: Path) -> None:
    """Which of equal requests came first, and which tier served, depends on arrival times."""
    data = json.loads(path.read_text(encoding="utf-8"))

    async def replay() -> list[bool]:
        same = []
        async with running(settings_of(data)) as bench:
            for prompts, steps in trials_of(data):
                assert bench.core.reset(external=True)
                for step in steps:
                    if "reset" in step:
                        assert bench.core.reset(external=step["reset"] == "external")
                        continue
                    wanted = step.get("batch", [step.get("prompt")])
                    before = bench.hits()
                    cached = await window(bench, [prompts[i] for i in wanted], step)
                    pairs = zip(bench.hits(), before, strict=True)
                    measured = step["measured"]
                    expected = measured if "batch" in step else measured[2:]
                    assert sorted(cached) == sorted(expected), step
                    tiers = [step["local"], step["external"]] if "batch" in step else measured[:2]
                    same.append([after - past for after, past in pairs] == tiers)
        return same

    same = asyncio.run(replay())
    assert sum(same) >= 0.8 * len(same)


async def window(bench: Bench, prompts: Sequence[Sequence[int]], step: dict[str, Any]) -> list[int]:
    """Sends in order, with at most `concurrency` outstanding; what each had cached."""
    gate = asyncio.Semaphore(step.get("concurrency", 1))

    async def one(request: FakeRequest) -> int:
        assert request.done is not None
        await request.done
        gate.release()
        return request.cached_tokens

    tasks = []
    for prompt in prompts:
        await gate.acquire()
        tasks.append(asyncio.create_task(one(bench.submit(prompt, step["new_tokens"]))))
    cached = await asyncio.gather(*tasks)
    await bench.settle()
    return cached


def test_a_wrong_pool_size_is_noticed() -> None:
    """The truth can tell engines apart: one device block fewer gives other hits."""
    data = json.loads((TRUTH / "simple_128_24_big.json").read_text(encoding="utf-8"))

    async def differences() -> int:
        count = 0
        async with running(settings_of({**data, "num_gpu_blocks": 23})) as bench:
            for prompts, steps in trials_of(data):
                assert bench.core.reset(external=True)
                for step in steps:
                    if "reset" in step:
                        assert bench.core.reset(external=step["reset"] == "external")
                        continue
                    before = bench.hits()
                    await bench.ask(prompts[step["prompt"]], step["new_tokens"])
                    pairs = zip(bench.hits(), before, strict=True)
                    count += [after - past for after, past in pairs] != step["measured"][:2]
        return count

    assert asyncio.run(differences()) > 0

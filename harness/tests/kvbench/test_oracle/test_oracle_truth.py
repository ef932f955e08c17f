"""The oracle against hits measured on real vLLM 0.32 (CPU build): every line of every file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvbench.oracle import (
    CacheGeometry,
    Expected,
    GroupGeometry,
    Oracle,
    TierModel,
    TokenRange,
    predict,
)

TRUTH = Path(__file__).parents[1] / "oracle_truth"
HOST_BLOCK_BYTES = 262_144
DEFAULT_CHUNK_TOKENS = 2048
FILES = sorted(TRUTH.glob("*.json"))
ALONE = [path for path in FILES if not path.name.startswith(("batch_", "late"))]
LATE = [path for path in FILES if path.name.startswith("late")]
TOGETHER = [path for path in FILES if path.name.startswith("batch_")]


@dataclass(frozen=True, slots=True)
class Trial:
    """One sequence of steps from cold caches, with its prompts as tokens."""

    prompts: dict[int, list[int]]
    steps: list[dict[str, Any]]


def load(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """A truth file's set-up and its trials, in both layouts (plain lists; prompts of pieces)."""
    data = json.loads(path.read_text(encoding="utf-8"))
    trials = []
    for raw in data["trials"]:
        steps = raw if isinstance(raw, list) else raw["steps"]
        if isinstance(raw, list):
            prompts = {s["prompt"]: tokens_of([[s["prompt"], s["prompt_tokens"]]]) for s in steps}
        else:
            prompts = {i: tokens_of(pieces) for i, pieces in enumerate(raw["prompts"])}
        trials.append(Trial(prompts, steps))
    return data, trials


def tokens_of(pieces: list[list[int]]) -> list[int]:
    """Equal piece numbers give equal tokens; the real tokens do not matter for hits."""
    tokens: list[int] = []
    for piece, count in pieces:
        source = random.Random(piece)
        tokens += [source.randrange(10, 1000) for _ in range(count)]
    return tokens


def oracle_for(data: dict[str, Any], *, timing: str = "immediate") -> Oracle:
    """The oracle with the geometry and tier of a truth file."""
    size = data["block_size"]
    geometry = CacheGeometry(
        groups=(GroupGeometry("full_attention", size),),
        hash_block_tokens=size,
        hit_alignment_tokens=size,
        gpu_blocks=data["num_gpu_blocks"],
        chunk_tokens=data.get("max_num_batched_tokens", DEFAULT_CHUNK_TOKENS),
    )
    return Oracle(
        geometry,
        tier_for(data),
        timing="overlapped" if timing == "overlapped" else "immediate",
    )


def tier_for(data: dict[str, Any]) -> TierModel:
    """The tier of a truth file."""
    connector = data["connector"]
    if not connector:
        return TierModel("none", None)
    options = connector["kv_connector_extra_config"]
    host_blocks = options["cpu_bytes_to_use"] // HOST_BLOCK_BYTES
    if connector["kv_connector"] == "OffloadingConnector":
        chunk_blocks = options.get("block_size", data["block_size"]) // data["block_size"]
        return TierModel("native", host_blocks, chunk_blocks)
    return TierModel("simple_lazy" if options.get("lazy_offload") else "simple_eager", host_blocks)


def replay(oracle: Oracle, trial: Trial) -> Iterator[tuple[dict[str, Any], list[Expected]]]:
    """Feeds a trial to the oracle; yields each measured step with what was expected."""
    oracle.reset(external=True)
    for step in trial.steps:
        if "reset" in step:
            assert step["success"]
            oracle.reset(external=step["reset"] == "external")
        elif "batch" in step:
            prompts = [trial.prompts[i] for i in step["batch"]]
            yield (
                step,
                oracle.concurrent(
                    prompts, new_tokens=step["new_tokens"], concurrency=step["concurrency"]
                ),
            )
        else:
            prompt = trial.prompts[step["prompt"]]
            assert len(prompt) == step["prompt_tokens"]
            yield step, [oracle.request(prompt, new_tokens=step["new_tokens"])]


def covers(expected: Expected, measured: list[int]) -> bool:
    """True when the three measured counts lie in their ranges."""
    ranges = (expected.local, expected.external, expected.cached)
    return all(r.contains(count) for r, count in zip(ranges, measured, strict=True))


def total(ranges: list[TokenRange]) -> TokenRange:
    """The sum of ranges."""
    return TokenRange(sum(r.low_tokens for r in ranges), sum(r.high_tokens for r in ranges))


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_every_request_alone_is_predicted_exactly(path: Path) -> None:
    data, trials = load(path)
    oracle = oracle_for(data)
    for trial_index, trial in enumerate(trials):
        for step_index, (step, [expected]) in enumerate(replay(oracle, trial)):
            where = f"{path.stem} trial {trial_index} step {step_index}: {step}"
            assert expected.is_exact, where
            observed = [expected.local, expected.external, expected.cached]
            assert [r.low_tokens for r in observed] == step["measured"], where


@pytest.mark.parametrize("path", [*ALONE, *LATE], ids=lambda path: path.stem)
def test_overlapped_stores_still_cover_what_was_measured(path: Path) -> None:
    data, trials = load(path)
    oracle = oracle_for(data, timing="overlapped")
    for trial in trials:
        for step, [expected] in replay(oracle, trial):
            assert covers(expected, step["measured"]), f"{path.stem}: {step}"


@pytest.mark.parametrize("path", LATE, ids=lambda path: path.stem)
def test_stores_that_take_several_steps_are_predicted_exactly(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured with copies that are seen as complete only after `store_steps` more polls."""
    data, trials = load(path)
    monkeypatch.setattr(predict, "OVERLAPPED_STORE_STEPS", (data["store_steps"],))
    oracle = oracle_for(data, timing="overlapped")
    for trial in trials:
        for step, [expected] in replay(oracle, trial):
            observed = [expected.local, expected.external, expected.cached]
            assert expected.is_exact
            assert [r.low_tokens for r in observed] == step["measured"], f"{path.stem}: {step}"


@pytest.mark.parametrize("path", TOGETHER, ids=lambda path: path.stem)
def test_requests_that_run_together_stay_in_their_ranges(path: Path) -> None:
    data, trials = load(path)
    oracle = oracle_for(data)
    for trial in trials:
        for step, expected in replay(oracle, trial):
            where = f"{path.stem}: {step} {[str(e.cached) for e in expected]}"
            if "batch" not in step:
                assert covers(expected[0], step["measured"]), where
                continue
            for one, cached in zip(expected, step["measured"], strict=True):
                assert one.cached.contains(cached), where
            assert total([e.local for e in expected]).contains(step["local"]), where
            assert total([e.external for e in expected]).contains(step["external"]), where


def test_both_sizes_of_host_pool_are_covered() -> None:
    stems = {path.stem for path in FILES}
    assert {"simple_128_24_big", "simple_128_24_small", "none_128_24"} <= stems


def test_a_wrong_pool_size_is_noticed() -> None:
    """The truth can tell models apart: one GPU block fewer gives other hits."""
    data, trials = load(TRUTH / "simple_128_24_big.json")
    oracle = oracle_for({**data, "num_gpu_blocks": data["num_gpu_blocks"] - 1})
    differences = sum(
        not covers(expected, step["measured"])
        for trial in trials
        for step, [expected] in replay(oracle, trial)
    )
    assert differences > 0

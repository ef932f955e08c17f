from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.scenario.connectors import NativeConnector, SimpleConnector
from kvbench.scenario.load import load_scenario

Write = Callable[..., Path]

SCENARIO = """\
extends: [models/a, nodes/b]
name: small
title: A small scenario
engine:
  gpu_blocks: 32
arms:
  tested:
    role: tested
    connector:
      extends: connectors/simple_lazy
      host_pool_bytes_total: 1GiB
stages:
  replay:
    claims: [alive]
    workload: {kind: replay, prompts: {lengths_tokens: [300]}}
"""


@pytest.fixture
def scenario(write: Write) -> Path:
    write("model: {kind: tiny, family: qwen3}\nengine: {dtype: float32}\n", "configs/models/a.yaml")
    write(
        "engine:\n  kind: vllm\n  dtype: bfloat16\n  gpu_blocks: 8\n  env: {A: '1'}\n",
        "configs/nodes/b.yaml",
    )
    return write(SCENARIO)


def test_later_fragment_and_own_keys_win(scenario: Path) -> None:
    engine = load_scenario(scenario).scenario.engine
    assert (engine.dtype, engine.gpu_blocks, engine.env) == ("bfloat16", 32, {"A": "1"})


def test_fragments_of_the_checkout_serve_scenarios_elsewhere(scenario: Path) -> None:
    connector = load_scenario(scenario).scenario.arms["tested"].connector
    assert isinstance(connector, SimpleConnector)
    assert connector.mode == "lazy"


def test_sources_name_the_scenario_first_and_then_every_fragment(scenario: Path) -> None:
    sources = [path.name for path in load_scenario(scenario).sources]
    assert sources == ["small.yaml", "simple_lazy.yaml", "a.yaml", "b.yaml"]


def test_fragment_beside_the_scenario_is_found(write: Write, scenario: Path) -> None:
    write("kind: native\n", "scenarios/mine.yaml")
    loaded = load_scenario(scenario, sets=["arms.tested.connector.extends=mine"])
    assert isinstance(loaded.scenario.arms["tested"].connector, NativeConnector)


def test_circle_is_refused_and_shown(write: Write, scenario: Path) -> None:
    write("extends: nodes/b\nmodel: {kind: tiny, family: qwen3}\n", "configs/models/a.yaml")
    write("extends: models/a\nengine: {kind: vllm}\n", "configs/nodes/b.yaml")
    with pytest.raises(UsageError, match=r"circle: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_scenario(scenario)


def test_unknown_fragment_is_refused_with_line_and_the_likely_name(
    write: Write, scenario: Path
) -> None:
    path = write(SCENARIO.replace("simple_lazy", "simple_lzy"))
    with pytest.raises(
        UsageError, match=r"small\.yaml:10: extends: .*did you mean 'connectors/simple_lazy'"
    ):
        load_scenario(path)


def test_error_in_a_fragment_names_the_fragment(write: Write, scenario: Path) -> None:
    write("engine:\n  kind: vllm\n  gpu_block: 8\n", "configs/nodes/b.yaml")
    with pytest.raises(
        UsageError, match=r"configs/nodes/b\.yaml:3: engine\.gpu_block: unknown key"
    ):
        load_scenario(scenario)


def test_extends_must_be_a_name(write: Write, scenario: Path) -> None:
    path = write(SCENARIO.replace("[models/a, nodes/b]", "[models/a, 3]"))
    with pytest.raises(UsageError, match=r"small\.yaml:1: extends: 3 is no fragment"):
        load_scenario(path)

"""Every YAML file in the tree is read by the code that it is written for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from kvbench.plan import make_plan
from kvbench.scenario.connectors import Connector
from kvbench.scenario.fragments import Fragments
from kvbench.scenario.load import load_scenario
from kvbench.scenario.models import Scenario
from kvbench.scenario.tree import Node, Place, merge, parse_yaml, read_yaml

ROOT = Path(__file__).parents[4]
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))
CONNECTORS = sorted((ROOT / "configs" / "connectors").glob("*.yaml"))
PARTIAL = sorted(
    [*(ROOT / "configs/models").glob("*.yaml"), *(ROOT / "configs/nodes").glob("*.yaml")]
)
# Read by other programs, or (the self-test's) by tests of their own.
OTHERS: tuple[str, ...] = (
    ".pre-commit-config.yaml",
    "configs/ci/",
    ".ci/",
    ".buildkite/",
    "harness/kvbench/selftest/",
)

REST = """\
name: rest
title: What a fragment leaves out
model: {kind: tiny, family: qwen3}
engine: {kind: vllm}
arms: {tested: {role: tested}}
stages:
  s: {claims: [alive], workload: {kind: replay, prompts: {lengths_tokens: [300]}}}
"""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def resolved(path: Path) -> Node:
    return Fragments(ROOT / "scenarios" / "any.yaml").resolve(read_yaml(path, name=name_of(path)))


@pytest.mark.parametrize("path", SCENARIOS, ids=name_of)
def test_scenario_loads_and_plans(path: Path) -> None:
    assert make_plan(load_scenario(path)).lives


@pytest.mark.parametrize("path", SCENARIOS, ids=name_of)
def test_scenario_is_named_as_its_file(path: Path) -> None:
    assert load_scenario(path).scenario.name == path.stem


@pytest.mark.parametrize("path", PARTIAL, ids=name_of)
def test_model_or_node_fragment_completes_to_a_scenario(path: Path) -> None:
    rest = parse_yaml(REST, name="rest")
    fragment = resolved(path)
    if fragment.child("model") is not None:
        assert isinstance(rest.value, dict)
        rest = Node({k: v for k, v in rest.value.items() if k != "model"}, rest.place)
    Scenario.model_validate(merge(rest, fragment).plain())


@pytest.mark.parametrize("path", CONNECTORS, ids=name_of)
def test_connector_fragment_completes_to_a_connector(path: Path) -> None:
    fragment = resolved(path)
    if path.stem != "none":
        pool = Node({"host_pool_bytes_total": Node("1GiB", Place("pool"))}, Place("pool"))
        fragment = merge(fragment, pool)
    connector: Connector = TypeAdapter(Connector).validate_python(fragment.plain())
    is_host_memory = getattr(connector, "copies", "device") == "host_memory"
    assert is_host_memory == path.stem.endswith("_host")


def test_every_yaml_file_of_the_tree_is_validated_here() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.yaml", "*.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    known = {name_of(path) for path in (*SCENARIOS, *CONNECTORS, *PARTIAL)}
    unknown = [
        name
        for name in listed.stdout.splitlines()
        if name not in known and not name.startswith(OTHERS)
    ]
    assert unknown == []

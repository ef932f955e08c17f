from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.scenario.connectors import NativeConnector
from kvbench.scenario.load import load_scenario

Write = Callable[..., Path]


def test_value_is_yaml_and_list_items_have_indices(write: Write) -> None:
    scenario = load_scenario(
        write(),
        sets=[
            "engine.dtype=bfloat16",
            "stages.replay.claims.0=hits",
            "stages.replay.workload.concurrency=[1, 4]",
        ],
    ).scenario
    assert scenario.engine.dtype == "bfloat16"
    assert scenario.stages["replay"].claims == ("hits",)
    assert scenario.stages["replay"].workload.concurrency == (1, 4)


def test_key_that_the_file_leaves_out_can_be_set(write: Write) -> None:
    scenario = load_scenario(write(), sets=["needs.gpus=8", "engine.prefix_match_unit_tokens=128"])
    assert scenario.scenario.needs.gpus == 8
    assert scenario.scenario.engine.prefix_match_unit_tokens == 128


def test_whole_connector_can_be_replaced(write: Write) -> None:
    value = "{kind: native, chunk_tokens: 256, host_pool_bytes_total: 1MiB}"
    scenario = load_scenario(write(), sets=[f"arms.tested.connector={value}"]).scenario
    assert isinstance(scenario.arms["tested"].connector, NativeConnector)


def test_connector_can_be_replaced_by_a_fragment_with_a_pool(write: Write) -> None:
    value = "{extends: connectors/native, host_pool_bytes_total: 1MiB}"
    scenario = load_scenario(write(), sets=[f"arms.tested.connector={value}"]).scenario
    assert isinstance(scenario.arms["tested"].connector, NativeConnector)


def test_single_value_wins_over_a_fragment_named_later(write: Write) -> None:
    scenario = load_scenario(
        write(), sets=["arms.tested.connector.copies=host_memory", "extends=[nodes/cpu]"]
    ).scenario
    assert scenario.arms["tested"].connector.kind == "simple"
    assert scenario.engine.env == {"A": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.gpu_block=1", "unknown key 'gpu_block'; did you mean 'gpu_blocks'"),
        ("arms.tsted.role=tested", "no 'tsted' in arms; did you mean 'tested'"),
        ("stages.k1.claims=[hits]", "no 'k1' in stages; known: replay"),
        ("engine.gpu_blocks.x=1", "engine.gpu_blocks is 32 and has no keys below it"),
        ("stages.replay.claims.7=hits", r"'7' is no index \(known: 0 to 0\)"),
        ("top.level=1", "unknown key 'top'; .*known: name, title"),
        ("engine.gpu_blocks", "write path=value"),
        ("engine..x=1", "write path=value"),
        ("engine.args=[a", "not valid YAML"),
    ],
)
def test_path_that_leads_nowhere_is_refused_and_names_the_argument(
    write: Write, override: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_scenario(write(), sets=[override])
    assert str(caught.value).startswith(f"--set {override}")

"""Settings read back from what real servers said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine import effective

GOLDEN = Path(__file__).parents[2] / "golden"
VERSION = "__vllm-0.32.0-cpu"


def read(name: str, *, server_info: bool = True, log: bool = True) -> dict[str, Any]:
    info = GOLDEN / f"server_info_{name}{VERSION}.json"
    return effective.read(
        metrics_page=(GOLDEN / f"metrics_{name}{VERSION}.txt").read_text(),
        server_info=json.loads(info.read_text()) if server_info and info.exists() else None,
        log_text=(GOLDEN / f"log_healthy_{name}{VERSION}.txt").read_text() if log else "",
    )


@pytest.mark.parametrize("server_info", [True, False])
def test_settings_of_a_captured_server(server_info: bool) -> None:
    found = read("simple_eager", server_info=server_info)
    expected = {
        "gpu_blocks": 32,
        "block_tokens": 128,
        "dtype": "float32",
        "max_model_len_tokens": 2048,
        "connector": "HostSimpleCPUOffloadConnector",
        "enable_prefix_caching": True,
        "tensor_parallel": 1,
        "data_parallel": 1,
        "pipeline_parallel": 1,
        "decode_context_parallel": 1,
        "group_block_tokens": [128],
        "hash_block_tokens": 128,
        "kv_cache_size_tokens": 4096,
        "vllm_version": "0.32.0",
        "model_path": "/model/qwen3",
    }
    assert {key: found.get(key) for key in expected} == expected


def test_server_info_adds_what_the_log_does_not_say() -> None:
    found = read("simple_eager")
    assert found["max_num_seqs"] == 16
    assert found["chunk_tokens"] == 2048
    assert found["connector_config"] == {"cpu_bytes_to_use": 67108864}
    assert "max_num_seqs" not in read("simple_eager", server_info=False)


@pytest.mark.parametrize(
    ("name", "connector"),
    [
        ("none", None),
        ("native", "OffloadingConnector"),
        ("simple_lazy", "HostSimpleCPUOffloadConnector"),
    ],
)
@pytest.mark.parametrize("server_info", [True, False])
def test_connector_is_the_one_that_was_created(
    name: str, connector: str | None, server_info: bool
) -> None:
    assert read(name, server_info=server_info)["connector"] == connector


def test_hybrid_has_its_groups_from_the_log() -> None:
    found = read("simple_eager_gdn")
    assert found["group_block_tokens"] == [1152] * 4
    assert found["mamba_block_tokens"] == 1152
    assert found["prefix_match_unit_tokens"] == 128
    assert found["dtype"] == "bfloat16"


def test_without_a_log_nothing_is_guessed_about_groups_or_connector() -> None:
    found = read("none", server_info=False, log=False)
    assert not {"group_block_tokens", "hash_block_tokens", "connector", "dtype"} & set(found)
    assert found["gpu_blocks"] == 32


def test_nothing_to_read_gives_nothing() -> None:
    assert effective.read(metrics_page=None, server_info=None, log_text="") == {}


def test_blocks_of_two_engines_are_divided() -> None:
    page = 'vllm:cache_config_info{engine="0",num_gpu_blocks="64",block_size="16"} 1.0\n'
    info = {"vllm_config": {"parallel_config": {"data_parallel_size": 2}}}
    found = effective.read(metrics_page=page, server_info=info, log_text="")
    assert (found["gpu_blocks"], found["block_tokens"]) == (32, 16)


def test_created_connector_outranks_the_one_that_was_asked_for() -> None:
    info = {"vllm_config": {"kv_transfer_config": {"kv_connector": "Asked"}}}
    log = "Creating v1 connector with name: Made and engine_id: x"
    assert effective.read(metrics_page=None, server_info=info, log_text=log)["connector"] == "Made"


def sources(**changes: Any) -> dict[str, Any]:
    """The server without connector, by `/metrics` and log, with one of them replaced."""
    return effective.read(
        metrics_page=changes.get("page", text("metrics_none")),
        server_info=changes.get("info"),
        log_text=changes.get("log", text("log_healthy_none")),
        version=changes.get("version"),
        max_model_len_tokens=changes.get("max_model_len_tokens"),
    )


def text(name: str) -> str:
    return (GOLDEN / f"{name}{VERSION}.txt").read_text()


def test_torn_log_proves_no_absence_of_a_connector() -> None:
    found = sources(log="INFO: Application startup complete.\n")
    assert not {"connector", "group_block_tokens"} & set(found)


def test_override_that_did_not_take_is_seen() -> None:
    other = text("metrics_none").replace('num_gpu_blocks="32"', 'num_gpu_blocks="64"')
    assert sources(page=other)["gpu_blocks"] == 64


def test_server_info_outranks_the_metrics() -> None:
    info = {"vllm_config": {"cache_config": {"num_gpu_blocks": 16}}}
    assert sources(info=info)["gpu_blocks"] == 16


def test_group_size_under_context_parallelism_is_not_guessed() -> None:
    one, eight = (f"decode_context_parallel_size={size}" for size in (1, 8))
    found = sources(log=text("log_healthy_none").replace(one, eight))
    assert found["decode_context_parallel"] == 8
    assert "group_block_tokens" not in found


def test_what_the_api_said_outranks_the_log() -> None:
    found = sources(max_model_len_tokens=1024, version="0.33.0")
    assert (found["max_model_len_tokens"], found["vllm_version"]) == (1024, "0.33.0")


@pytest.mark.parametrize("body", [{}, {"vllm_config": None}, {"vllm_config": "text"}])
def test_server_info_of_another_shape_is_no_source(body: dict[str, Any]) -> None:
    assert sources(info=body) == sources()

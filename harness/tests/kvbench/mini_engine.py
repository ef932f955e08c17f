"""An engine in memory for tests of the runner: hits by the oracle, answers by a hash of the prompt.

It stands behind the same two faces as a real one (`VllmServer`, `Client`); a test replaces both
names in `kvbench.runner`. What it cannot show is everything that only a real server does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from kvbench import expectations
from kvbench.client import Answer, Completion, ResetAnswer
from kvbench.engine.process import StopResult
from kvbench.errors import EngineError
from kvbench.events import Token
from kvbench.oracle import Oracle
from kvbench.plan_types import PlannedLife
from kvbench.scenario.connectors import Connector
from kvbench.scenario.engines import VllmEngine, parse_engine
from kvbench.scenario.geometry import Geometry, Group

GEOMETRY = Geometry(
    source="tests",
    groups=(Group(kind="full_attention", block_tokens=128, layers=4),),
    hash_block_tokens=128,
    hit_alignment_tokens=128,
    kv_values_per_token=512,
)
_CONNECTOR: TypeAdapter[Connector] = TypeAdapter(Connector)


@dataclass
class Mischief:
    """What a test makes the engine do wrong."""

    die_at_request: int | None = None
    refuse_resets: bool = False
    ignore_external_reset: bool = False
    interrupt_at_request: int | None = None
    damage: Callable[[Completion, int], bool] = lambda _request, _external: False
    """request, external hit tokens -> whether the answer is damaged"""


@dataclass
class MiniEngine:
    """Caches and counters of one life."""

    life: PlannedLife
    mischief: Mischief
    counters: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    is_dead: bool = False

    def __post_init__(self) -> None:
        engine = parse_engine(self.life.engine)
        connector: Connector = _CONNECTOR.validate_python(self.life.connector)
        self.oracle = Oracle(
            expectations.cache_geometry(GEOMETRY, engine),
            expectations.tier_model(GEOMETRY, engine, connector),
        )

    def serve(self, requests: Sequence[Completion]) -> list[Answer]:
        """Serve a wave one after another, which is one of the orders a real engine may take."""
        answers = []
        for request in requests:
            hit = self.oracle.request(tuple(request.prompt), new_tokens=request.new_tokens)
            answers.append(self._answer(request, hit.local.low_tokens, hit.external.low_tokens))
        return answers

    def _answer(self, request: Completion, local: int, external: int) -> Answer:
        self.sent += 1
        if self.mischief.interrupt_at_request == self.sent:
            raise KeyboardInterrupt
        if self.mischief.die_at_request == self.sent:
            self.is_dead = True
        if self.is_dead:
            return _failed(request)
        length = len(request.prompt)
        self.counters.update(
            {
                "prefix_cache_queries": length,
                "prefix_cache_hits": local,
                "external_prefix_cache_queries": length - local,
                "external_prefix_cache_hits": external,
                "prompt_tokens": length,
                "prompt_tokens_cached": local + external,
                "generation_tokens": request.new_tokens,
                "request_success": 1,
                'prompt_tokens_by_source{source="local_compute"}': length - local - external,
                'prompt_tokens_by_source{source="local_cache_hit"}': local,
                'prompt_tokens_by_source{source="external_kv_transfer"}': external,
            }
        )
        tokens = _tokens(request, is_damaged=self.mischief.damage(request, external))
        return Answer(
            request_id=request.request_id,
            sent_s=1000.0 + self.sent,
            ttft_s=0.01,
            latency_s=0.02,
            http_status=200,
            error=None,
            error_kind=None,
            prompt_tokens=length,
            cached_tokens=local + external,
            completion_tokens=request.new_tokens,
            finish_reason="length",
            tokens=tokens,
        )

    def reset(self, *, external: bool) -> ResetAnswer:
        if self.mischief.refuse_resets:
            return ResetAnswer(http_status=200, body='{"success": false}', success=False)
        clears = external and not self.mischief.ignore_external_reset
        self.oracle.reset(external=clears)
        return ResetAnswer(http_status=200, body='{"success": true}', success=True)

    def page(self) -> str:
        has_connector = self.life.connector["kind"] != "none"
        lines = ["process_start_time_seconds 1000.0"]
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            lines += [f"# TYPE vllm:{name} gauge", f'vllm:{name}{{engine="0"}} 0.0']
        names = [
            "prefix_cache_queries",
            "prefix_cache_hits",
            "prompt_tokens",
            "prompt_tokens_cached",
            "generation_tokens",
            "num_preemptions",
        ]
        if has_connector:
            names += ["external_prefix_cache_queries", "external_prefix_cache_hits"]
            lines += [
                "# TYPE vllm:simple_kv_offload_pending_store_blocks gauge",
                'vllm:simple_kv_offload_pending_store_blocks{engine="0"} 0.0',
            ]
        for name in names:
            lines += [f"# TYPE vllm:{name} counter", f"{_series(name)} {self.counters[name]:.1f}"]
        lines.append("# TYPE vllm:request_success counter")
        finished = self.counters["request_success"]
        lines.append(
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {finished:.1f}'
        )
        lines.append("# TYPE vllm:prompt_tokens_by_source counter")
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            value = self.counters[f'prompt_tokens_by_source{{source="{source}"}}']
            lines.append(
                f'vllm:prompt_tokens_by_source_total{{engine="0",source="{source}"}} {value:.1f}'
            )
        return "\n".join(lines) + "\n"


def _series(name: str) -> str:
    return f'vllm:{name}_total{{engine="0"}}'


def _failed(request: Completion) -> Answer:
    return Answer(
        request_id=request.request_id,
        sent_s=1000.0,
        ttft_s=None,
        latency_s=0.0,
        http_status=None,
        error="connection refused",
        error_kind="connection",
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
        finish_reason=None,
        tokens=(),
    )


def _tokens(request: Completion, *, is_damaged: bool) -> tuple[Token, ...]:
    """Tokens and log-probabilities that depend on the whole prompt (and on damage)."""
    dice = random.Random(repr((tuple(request.prompt), is_damaged)))
    tokens = []
    for _ in range(request.new_tokens):
        ids = dice.sample(range(1000), max(request.top_logprobs, 1))
        values = sorted((-6 * dice.random() - 0.5 for _ in ids), reverse=True)
        top: dict[str, float | None] = {
            str(token): value for token, value in zip(ids, values, strict=True)
        }
        tokens.append(Token(ids[0], values[0], top))
    return tuple(tokens)


class MiniServer:
    """Takes the place of VllmServer."""

    mischief = Mischief()
    engines: ClassVar[dict[str, MiniEngine]] = {}

    def __init__(
        self,
        life: PlannedLife,
        engine: VllmEngine,
        *,
        model_path: str,
        log: Path,
        fork_server: object,
        extra_env: dict[str, str],
    ) -> None:
        self.life = life
        self.argv = list(life.argv)
        self.env = dict(extra_env)
        self.log = log
        log.write_text("mini engine\n")
        self.url = f"mini://{life.life}"
        self.pid = None
        self.events_folder = None
        self.engines[self.url] = MiniEngine(life, self.mischief)

    def start(self, on_progress: Callable[[str], None]) -> Any:
        on_progress("mini engine")
        return _Ready(effective=dict(self.life.asked), model_id=self.life.asked["model_id"])

    def check_alive(self) -> None:
        if self.engines[self.url].is_dead:
            raise EngineError("the engine ended (killed): likely out of memory")

    def members(self) -> tuple[int, ...]:
        return ()

    def log_tail(self) -> str:
        return self.log.read_text()

    def stop(self) -> StopResult:
        return StopResult(orderly=True, exit_status=0, stop_s=0.0, survivors=())


@dataclass
class _Ready:
    effective: dict[str, Any]
    model_id: str
    start_s: float = 0.1
    process_start_time_s: float | None = 1000.0


class MiniClient:
    """Takes the place of Client."""

    def __init__(self, url: str, model_id: str, request_limit_s: float) -> None:
        self._engine = MiniServer.engines[url]

    def complete_many(
        self, requests: Sequence[Completion], concurrency: int, *, watch: object
    ) -> list[Answer]:
        return self._engine.serve(requests)

    def metrics_page(self) -> str:
        return self._engine.page()

    def reset_until(self, *, external: bool, limit_s: float) -> list[ResetAnswer]:
        return [self._engine.reset(external=external)]

    def close(self) -> None:
        """Nothing is open."""

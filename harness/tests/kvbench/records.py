"""Writes records as a run would, without a server: a small deterministic engine behind a real plan.

Hits are what the oracle expects, answers a function of the prompt. A test damages a record through two
hooks: `on_request` changes one request before it is counted (hits, tokens, failure), `on_event` changes,
drops or keeps a journal line before it is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from kvbench import expectations
from kvbench.checks.common import HIT_KINDS
from kvbench.events import (
    Event,
    FaultApplied,
    LifeEnded,
    LifeReady,
    LifeStarted,
    PhaseEnded,
    PhaseStarted,
    RequestDone,
    ResetDone,
    ResetScope,
    Role,
    RunEnded,
    RunStarted,
    Sample,
    Snapshot,
    Token,
    WaitDone,
)
from kvbench.expectations import ResetStep, Step, WaveStep
from kvbench.ledger import Ledger, load
from kvbench.oracle import Expected
from kvbench.plan import make_plan
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.record import Record
from kvbench.scenario.load import load_scenario
from kvbench.scenario.models import Scenario, VllmEngine
from kvbench.scenario.resolve import geometry_under
from kvbench.workloads.faults import FaultSwitch  # noqa: F401 - the twin that FaultApplied stands for
from pydantic import TypeAdapter

from kvbench.scenario.connectors import Connector

QUICKSTART = Path(__file__).parents[3] / "scenarios" / "quickstart.yaml"
SMALL = ("stages.replay.workload.new_tokens=8", "stages.replay.workload.concurrency=[1]")
TOP = 20
SCHEMA = 1


@dataclass
class Sent:
    """One request of the simulation, before it is counted and filed; tests change it."""

    life: str
    stage: str
    arm: str
    window: str
    phase: str
    kind: str
    run: int
    concurrency: int
    prompt_id: str
    role: Role
    wave: int
    prompt_tokens: int
    new_tokens: int
    local: int
    external: int
    tokens: list[Token]
    cached: int | None = None
    """None: local + external"""
    engine: str = "0"
    error: str | None = None
    error_kind: str | None = None
    http_status: int = 200
    finish_reason: str | None = "length"
    counted_local: int | None = None
    counted_external: int | None = None
    counted_queries: int | None = None
    preemptions: int = 0

    @property
    def name(self) -> str:
        """Prompt id without its stage."""
        return self.prompt_id.rpartition("/")[2]


OnRequest = Callable[[Sent], None]
OnEvent = Callable[[Event], Event | None]


def keep(event: Event) -> Event:
    """An `on_event` that changes nothing."""
    return event


def leave(sent: Sent) -> None:
    """An `on_request` that changes nothing."""


@cache
def answer(prompt_id: str, new_tokens: int, salt: int = 0) -> tuple[Token, ...]:
    """What the engine says to a prompt: tokens with spread-out log-probabilities."""
    rng = random.Random(f"{prompt_id}/{salt}")
    tokens = []
    for _ in range(new_tokens):
        ids = rng.sample(range(1000), TOP)
        values = sorted((-rng.uniform(0.5, 6.0) for _ in ids), reverse=True)
        top = {str(name): value for name, value in zip(ids, values, strict=True)}
        tokens.append(Token(token_id=ids[0], logprob=values[0], top=dict(top)))
    return tuple(tokens)


def with_noise(tokens: list[Token], size: float, seed: object) -> list[Token]:
    """The same tokens, each log-probability moved by up to `size` nats."""
    rng = random.Random(str(seed))
    moved = []
    for token in tokens:
        top = {
            name: None if value is None else value + rng.uniform(-size, size)
            for name, value in token.top.items()
        }
        moved.append(
            Token(token_id=token.token_id, logprob=top[str(token.token_id)], top=top)
        )
    return moved


def change_one(tokens: list[Token], position: int, by: float) -> list[Token]:
    """One log-probability of one position moved; same tokens."""
    changed = list(tokens)
    old = changed[position]
    name = str(old.token_id)
    top = {**old.top, name: (old.top[name] or 0.0) + by}
    changed[position] = Token(token_id=old.token_id, logprob=top[name], top=top)
    return changed


def flip(tokens: list[Token], position: int) -> list[Token]:
    """From `position` on other tokens, as after a real divergence."""
    other = answer(f"flip/{tokens[position].token_id}", len(tokens), 1)
    second = list(tokens[position].top)[1]
    first = Token(
        token_id=int(second),
        logprob=tokens[position].top[second],
        top=tokens[position].top,
    )
    return [*tokens[:position], first, *other[position + 1 :]]


@dataclass
class _Action:
    """One thing that the simulated runner does."""

    phase: PlannedPhase
    window: str
    is_proof: bool
    requests: list[tuple[str, Role]] = field(default_factory=list)
    reset: ResetScope | None = None
    new_tokens: int = 1
    wave: int = 0
    marks: str = ""
    """opens or closes its window"""


def _hits(expected: Expected, *, from_tier: bool) -> tuple[int, int]:
    """Local and external hits as the oracle expects them; of a range, as much as there can be."""
    local, external, cached = expected.local, expected.external, expected.cached
    if from_tier:
        return min(local.high_tokens, cached.high_tokens - external.high_tokens), external.high_tokens
    return local.high_tokens, min(external.high_tokens, cached.high_tokens - local.high_tokens)


def _actions(life: PlannedLife, has_tier: bool, numbers: Iterator[int]) -> Iterator[_Action]:
    for phase in life.phases:
        if phase.reset != "none" and phase.sentinel_id is not None:
            window = f"w{next(numbers):03d}"
            yield from _proof(phase, phase.sentinel_id, window, has_tier)
        window = f"w{next(numbers):03d}"
        yield _Action(phase, window, False, marks="open")
        for wave, requests in enumerate(phase.waves):
            yield _Action(
                phase,
                window,
                False,
                [(request.prompt_id, request.role) for request in requests],
                new_tokens=phase.new_tokens,
                wave=wave,
            )
        yield _Action(phase, window, False, marks="close")


def _proof(
    phase: PlannedPhase, sentinel: str, window: str, has_tier: bool
) -> Iterator[_Action]:
    wave = 0

    def send() -> _Action:
        nonlocal wave
        wave += 1
        return _Action(phase, window, True, [(sentinel, "sentinel")], wave=wave)

    yield _Action(phase, window, True, marks="open")
    yield send()
    yield send()
    if phase.reset == "all" and has_tier:
        yield _Action(phase, window, True, reset="local")
        yield send()
    yield _Action(phase, window, True, reset=phase.reset)
    yield send()
    yield _Action(phase, window, True, marks="close")


class _Writer:
    def __init__(self, record: Record, on_event: OnEvent) -> None:
        self._record = record
        self._on_event = on_event
        self._ticks = 0

    def now(self) -> float:
        self._ticks += 1
        return 1_700_000_000.0 + self._ticks

    def write(self, event: Event) -> None:
        changed = self._on_event(event)
        if changed is not None:
            self._record.write(changed)


class _Life:
    """Counters of one simulated server."""

    def __init__(
        self, plan: Plan, life: PlannedLife, writer: _Writer, on_request: OnRequest, engines: int
    ) -> None:
        self.plan = plan
        self.life = life
        self.writer = writer
        self.on_request = on_request
        self.engines = [str(number) for number in range(engines)]
        self.has_tier = life.connector["kind"] != "none"
        self.counters: dict[tuple[str, str, str], float] = {}
        self.sent = 0
        for engine in self.engines:
            for name in ("local_queries", "local_hits", "prompt_tokens", "generation_tokens"):
                self.counters[engine, name, ""] = 0.0
            for name in ("prompt_tokens_cached", "preemptions"):
                self.counters[engine, name, ""] = 0.0
            for reason in ("length", "stop", "abort"):
                self.counters[engine, "requests_finished", reason] = 0.0
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
                self.counters[engine, "prompt_tokens_by_source", source] = 0.0
            for name in ("external_queries", "external_hits") if self.has_tier else ():
                self.counters[engine, name, ""] = 0.0
            if self.has_tier:
                self.counters[engine, "simple_save_outcomes", "stored"] = 0.0

    def snapshot(self, window: str, edge: str) -> None:
        labels = {
            "requests_finished": "reason",
            "prompt_tokens_by_source": "source",
            "simple_save_outcomes": "outcome",
        }
        samples = [
            Sample(name, engine, {labels[name]: label} if label else {}, value)
            for (engine, name, label), value in sorted(self.counters.items())
        ]
        samples.append(Sample("process_start_time_s", "", {}, 1_700_000_000.0))
        missing = () if self.has_tier else ("external_queries", "external_hits")
        self.writer.write(
            Snapshot(
                time_s=self.writer.now(),
                life=self.life.life,
                window=window,
                edge="before" if edge == "before" else "after",
                samples=tuple(samples),
                missing=missing,
            )
        )

    def _add(self, sent: Sent, name: str, amount: float, label: str = "") -> None:
        key = (sent.engine, name, label)
        if key in self.counters or name not in ("external_queries", "external_hits"):
            self.counters[key] = self.counters.get(key, 0.0) + amount

    def count(self, sent: Sent) -> None:
        local = sent.local if sent.counted_local is None else sent.counted_local
        external = sent.external if sent.counted_external is None else sent.counted_external
        queries = sent.prompt_tokens if sent.counted_queries is None else sent.counted_queries
        cached = local + external
        twice = 1 if cached + 1 >= sent.prompt_tokens else 0
        self._add(sent, "local_queries", queries)
        self._add(sent, "local_hits", local)
        self._add(sent, "external_queries", sent.prompt_tokens - local)
        self._add(sent, "external_hits", external)
        self._add(sent, "prompt_tokens", sent.prompt_tokens)
        self._add(sent, "generation_tokens", len(sent.tokens))
        self._add(sent, "prompt_tokens_cached", cached)
        self._add(sent, "preemptions", sent.preemptions)
        self._add(sent, "requests_finished", 1, sent.finish_reason or "abort")
        sources = (
            ("local_compute", sent.prompt_tokens - cached),
            ("local_cache_hit", local + twice),
            ("external_kv_transfer", external),
        )
        for source, amount in sources:
            self._add(sent, "prompt_tokens_by_source", amount, source)
        if self.has_tier and cached < sent.prompt_tokens:
            self._add(sent, "simple_save_outcomes", 1, "stored")

    def request(self, action: _Action, prompt_id: str, role: Role, expected: Expected) -> None:
        phase = action.phase
        self.sent += 1
        prompt = self.plan.prompts[prompt_id]
        local, external = _hits(expected, from_tier=not action.is_proof and phase.kind in HIT_KINDS)
        sent = Sent(
            life=self.life.life,
            stage=phase.stage,
            arm=phase.arm,
            window=action.window,
            phase=phase.name,
            kind="reset_proof" if action.is_proof else phase.kind,
            run=phase.run,
            concurrency=1 if action.is_proof else phase.concurrency,
            prompt_id=prompt_id,
            role=role,
            wave=action.wave,
            prompt_tokens=len(prompt),
            new_tokens=action.new_tokens,
            local=local,
            external=external,
            tokens=list(answer(prompt_id, action.new_tokens)),
            engine=self.engines[self.sent % len(self.engines)],
        )
        self.on_request(sent)
        if sent.error is None:
            self.count(sent)
        self._file(sent)

    def _file(self, sent: Sent) -> None:
        is_bad = sent.error is not None
        cached = sent.local + sent.external if sent.cached is None else sent.cached
        self.writer.write(
            RequestDone(
                time_s=self.writer.now(),
                life=sent.life,
                window=sent.window,
                request_id=f"{sent.window}-{sent.prompt_id.replace('/', '.')}-{self.sent}",
                prompt_id=sent.prompt_id,
                role=sent.role,
                wave=sent.wave,
                sent_s=float(self.sent),
                ttft_s=None if is_bad else 0.01,
                latency_s=0.05,
                http_status=sent.http_status,
                error=sent.error,
                error_kind=sent.error_kind,
                prompt_tokens=None if is_bad else sent.prompt_tokens,
                cached_tokens=None if is_bad else cached,
                completion_tokens=None if is_bad else len(sent.tokens),
                finish_reason=None if is_bad else sent.finish_reason,
                tokens=() if is_bad else tuple(sent.tokens),
            )
        )
        if sent.concurrency == 1:
            mark = f"{sent.window}-{sent.prompt_id.replace('/', '.')}-{self.sent}"
            self.snapshot(f"{sent.window}/{mark}", "after")

    def play(self, actions: list[_Action], expected: list[tuple[Expected, ...]]) -> None:
        answers = iter(expected)
        proofs = 0
        for action in actions:
            if action.marks == "open":
                proofs += action.is_proof
                self._open(action, proofs)
            elif action.marks == "close":
                self._close(action)
            elif action.reset is not None:
                self._reset(action)
            else:
                for (prompt, role), hit in zip(action.requests, next(answers), strict=True):
                    self.request(action, prompt, role, hit)

    def _open(self, action: _Action, number: int) -> None:
        phase = action.phase
        self.writer.write(
            PhaseStarted(
                time_s=self.writer.now(),
                life=self.life.life,
                stage=phase.stage,
                arm=phase.arm,
                window=action.window,
                phase=f"reset-{number}" if action.is_proof else phase.name,
                kind="reset_proof" if action.is_proof else phase.kind,
                run=number if action.is_proof else phase.run,
                concurrency=1 if action.is_proof else phase.concurrency,
            )
        )
        self.snapshot(action.window, "before")

    def _close(self, action: _Action) -> None:
        if self.has_tier and not action.is_proof:
            self.writer.write(
                WaitDone(
                    time_s=self.writer.now(),
                    life=self.life.life,
                    window=action.window,
                    condition="stores done",
                    reached=True,
                    waited_s=0.1,
                    detail="",
                )
            )
        self.snapshot(action.window, "after")
        self.writer.write(
            PhaseEnded(time_s=self.writer.now(), window=action.window, outcome="complete")
        )

    def _reset(self, action: _Action) -> None:
        assert action.reset is not None
        self.writer.write(
            ResetDone(
                time_s=self.writer.now(),
                life=self.life.life,
                window=action.window,
                scope=action.reset,
                answers=('{"success":true}',),
                success=True,
                waited_s=0.0,
            )
        )


def _expected(plan: Plan, life: PlannedLife, actions: list[_Action]) -> list[tuple[Expected, ...]]:
    steps: list[Step] = []
    for action in actions:
        if action.reset is not None:
            steps.append(ResetStep(external=action.reset == "all"))
        elif action.requests:
            prompts = tuple((name, plan.prompts[name]) for name, _ in action.requests)
            concurrency = 1 if action.is_proof else action.phase.concurrency
            steps.append(WaveStep(prompts, action.new_tokens, concurrency))
    engine = VllmEngine.model_validate(life.engine)
    model = Scenario.model_validate(plan.scenario).model
    connector: Connector = TypeAdapter(Connector).validate_python(life.connector)
    predicted = expectations.predict(
        steps,
        geometry=geometry_under(model.geometry, engine),
        engine=engine,
        connector=connector,
    )
    return [each for each in predicted if each is not None]


def write(
    directory: Path,
    *,
    sets: tuple[str, ...] = SMALL,
    scenario: Path = QUICKSTART,
    arm: tuple[str, ...] = (),
    on_request: OnRequest = leave,
    on_event: OnEvent = keep,
    engines: int = 1,
    seal: bool = True,
    ended: RunEnded | None = None,
) -> Path:
    """Write the record of a whole simulated run into `directory`, which must not exist."""
    plan = make_plan(load_scenario(scenario, sets=sets, stage=None, arm=arm))
    record = Record(directory)
    writer = _Writer(record, on_event)
    record.write_plan(plan)
    writer.write(_run_started(directory, plan))
    numbers = iter(range(1, 10_000))
    for life in plan.lives:
        _play_life(plan, life, writer, numbers, on_request, engines)
    end = ended or RunEnded(time_s=writer.now(), outcome="complete")
    if seal:
        record.close(end)
    return directory


def _run_started(directory: Path, plan: Plan) -> RunStarted:
    return RunStarted(
        time_s=1_700_000_000.0,
        schema=SCHEMA,
        kvbench_version="0.1.0",
        run_id=directory.name,
        scenario_name=plan.scenario["name"],
        command=("kvbench", "run"),
        source={"commit": "0123abc", "dirty": False, "path": None},
        machine={"cpu": "test cpu", "cores": 2, "gpus": [], "python": "3.11"},
    )


def _play_life(
    plan: Plan,
    life: PlannedLife,
    writer: _Writer,
    numbers: Iterator[int],
    on_request: OnRequest,
    engines: int,
) -> None:
    server = _Life(plan, life, writer, on_request, engines)
    actions = list(_actions(life, server.has_tier, numbers))
    writer.write(
        LifeStarted(
            time_s=writer.now(),
            life=life.life,
            argv=life.argv,
            env=life.env,
            python="managed:cpu",
            vllm_version="0.32.0",
            start_mode="plain",
            url="http://127.0.0.1:8000",
            pid=1,
            log=f"artifacts/{life.life}/server.log",
        )
    )
    writer.write(
        LifeReady(
            time_s=writer.now(),
            life=life.life,
            start_s=30.0,
            model_id="tiny-qwen3",
            process_start_time_s=1_700_000_000.0,
            effective=dict(life.asked),
            asked=life.asked,
        )
    )
    server.play(actions, _expected(plan, life, actions))
    writer.write(
        LifeEnded(
            time_s=writer.now(),
            life=life.life,
            orderly=True,
            exit_status=0,
            stop_s=1.0,
            survivors=(),
        )
    )


def replace(event: Event, **changes: Any) -> Event:
    """A copy of an event with other values."""
    return msgspec.structs.replace(event, **changes)


def applied(window: str, life: str = "life-2") -> FaultApplied:
    """The line of a twin that damaged something."""
    return FaultApplied(time_s=1.0, life=life, window=window, detail={"mode": "zero_block"})


def ledger(directory: Path, **options: Any) -> Ledger:
    """Write a record and read it."""
    return load(write(directory, **options))

"""A simulated engine: what the runner would do with it, and how it counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sim_answers import OnEvent, OnRequest, Sent, answer

from kvbench.checks.common import HIT_KINDS
from kvbench.events import (
    Event,
    PhaseEnded,
    PhaseStarted,
    RequestDone,
    ResetDone,
    ResetScope,
    Role,
    Sample,
    Snapshot,
    WaitDone,
)
from kvbench.oracle import Expected
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.record import Record


@dataclass
class Action:
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
        return min(
            local.high_tokens, cached.high_tokens - external.high_tokens
        ), external.high_tokens
    return local.high_tokens, min(external.high_tokens, cached.high_tokens - local.high_tokens)


def actions_of(life: PlannedLife, has_tier: bool, numbers: Iterator[int]) -> Iterator[Action]:
    for phase in life.phases:
        if phase.reset != "none" and phase.sentinel_id is not None:
            window = f"w{next(numbers):03d}"
            yield from _proof(phase, phase.sentinel_id, window, has_tier)
        window = f"w{next(numbers):03d}"
        yield Action(phase, window, False, marks="open")
        for wave, requests in enumerate(phase.waves):
            yield Action(
                phase,
                window,
                False,
                [(request.prompt_id, request.role) for request in requests],
                new_tokens=phase.new_tokens,
                wave=wave,
            )
        yield Action(phase, window, False, marks="close")


def _proof(phase: PlannedPhase, sentinel: str, window: str, has_tier: bool) -> Iterator[Action]:
    wave = 0

    def send() -> Action:
        nonlocal wave
        wave += 1
        return Action(phase, window, True, [(sentinel, "sentinel")], wave=wave)

    yield Action(phase, window, True, marks="open")
    yield send()
    yield send()
    if phase.reset == "all" and has_tier:
        yield Action(phase, window, True, reset="local")
        yield send()
    yield Action(phase, window, True, reset=phase.reset)
    yield send()
    yield Action(phase, window, True, marks="close")


class Writer:
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


class Life:
    """Counters of one simulated server."""

    def __init__(
        self, plan: Plan, life: PlannedLife, writer: Writer, on_request: OnRequest, engines: int
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
            ("local_cache_hit", local),
            ("external_kv_transfer", external),
        )
        for source, amount in sources:
            self._add(sent, "prompt_tokens_by_source", amount, source)
        if self.has_tier and cached < sent.prompt_tokens:
            self._add(sent, "simple_save_outcomes", 1, "stored")

    def request(self, action: Action, prompt_id: str, role: Role, expected: Expected) -> None:
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

    def play(self, actions: list[Action], expected: list[tuple[Expected, ...]]) -> None:
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

    def _open(self, action: Action, number: int) -> None:
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

    def _close(self, action: Action) -> None:
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

    def _reset(self, action: Action) -> None:
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

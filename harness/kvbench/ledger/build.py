"""Reads a record into a ledger.

Snapshots are matched in journal order within a life: the delta of a request at concurrency 1 is the
snapshot that follows it minus the one before it, whatever window that belonged to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ValidationError

from kvbench.errors import RecordError
from kvbench.events import (
    AgentRunDone,
    AnyEvent,
    EvaluationDone,
    FaultApplied,
    FaultSwitched,
    LifeEnded,
    LifeFailed,
    LifeReady,
    LifeStarted,
    MemorySampled,
    Note,
    PhaseEnded,
    PhaseStarted,
    RequestDone,
    ResetDone,
    RunEnded,
    SampleDone,
    Skipped,
    Snapshot,
    WaitDone,
)
from kvbench.ledger.aiperf import AgentRun, read_agent_run
from kvbench.ledger.counters import GAUGES, Deltas, difference
from kvbench.ledger.expected import Happening, expected_hits
from kvbench.ledger.facts import RESET_PROOF, Ledger, Life, Request, Reset, Seal, Window
from kvbench.ledger.kv_event_facts import KvEvents
from kvbench.ledger.kv_events import NAME as KV_EVENTS
from kvbench.ledger.kv_events import read_kv_events
from kvbench.oracle import Expected
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.record import ARTIFACTS, StoredRecord, broken_seal
from kvbench.scenario.models import Scenario


@dataclass
class _OpenLife:
    line: int
    started: LifeStarted
    ready: tuple[int, LifeReady] | None = None
    failed: list[tuple[int, LifeFailed]] = field(default_factory=list)
    ended: tuple[int, LifeEnded] | None = None
    last_snapshot: Snapshot | None = None
    happenings: list[tuple[str, Happening]] = field(default_factory=list)
    windows: list[str] = field(default_factory=list)
    applied: list[tuple[int, FaultApplied]] = field(default_factory=list)
    memory: list[tuple[int, MemorySampled]] = field(default_factory=list)


def _never_started(line: int, failed: LifeFailed) -> _OpenLife:
    """A life whose start failed before there was a command to file."""
    started = LifeStarted(
        time_s=failed.time_s,
        life=failed.life,
        argv=(),
        env={},
        python="",
        vllm_version=None,
        start_mode="not started",
        url="",
        pid=None,
        log="",
    )
    return _OpenLife(line, started)


@dataclass
class _OpenWindow:
    line: int
    started: PhaseStarted
    planned: PlannedPhase | None
    has_connector: bool
    requests: list[tuple[int, RequestDone]] = field(default_factory=list)
    deltas: dict[str, Deltas] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    waits: list[tuple[int, WaitDone]] = field(default_factory=list)
    switched: list[tuple[int, FaultSwitched]] = field(default_factory=list)
    applied: list[tuple[int, FaultApplied]] = field(default_factory=list)
    first: Snapshot | None = None
    last: Snapshot | None = None
    gap: Deltas | None = None
    ended: PhaseEnded | None = None
    samples: list[tuple[int, SampleDone]] = field(default_factory=list)
    evaluations: list[tuple[int, EvaluationDone]] = field(default_factory=list)
    agent_run: AgentRun | None = None


def _of_tool(window: _OpenWindow, line: int, event: AnyEvent, directory: Path) -> None:
    """Take in what an evaluation or AIPerf did in a window."""
    match event:
        case SampleDone():
            window.samples.append((line, event))
        case EvaluationDone():
            window.evaluations.append((line, event))
        case AgentRunDone():
            window.agent_run = read_agent_run(directory / event.artifacts, event, line)


def _of_life(life: _OpenLife, line: int, event: AnyEvent) -> None:
    """Take in what a life that has begun keeps for itself."""
    match event:
        case LifeReady():
            life.ready = (line, event)
        case LifeEnded():
            life.ended = (line, event)
        case FaultApplied():
            life.applied.append((line, event))
        case MemorySampled():
            life.memory.append((line, event))


class _Reader:
    """Sorts events into lives and windows; one pass, no judgement."""

    def __init__(self, plan: Plan | None, scenario: Scenario | None, directory: Path) -> None:
        self.directory = directory
        self.plan = plan
        self.scenario = scenario
        self.lives: dict[str, _OpenLife] = {}
        self.windows: dict[str, _OpenWindow] = {}
        self.skipped: list[tuple[int, Skipped]] = []
        self.notes: list[tuple[int, Note]] = []
        self.ended: RunEnded | None = None

    def planned_life(self, name: str) -> PlannedLife | None:
        lives = self.plan.lives if self.plan is not None else ()
        return next((life for life in lives if life.life == name), None)

    def _planned_phase(self, event: PhaseStarted) -> PlannedPhase | None:
        life = self.planned_life(event.life)
        for phase in life.phases if life is not None else ():
            if (phase.stage, phase.arm, phase.name, phase.run, phase.concurrency) == (
                event.stage,
                event.arm,
                event.phase,
                event.run,
                event.concurrency,
            ):
                return phase
        return None

    def _has_connector(self, event: PhaseStarted) -> bool:
        if self.scenario is not None and event.arm in self.scenario.arms:
            return self.scenario.arms[event.arm].connector.kind != "none"
        return True

    def read(self, line: int, event: AnyEvent) -> None:
        """Take one event in."""
        life = self.lives.get(getattr(event, "life", None) or "")
        if life is not None:
            _of_life(life, line, event)
        match event:
            case LifeStarted():
                self.lives[event.life] = _OpenLife(line, event)
            case LifeFailed():
                self.lives.setdefault(event.life, _never_started(line, event))
                self.lives[event.life].failed.append((line, event))
            case PhaseStarted():
                self.windows[event.window] = _OpenWindow(
                    line, event, self._planned_phase(event), self._has_connector(event)
                )
                if event.life in self.lives:
                    self.lives[event.life].windows.append(event.window)
            case Snapshot():
                self._snapshot(event)
            case Skipped():
                self.skipped.append((line, event))
            case Note():
                self.notes.append((line, event))
            case RunEnded():
                self.ended = event
            case _:
                self._inside_window(line, event)

    def _inside_window(self, line: int, event: AnyEvent) -> None:
        window = self.windows.get(getattr(event, "window", ""))
        if window is None:
            return
        life = self.lives.get(window.started.life)
        match event:
            case RequestDone():
                window.requests.append((line, event))
                planned = window.planned.new_tokens if window.planned is not None else 1
                sent = (line, event, window.started.concurrency, planned)
                if life is not None:
                    life.happenings.append((event.window, sent))
            case ResetDone():
                window.resets.append(Reset(event, line))
                if life is not None:
                    life.happenings.append((event.window, event))
            case WaitDone():
                window.waits.append((line, event))
            case FaultSwitched():
                window.switched.append((line, event))
            case FaultApplied():
                window.applied.append((line, event))
            case PhaseEnded():
                window.ended = event
            case _:
                _of_tool(window, line, event, self.directory)

    def _snapshot(self, event: Snapshot) -> None:
        life = self.lives.get(event.life)
        previous = life.last_snapshot if life is not None else None
        if life is not None:
            life.last_snapshot = event
        name, _, request_id = event.window.partition("/")
        window = self.windows.get(event.window)
        if window is None:
            name, _, request_id = event.window.rpartition("/")
            window = self.windows.get(name)
        else:
            request_id = ""
        if window is None:
            return
        if request_id and previous is not None:
            window.deltas[request_id] = difference(previous, event)
        if window.first is None:
            window.first = event
            window.gap = difference(previous, event) if previous is not None else None
        else:
            window.last = event


def _tokens(deltas: Deltas | None, name: str) -> int | None:
    value = deltas.total(name) if deltas is not None else None
    return None if value is None else round(value)


def _external(deltas: Deltas | None, *, has_connector: bool) -> int | None:
    """External hit tokens; 0 without a connector, because then there is no external tier."""
    found = _tokens(deltas, "external_hits")
    return 0 if found is None and deltas is not None and not has_connector else found


def _window(opened: _OpenWindow, expected: dict[int, Expected], lengths: dict[str, int]) -> Window:
    requests = []
    for line, done in opened.requests:
        delta = opened.deltas.get(done.request_id)
        requests.append(
            Request(
                done=done,
                line=line,
                delta=delta,
                local=_tokens(delta, "local_hits"),
                external=_external(delta, has_connector=opened.has_connector),
                expected=expected.get(line),
                planned_tokens=lengths.get(done.prompt_id),
            )
        )
    event = opened.started
    outcome: Literal["complete", "aborted", "open"] = (
        opened.ended.outcome if opened.ended is not None else "open"
    )
    both = opened.first is not None and opened.last is not None
    return Window(
        id=event.window,
        life=event.life,
        stage=event.stage,
        arm=event.arm,
        phase=event.phase,
        kind=event.kind,
        run=event.run,
        concurrency=event.concurrency,
        line=opened.line,
        has_connector=opened.has_connector,
        planned=opened.planned,
        requests=tuple(requests),
        resets=tuple(opened.resets),
        waits=tuple(opened.waits),
        switched=tuple(opened.switched),
        applied=tuple(opened.applied),
        deltas=difference(opened.first, opened.last)
        if both and opened.first and opened.last
        else None,
        gap=opened.gap,
        missing=opened.last.missing if opened.last is not None else (),
        outcome=outcome,
        reason=opened.ended.reason if opened.ended is not None else None,
        gauges=tuple(s for s in opened.last.samples if s.name in GAUGES) if opened.last else (),
        samples=tuple(opened.samples),
        evaluations=tuple(opened.evaluations),
        agent_run=opened.agent_run,
    )


def _life(name: str, opened: _OpenLife, reader: _Reader) -> Life:
    planned = reader.planned_life(name)
    windows = [reader.windows[window].started for window in opened.windows]
    phases = planned.phases if planned is not None else ()
    arms = planned.arms if planned is not None else tuple(window.arm for window in windows)
    stages = [phase.stage for phase in phases] + [window.stage for window in windows]
    return Life(
        id=name,
        line=opened.line,
        started=opened.started,
        ready=opened.ready,
        failed=tuple(opened.failed),
        ended=opened.ended,
        planned=planned,
        arms=tuple(dict.fromkeys(arms)),
        stages=tuple(dict.fromkeys(stages)),
        applied=tuple(opened.applied),
        memory=tuple(opened.memory),
    )


def _seal(directory: Path) -> Seal:
    try:
        files = tuple(broken_seal(directory))
    except (RecordError, ValueError, KeyError):  # none, or its writing was cut off
        return Seal(state="none", files=())
    return Seal(state="broken" if files else "whole", files=files)


def _plan(stored: StoredRecord) -> Plan | None:
    try:
        return stored.plan()
    except (RecordError, msgspec.DecodeError):  # none, or its writing was cut off
        return None


def _scenario(plan: Plan | None, directory: Path) -> Scenario | None:
    try:
        return Scenario.model_validate(plan.scenario) if plan is not None else None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "scenario"
        reason = f"this kvbench cannot read its scenario: {place}: {first['msg']}"
        raise RecordError(f"{directory}: {reason}") from error


def _kv_events(directory: Path, reader: _Reader) -> dict[str, KvEvents] | None:
    resets = {
        name: [each.done.scope if each.done.success else None for each in window.resets]
        for name, window in reader.windows.items()
    }
    paths = {life: directory / ARTIFACTS / life / KV_EVENTS for life in reader.lives}
    found = {life: read_kv_events(path, resets) for life, path in paths.items() if path.is_file()}
    return found or None


def load(directory: Path) -> Ledger:
    """Facts of the record in `directory`; RecordError where it is no record of this schema."""
    stored = StoredRecord(directory)
    run = stored.started()
    plan = _plan(stored)
    scenario = _scenario(plan, directory)
    reader = _Reader(plan, scenario, directory)
    for line, event in stored.events():
        reader.read(line, event)
    prompts = plan.prompts if plan is not None else {}
    lengths = {name: len(tokens) for name, tokens in prompts.items()}
    expected: dict[int, Expected] = {}
    for name, opened in reader.lives.items():
        planned = reader.planned_life(name)
        if plan is not None and planned is not None:
            ready = opened.ready[1] if opened.ready is not None else None
            expected |= expected_hits(opened.happenings, plan=plan, life=planned, ready=ready)
    return Ledger(
        run=run,
        ended=reader.ended,
        seal=_seal(directory),
        plan=plan,
        scenario=scenario,
        lives=tuple(_life(name, opened, reader) for name, opened in reader.lives.items()),
        windows=tuple(_window(opened, expected, lengths) for opened in reader.windows.values()),
        skipped=tuple(reader.skipped),
        notes=tuple(reader.notes),
        kv_events=_kv_events(directory, reader),
    )


__all__ = ["RESET_PROOF", "load"]

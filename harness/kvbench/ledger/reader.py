"""Sorts the events of a journal into lives and windows; one pass, no judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

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
from kvbench.ledger.counters import Deltas, difference
from kvbench.ledger.expected import Happening, ToolRan
from kvbench.ledger.facts import Reset
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.scenario.models import Scenario


@dataclass
class OpenLife:
    """A life as far as it has been read."""

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


def _never_started(line: int, failed: LifeFailed) -> OpenLife:
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
    return OpenLife(line, started)


@dataclass
class OpenWindow:
    """A window as far as it has been read."""

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


def _of_tool(window: OpenWindow, line: int, event: AnyEvent, directory: Path) -> None:
    """Take in what an evaluation or AIPerf did in a window."""
    match event:
        case SampleDone():
            window.samples.append((line, event))
        case EvaluationDone():
            window.evaluations.append((line, event))
        case AgentRunDone():
            window.agent_run = read_agent_run(directory / event.artifacts, event, line)


def _of_life(life: OpenLife, line: int, event: AnyEvent) -> None:
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


class Reader:
    """Sorts events into lives and windows; one pass, no judgement."""

    def __init__(self, plan: Plan | None, scenario: Scenario | None, directory: Path) -> None:
        self.directory = directory
        self.plan = plan
        self.scenario = scenario
        self.lives: dict[str, OpenLife] = {}
        self.windows: dict[str, OpenWindow] = {}
        self.skipped: list[tuple[int, Skipped]] = []
        self.notes: list[tuple[int, Note]] = []
        self.ended: RunEnded | None = None

    def planned_life(self, name: str) -> PlannedLife | None:
        """What the plan says of a life; None where it has none of that name."""
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
                self.lives[event.life] = OpenLife(line, event)
            case LifeFailed():
                self.lives.setdefault(event.life, _never_started(line, event))
                self.lives[event.life].failed.append((line, event))
            case PhaseStarted():
                self.windows[event.window] = OpenWindow(
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
                if life is not None:  # the plan does not hold the prompts of another program
                    is_own = event.role != "sample"
                    life.happenings.append((event.window, sent if is_own else ToolRan()))
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
            case SampleDone() | EvaluationDone() | AgentRunDone():
                _of_tool(window, line, event, self.directory)
                if life is not None:
                    life.happenings.append((event.window, ToolRan()))

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

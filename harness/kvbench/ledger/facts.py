"""The facts of a run, as checks and reports see them: frozen, without a judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvbench.events import (
    EvaluationDone,
    FaultApplied,
    FaultSwitched,
    LifeEnded,
    LifeFailed,
    LifeReady,
    LifeStarted,
    MemorySampled,
    Note,
    RequestDone,
    ResetDone,
    RunEnded,
    RunStarted,
    Sample,
    SampleDone,
    Skipped,
    WaitDone,
)
from kvbench.ledger.aiperf import AgentRun
from kvbench.ledger.counters import Deltas
from kvbench.ledger.kv_event_facts import KvEvents
from kvbench.oracle import Expected
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.scenario.engines import parse_engine
from kvbench.scenario.models import Claim, Scenario
from kvbench.scenario.resolve import geometry_under

JOURNAL = "journal.jsonl"
RESET_PROOF = "reset_proof"


@dataclass(frozen=True, slots=True)
class Seal:
    """Whether the files are those that the run wrote."""

    state: Literal["whole", "broken", "none"]
    files: tuple[str, ...]
    """that differ from the seal, were added or are gone"""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Request:
    """One answered request, what the counters say about it, and what was to be expected."""

    done: RequestDone
    line: int
    delta: Deltas | None
    """counters around this request alone; None where others ran beside it"""
    local: int | None
    """local hit tokens by the engine's counters"""
    external: int | None
    """external hit tokens by the counters; 0 by definition in an arm without a connector"""
    expected: Expected | None
    planned_tokens: int | None = None
    """length of the prompt in the plan; None for a prompt that is not in it"""

    @property
    def is_as_sent(self) -> bool:
        """False where the engine says that it got another number of tokens than was planned."""
        said = self.done.prompt_tokens
        return said is None or self.planned_tokens in (None, said)

    @property
    def prompt_id(self) -> str:
        """Id of the prompt in the plan."""
        return self.done.prompt_id

    @property
    def cached(self) -> int | None:
        """Cached tokens by the answer's own usage."""
        return self.done.cached_tokens

    @property
    def where(self) -> str:
        """Place in the record."""
        return f"{JOURNAL}:{self.line}"


@dataclass(frozen=True, slots=True)
class Reset:
    """One reset, with its place in the journal."""

    done: ResetDone
    line: int


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Window:
    """What happened between two snapshots."""

    id: str
    life: str
    stage: str
    arm: str
    phase: str
    kind: str
    run: int
    concurrency: int
    line: int
    has_connector: bool
    planned: PlannedPhase | None
    requests: tuple[Request, ...]
    resets: tuple[Reset, ...]
    waits: tuple[tuple[int, WaitDone], ...]
    switched: tuple[tuple[int, FaultSwitched], ...]
    applied: tuple[tuple[int, FaultApplied], ...]
    deltas: Deltas | None
    gap: Deltas | None
    """what moved between the last snapshot of the life and this window's first one"""
    missing: tuple[str, ...]
    """canonical names that the window's last snapshot did not have"""
    outcome: Literal["complete", "aborted", "open"]
    reason: str | None
    gauges: tuple[Sample, ...] = ()
    """states that the window's last snapshot shows, for example simple_used_blocks"""
    samples: tuple[tuple[int, SampleDone], ...] = ()
    """of an evaluation"""
    evaluations: tuple[tuple[int, EvaluationDone], ...] = ()
    """rounds of an evaluation that came to their end"""
    agent_run: AgentRun | None = None
    """what AIPerf left behind"""

    @property
    def is_complete(self) -> bool:
        """True where the numbers may be used."""
        return self.outcome == "complete"

    @property
    def is_tool_driven(self) -> bool:
        """True where another program sent requests, of which there may be no RequestDone."""
        return bool(self.samples or self.evaluations or self.agent_run)

    @property
    def is_proof(self) -> bool:
        """True for the window of a reset's proof."""
        return self.kind == RESET_PROOF

    @property
    def label(self) -> str:
        """Phase name, with the concurrency where it is above 1."""
        mark = f"c{self.concurrency}"
        if self.concurrency == 1 or mark in self.phase:
            return self.phase
        return f"{self.phase} {mark}"

    @property
    def where(self) -> str:
        """Place of its first line in the record."""
        return f"{JOURNAL}:{self.line}"

    @property
    def scored(self) -> tuple[Request, ...]:
        """Requests whose answers are judged."""
        return tuple(request for request in self.requests if request.done.role == "scored")


@dataclass(frozen=True, slots=True)
class Life:
    """One server process."""

    id: str
    line: int
    started: LifeStarted
    ready: tuple[int, LifeReady] | None
    failed: tuple[tuple[int, LifeFailed], ...]
    ended: tuple[int, LifeEnded] | None
    planned: PlannedLife | None
    arms: tuple[str, ...]
    stages: tuple[str, ...]
    applied: tuple[tuple[int, FaultApplied], ...] = ()
    """faults that the server says it applied, at any time"""
    memory: tuple[tuple[int, MemorySampled], ...] = ()
    """of its process tree, when each window closed"""

    @property
    def arm_words(self) -> str:
        """Its arms, for a finding."""
        return "+".join(self.arms) or "-"

    @property
    def stage_words(self) -> str:
        """Its stages, for a finding."""
        return "+".join(self.stages) or "-"


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Ledger:
    """All facts of one record."""

    run: RunStarted
    ended: RunEnded | None
    seal: Seal
    plan: Plan | None
    scenario: Scenario | None
    lives: tuple[Life, ...]
    windows: tuple[Window, ...]
    """in the order in which they began"""
    skipped: tuple[tuple[int, Skipped], ...]
    notes: tuple[tuple[int, Note], ...]
    kv_events: Mapping[str, KvEvents] | None = None
    """by life; None where no life published any"""

    @property
    def is_interrupted(self) -> bool:
        """True where the run did not reach its end."""
        return (
            self.ended is None or self.seal.state == "none" or self.ended.outcome == "interrupted"
        )

    def role(self, arm: str) -> str:
        """`control` or `tested`; an arm that the scenario does not have counts as tested."""
        if self.scenario is None or arm not in self.scenario.arms:
            return "tested"
        return self.scenario.arms[arm].role

    def claims(self, stage: str) -> frozenset[Claim]:
        """What a stage sets out to prove."""
        if self.scenario is None or stage not in self.scenario.stages:
            return frozenset()
        return frozenset(self.scenario.stages[stage].claims)

    def measured(self, stage: str, arm: str) -> tuple[Window, ...]:
        """Complete windows of a stage under an arm, without the proofs of resets."""
        return tuple(
            window
            for window in self.windows
            if (window.stage, window.arm) == (stage, arm)
            and window.is_complete
            and not window.is_proof
        )

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(stage, arm) in the order in which they first ran."""
        return tuple(dict.fromkeys((window.stage, window.arm) for window in self.windows))

    def control_of(self, stage: str) -> str | None:
        """The control arm that ran in a stage, if there is one."""
        for other, arm in self.pairs:
            if other == stage and self.role(arm) == "control":
                return arm
        return None

    def hit_step_tokens(self, window: Window) -> int | None:
        """Step in which hits of a window grow, where the model declares it."""
        life = self.life(window.life)
        if self.scenario is None or life is None or life.planned is None:
            return None
        engine = parse_engine(life.planned.engine)
        geometry = geometry_under(self.scenario.model.geometry, engine)
        return geometry.hit_alignment_tokens if geometry is not None else None

    def life(self, name: str) -> Life | None:
        """A life by its id."""
        return next((life for life in self.lives if life.id == name), None)

"""A scenario turned into a plan: server lives, their commands, and every phase and prompt.

Pure: no server, no clock. What cannot work is refused here, before minutes are spent on a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kvbench import plan_rules
from kvbench.engine import command, fake_command
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.scenario.engines import FakeEngine, FakeFault, ServedEngine
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.scenario.load import Loaded
from kvbench.scenario.models import Arm, FaultPlan, Scenario, Stage
from kvbench.scenario.replay import Prompts
from kvbench.scenario.resolve import arms_of, engine_of, geometry_under
from kvbench.workloads.gsm8k.planning import Gsm8kPlanner
from kvbench.workloads.prompts import PromptBook
from kvbench.workloads.replay_plan import ReplayPlanner
from kvbench.workloads.room import Room


@dataclass(frozen=True)
class Cell:
    """One stage under one arm."""

    stage_name: str
    stage: Stage
    arm_name: str
    arm: Arm
    engine: ServedEngine

    @property
    def faults(self) -> tuple[FaultPlan | FakeFault, ...]:
        """Return the faults that come and go with phases."""
        passing = self.engine.faults if isinstance(self.engine, FakeEngine) else ()
        return (*self.arm.faults, *(fault for fault in passing if fault.phase is not None))

    @property
    def life_key(self) -> bytes:
        """Return what makes two cells share a server: engine, connector and faults."""
        return msgspec.json.encode(
            [
                self.engine.model_dump(mode="json"),
                self.arm.connector.model_dump(mode="json"),
                [fault.model_dump(mode="json") for fault in self.arm.faults],
            ],
            order="sorted",
        )


def make_plan(loaded: Loaded) -> Plan:
    """Return the plan of a scenario; raises UsageError for what can prove nothing."""
    scenario = loaded.scenario
    lives: dict[bytes, list[tuple[Cell, tuple[PlannedPhase, ...]]]] = {}
    prompts: dict[str, tuple[int, ...]] = {}
    warnings: list[str] = []
    books: dict[str, PromptBook] = {}
    for cell in _cells(scenario):
        plan_rules.refuse(loaded, cell.stage_name, cell.arm_name, cell.engine)
        planner = _planner(scenario, cell, books)
        phases = planner.phases()
        plan_rules.refuse_faults(
            loaded, cell.stage_name, cell.arm_name, phases, books[cell.stage_name].scored
        )
        lives.setdefault(cell.life_key, []).append((cell, phases))
        warnings += planner.warnings
        lengths = {name: len(tokens) for name, tokens in books[cell.stage_name].tokens.items()}
        warnings += plan_rules.warn(
            scenario, cell.stage_name, cell.arm_name, cell.engine, phases, lengths
        )
    for book in books.values():
        prompts |= book.tokens
    return Plan(
        scenario=loaded.resolved,
        lives=tuple(
            _life(f"life-{number}", scenario, cells)
            for number, cells in enumerate(lives.values(), start=1)
        ),
        prompts=prompts,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _cells(scenario: Scenario) -> Iterator[Cell]:
    for stage_name, stage in scenario.stages.items():
        for arm_name in arms_of(scenario, stage_name):
            engine = engine_of(scenario, stage_name, arm_name)
            yield Cell(stage_name, stage, arm_name, scenario.arms[arm_name], engine)


def _planner(
    scenario: Scenario, cell: Cell, books: dict[str, PromptBook]
) -> ReplayPlanner | Gsm8kPlanner:
    geometry = geometry_under(scenario.model.geometry, cell.engine)
    workload, name = cell.stage.workload, cell.stage_name
    room = Room(geometry, cell.engine)
    if isinstance(workload, Gsm8kWorkload):
        if name not in books:
            seeded = Prompts(seed=workload.seed, lengths_tokens=(1,))
            books[name] = PromptBook(name, seeded, geometry, is_scored=False)
        return Gsm8kPlanner(
            stage=name,
            arm=cell.arm_name,
            workload=workload,
            engine=cell.engine,
            book=books[name],
            room=room,
        )
    if name not in books:
        books[name] = PromptBook(name, workload.prompts, geometry)
    return ReplayPlanner(
        stage=name,
        arm=cell.arm_name,
        workload=workload,
        engine=cell.engine,
        book=books[name],
        room=room,
        faults=cell.faults,
    )


def _life(
    name: str, scenario: Scenario, cells: list[tuple[Cell, tuple[PlannedPhase, ...]]]
) -> PlannedLife:
    first = cells[0][0]
    engine, connector, model = first.engine, first.arm.connector, scenario.model
    argv = (
        fake_command.fake_command(engine, connector, model)
        if isinstance(engine, FakeEngine)
        else command.server_command(
            engine,
            connector,
            model,
            model_path=command.model_path(model),
            port=str(engine.port) if engine.port is not None else command.PORT,
            served_name=command.served_name(model),
        )
    )
    settings: dict[str, Any] = engine.model_dump(mode="json")
    return PlannedLife(
        life=name,
        arms=tuple(dict.fromkeys(cell.arm_name for cell, _ in cells)),
        engine=settings,
        connector=connector.model_dump(mode="json"),
        argv=tuple(argv),
        env=command.server_env(engine, connector, model),
        asked=command.asked_settings(engine, connector, model),
        phases=tuple(phase for _, phases in cells for phase in phases),
    )

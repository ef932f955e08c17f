"""Writes records as a run would, without a server: a small deterministic engine behind a real plan.

Hits are what the oracle expects, answers a function of the prompt. A test damages a record through
two hooks: `on_request` changes one request before it is counted (hits, tokens, failure), `on_event`
changes, drops or keeps a journal line before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from pydantic import TypeAdapter
from sim_answers import (
    TOP,
    OnEvent,
    OnRequest,
    Sent,
    answer,
    change_one,
    flip,
    keep,
    leave,
    with_noise,
)
from sim_engine import Action, Life, Writer, actions_of

from kvbench import expectations
from kvbench.checks.finding import Finding, Outcome
from kvbench.events import (
    Event,
    FaultApplied,
    LifeEnded,
    LifeReady,
    LifeStarted,
    RunEnded,
    RunStarted,
)
from kvbench.expectations import ResetStep, Step, WaveStep
from kvbench.judge import judge
from kvbench.ledger import Ledger, load
from kvbench.oracle import Expected
from kvbench.plan import make_plan
from kvbench.plan_types import Plan, PlannedLife
from kvbench.record import Record
from kvbench.scenario.connectors import Connector
from kvbench.scenario.engines import parse_engine
from kvbench.scenario.load import load_scenario
from kvbench.scenario.models import Scenario
from kvbench.scenario.resolve import geometry_under
from kvbench.verdict import Verdict

__all__ = [
    "TOP",
    "OnEvent",
    "OnRequest",
    "Sent",
    "answer",
    "change_one",
    "flip",
    "keep",
    "leave",
    "with_noise",
]

QUICKSTART = Path(__file__).parents[3] / "scenarios" / "quickstart.yaml"
SMALL = ("stages.replay.workload.new_tokens=8", "stages.replay.workload.concurrency=[1]")
SCHEMA = 1
MANY = (
    *SMALL,
    "stages.replay.workload.prompts.lengths_tokens=[300,400,500,600,700,800,900,1000]",
)
"""Enough prompts for a paired test at the default error rate."""


def _expected(plan: Plan, life: PlannedLife, actions: list[Action]) -> list[tuple[Expected, ...]]:
    steps: list[Step] = []
    for action in actions:
        if action.reset is not None:
            steps.append(ResetStep(external=action.reset == "all"))
        elif action.requests:
            prompts = tuple((name, plan.prompts[name]) for name, _ in action.requests)
            concurrency = 1 if action.is_proof else action.phase.concurrency
            steps.append(WaveStep(prompts, action.new_tokens, concurrency))
    engine = parse_engine(life.engine)
    model = Scenario.model_validate(plan.scenario).model
    connector: Connector = TypeAdapter(Connector).validate_python(life.connector)
    predicted = expectations.predict(
        steps,
        geometry=geometry_under(model.geometry, engine),
        engine=engine,
        connector=connector,
    )
    return [each for each in predicted if each is not None]


@lru_cache(maxsize=64)
def planned(scenario: Path, sets: tuple[str, ...], arm: tuple[str, ...]) -> Plan:
    """The plan of a scenario, made once: most tests change what happens and not what is planned."""
    return make_plan(load_scenario(scenario, sets=sets, stage=None, arm=arm))


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
    plan = planned(scenario, sets, arm)
    record = Record(directory)
    writer = Writer(record, on_event)
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
    writer: Writer,
    numbers: Iterator[int],
    on_request: OnRequest,
    engines: int,
) -> None:
    server = Life(plan, life, writer, on_request, engines)
    actions = list(actions_of(life, server.has_tier, numbers))
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


def judged(directory: Path, **options: Any) -> Verdict:
    """Write a record and judge it."""
    return judge(write(directory, **options))


def only(verdict: Verdict, check: str, outcome: Outcome) -> Finding:
    """The one finding of a check with that outcome."""
    found = [f for f in (*verdict.findings, *verdict.unclaimed) if f.check == check]
    chosen = [finding for finding in found if finding.outcome is outcome]
    assert len(chosen) == 1, [(f.outcome.value, f.arm, f.phase, f.reason) for f in found]
    return chosen[0]


def outcomes(verdict: Verdict, check: str) -> set[str]:
    """All outcomes of a check."""
    findings = (*verdict.findings, *verdict.unclaimed)
    return {finding.outcome.value for finding in findings if finding.check == check}


def ledger(directory: Path, **options: Any) -> Ledger:
    """Write a record and read it."""
    return load(write(directory, **options))

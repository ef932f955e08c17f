"""Reads a record into a ledger.

Snapshots are matched in journal order within a life: the delta of a request at concurrency 1 is the
snapshot that follows it minus the one before it, whatever window that belonged to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ValidationError

from kvbench.errors import RecordError
from kvbench.ledger.counters import GAUGES, Deltas, difference
from kvbench.ledger.expected import expected_hits
from kvbench.ledger.facts import RESET_PROOF, Ledger, Life, Request, Seal, Window
from kvbench.ledger.kv_event_facts import KvEvents
from kvbench.ledger.kv_events import NAME as KV_EVENTS
from kvbench.ledger.kv_events import read_kv_events
from kvbench.ledger.reader import OpenLife, OpenWindow, Reader
from kvbench.oracle import Expected
from kvbench.plan_types import Plan
from kvbench.record import ARTIFACTS, StoredRecord, broken_seal
from kvbench.scenario.models import Scenario


def _tokens(deltas: Deltas | None, name: str) -> int | None:
    value = deltas.total(name) if deltas is not None else None
    return None if value is None else round(value)


def _external(deltas: Deltas | None, *, has_connector: bool) -> int | None:
    """External hit tokens; 0 without a connector, because then there is no external tier."""
    found = _tokens(deltas, "external_hits")
    return 0 if found is None and deltas is not None and not has_connector else found


def _window(opened: OpenWindow, expected: dict[int, Expected], lengths: dict[str, int]) -> Window:
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


def _life(name: str, opened: OpenLife, reader: Reader) -> Life:
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


def _kv_events(directory: Path, reader: Reader) -> dict[str, KvEvents] | None:
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
    reader = Reader(plan, scenario, directory)
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

"""Expected hits of the requests that were really sent, in the order in which they were sent.

The plan predicts what should be sent; the ledger replays what was, so that a skipped phase or a
refused reset changes the expectation as it changed the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from kvbench import expectations
from kvbench.events import LifeReady, RequestDone, ResetDone
from kvbench.expectations import ResetStep, Step, WaveStep
from kvbench.oracle import Expected
from kvbench.plan_types import Plan, PlannedLife
from kvbench.scenario.connectors import Connector
from kvbench.scenario.engines import ServedEngine, parse_engine
from kvbench.scenario.models import Scenario
from kvbench.scenario.resolve import geometry_under

LOST_TRACK = frozenset({"timeout", "connection", "http", "truncated"})
"""Failures after which nobody knows which blocks the request left behind.

A NaN answer is not among them: the engine computed it to the end and cached its blocks.
"""

Sent = tuple[int, RequestDone, int, int]
"""Journal line, request, concurrency of its window, planned new tokens."""


class ToolRan(NamedTuple):
    """Another program sent requests of its own: nobody knows which blocks they left behind."""


Happening = Sent | ResetDone | ToolRan


def _effective_engine(life: PlannedLife, ready: LifeReady | None) -> ServedEngine:
    """Engine settings, with a pool size and block size that the engine chose itself filled in."""
    engine = parse_engine(life.engine)
    found: dict[str, Any] = {}
    for key in ("gpu_blocks", "block_tokens"):
        value = ready.effective.get(key) if ready is not None else None
        if getattr(engine, key) is None and isinstance(value, int):
            found[key] = value
    return engine.model_copy(update=found)


def _waves(happenings: Iterable[tuple[str, Happening]]) -> list[list[Sent] | ResetDone | ToolRan]:
    """Requests of one window and wave together, resets by themselves, in true order."""
    groups: list[list[Sent] | ResetDone | ToolRan] = []
    last: tuple[str, int] | None = None
    for window, item in happenings:
        if isinstance(item, ResetDone | ToolRan):
            groups.append(item)
            last = None
            continue
        key = (window, item[1].wave)
        if key != last:
            groups.append([])
            last = key
        group = groups[-1]
        assert isinstance(group, list)
        group.append(item)
    for group in groups:
        if isinstance(group, list):
            group.sort(key=lambda sent: (sent[1].sent_s, sent[0]))
    return groups


def _tokens_of(request: RequestDone, plan: Plan) -> tuple[int, ...] | None:
    """Token ids of a prompt; a nudge is not in the plan, but takes a block like any other request.

    Ids below 0 stand for its tokens: no planned prompt can share a block with it.
    """
    if request.prompt_id in plan.prompts:
        return plan.prompts[request.prompt_id]
    return tuple(range(-request.prompt_tokens, 0)) if request.prompt_tokens else None


def _wave_step(group: list[Sent], plan: Plan) -> WaveStep | None:
    prompts = []
    engines = []
    for _, request, _, _ in group:
        tokens = _tokens_of(request, plan)
        if tokens is None:
            return None
        prompts.append((request.prompt_id, tokens))
        engines.append(request.engine)
    answered = [sent[1].completion_tokens for sent in group if sent[1].completion_tokens]
    return WaveStep(
        prompts=tuple(prompts),
        new_tokens=max(answered, default=group[0][3]),
        concurrency=group[0][2],
        engines=tuple(engines),
    )


def may_have_cleared(reset: ResetDone) -> bool:
    """True unless the engine refused it or has no such endpoint.

    An answer without a word leaves it to the proof to decide; phases behind a failed proof are not
    judged.
    """
    has_no_endpoint = bool(reset.answers) and all(a.startswith("HTTP 4") for a in reset.answers)
    return reset.success is True or (reset.success is None and not has_no_endpoint)


def _clears_all(step: ResetStep, has_tier: bool) -> bool:
    return step.external or not has_tier


def _done(
    happenings: Iterable[tuple[str, Happening]], plan: Plan
) -> list[tuple[Step | None, list[Sent]]]:
    """What was done, in order, with the requests of each wave; None: track was lost."""
    done: list[tuple[Step | None, list[Sent]]] = []
    for group in _waves(happenings):
        if isinstance(group, ToolRan):
            done.append((None, []))
        elif isinstance(group, ResetDone):
            if may_have_cleared(group):
                done.append((ResetStep(external=group.scope == "all"), []))
        else:
            step = _wave_step(group, plan)
            if step is not None:  # else neither plan nor answer says how long the prompt was
                done.append((step, group))
    return done


def expected_hits(
    happenings: Iterable[tuple[str, Happening]],
    *,
    plan: Plan,
    life: PlannedLife,
    ready: LifeReady | None,
) -> dict[int, Expected]:
    """Journal line of each request -> what it should have hit; lines without a prediction lack."""
    done = _done(happenings, plan)
    steps = [step for step, _ in done if step is not None]
    if not steps:
        return {}
    connector: Connector = TypeAdapter(Connector).validate_python(life.connector)
    engine = _effective_engine(life, ready)
    model = Scenario.model_validate(plan.scenario).model
    predicted = iter(
        expectations.predict(
            steps,
            geometry=geometry_under(model.geometry, engine),
            engine=engine,
            connector=connector,
        )
    )
    result: dict[int, Expected] = {}
    is_lost = False
    for step, group in done:
        if step is None:
            is_lost = True
            continue
        answers = next(predicted)
        if isinstance(step, ResetStep):
            is_lost = is_lost and not _clears_all(step, connector.kind != "none")
            continue
        if answers is not None and not is_lost:
            result.update(zip((sent[0] for sent in group), answers, strict=True))
        is_lost = is_lost or any(sent[1].error_kind in LOST_TRACK for sent in group)
    return result

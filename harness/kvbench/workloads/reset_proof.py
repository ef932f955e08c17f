"""A reset is proved, not believed: a sentinel that hit just before must miss just after.

`/reset_prefix_cache` answers success for a misspelt parameter, for tiers that it does not clear
(vLLM #57727) and for connectors whose reset does nothing (#42694), so only the probe decides.
The proof only produces the evidence; whether it is one is judged from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvbench import clock
from kvbench.events import ResetDone, ResetScope
from kvbench.plan_types import PlannedPhase
from kvbench.scenario.connectors import Connector, NoConnector
from kvbench.workloads.stores import wait_for_stores
from kvbench.workloads.window import Life, Load, Window

TRIES_TO_HIT = 4
"""a hybrid's first repeat may miss and its second one hit (vLLM #53504)"""


class ResetRefusedError(Exception):
    """The engine answered `success: false` until the time limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a proof, in seconds."""

    reset_s: float
    store_s: float


def prove_reset(
    life: Life,
    phase: PlannedPhase,
    sentinel: tuple[int, ...],
    *,
    connector: Connector,
    number: int,
    limits: Limits,
) -> None:
    """Reset what `phase.reset` names and probe it, in a window of its own.

    Raises ResetRefusedError when the engine never agrees to reset.
    """
    assert phase.sentinel_id is not None
    loads = [
        Load(phase.sentinel_id, sentinel, "sentinel", new_tokens=1, top_logprobs=1, engine=engine)
        for engine in phase.engines
    ]
    has_tier = not isinstance(connector, NoConnector)
    with Window(
        life,
        stage=phase.stage,
        arm=phase.arm,
        phase=f"reset-{number}",
        kind="reset_proof",
        run=number,
        concurrency=1,
    ) as window:
        for load in loads:
            window.send([load])
        for load in loads:
            _send_until(window, load, _hit_locally)
        if has_tier:
            wait_for_stores(window, connector, limits.store_s)
        if phase.reset == "all" and has_tier:
            _see_tier_hit(window, loads, limits)
        _reset(window, phase.reset, limits.reset_s)
        for load in loads:
            window.send([load])


def _see_tier_hit(window: Window, loads: Sequence[Load], limits: Limits) -> None:
    """Clear the device only, so that the sentinel can be seen to come from the tier."""
    for _ in range(2):
        _reset(window, "local", limits.reset_s)
        seen = []
        for load in loads:
            window.send([load])
            seen.append(_hit_in_tier(window))
        if all(seen):
            return


def _send_until(window: Window, load: Load, is_seen: Callable[[Window], bool]) -> None:
    for _ in range(TRIES_TO_HIT):
        window.send([load])
        if is_seen(window):
            return


def _hit_locally(window: Window) -> bool:
    local, _ = window.cached_split()
    return local is not None and local > 0


def _hit_in_tier(window: Window) -> bool:
    _, external = window.cached_split()
    return external is not None and external > 0


def _reset(window: Window, scope: ResetScope, limit_s: float) -> None:
    started_s = clock.monotonic_s()
    answers = window.life.client.reset_until(external=scope == "all", limit_s=limit_s)
    last = answers[-1]
    window.life.record.write(
        ResetDone(
            time_s=clock.now_s(),
            life=window.life.life,
            window=window.id,
            scope=scope,
            answers=tuple(answer.body or f"HTTP {answer.http_status}" for answer in answers),
            success=last.success,
            waited_s=clock.monotonic_s() - started_s,
        )
    )
    if last.success is False:
        raise ResetRefusedError(
            f"/reset_prefix_cache answered success: false for {limit_s:g} s ({len(answers)} tries)"
        )

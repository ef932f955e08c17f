"""The shape of a plan: lives, phases, waves of requests. Made by `plan`, run by `runner`.

A plan holds everything that decides what will be sent, so that it can be printed, compared and
recorded before a server exists.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.events import ResetScope, Role


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request: which prompt, and whether its answer is scored."""

    prompt_id: str
    role: Role
    engine: int | None = None
    """data-parallel engine that must answer; None: the only one, or whichever the server takes"""


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that is on during a phase, in the words of the control file."""

    mode: str
    """mode of a faulty twin, or kind of a fault of the fake engine"""
    prompt_id: str | None
    """None: requests of every prompt"""
    block_index: int
    times: int | None
    """None: whenever it can be applied"""
    engine: int | None = None
    """data-parallel engine; None: all"""
    options: dict[str, Any] = {}


class PlannedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A window between two snapshots of a drained engine."""

    stage: str
    arm: str
    name: str
    kind: str
    """a scenario.replay.PhaseKind, or `round` where another program sends the requests"""
    run: int
    concurrency: int
    reset: ResetScope
    """proved reset before the phase, in a window of its own"""
    sentinel_id: str | None
    """prompt of the reset proof; set where reset is not none"""
    waves: tuple[tuple[PlannedRequest, ...], ...]
    """requests of a wave are sent together (at most `concurrency`), waves one after another; none
    where another program sends them"""
    new_tokens: int
    top_logprobs: int
    faults: tuple[PlannedFault, ...] = ()
    """switched on before the waves (not for the reset proof) and off after them"""
    tool_requests: int | None = None
    """requests that another program sends; None: it sends none, or nobody knows how many"""
    engines: tuple[int | None, ...] = (None,)
    """data-parallel engines, each of which the sentinel of the reset proof must see"""


class PlannedLife(msgspec.Struct, frozen=True, kw_only=True):
    """One server process and everything that happens in it."""

    life: str
    arms: tuple[str, ...]
    engine: dict[str, Any]
    """resolved engine settings, as the models dump them"""
    connector: dict[str, Any]
    argv: tuple[str, ...]
    """whole command; `{port}` and `{model}` stand for values known only at start; put in by
    `engine.command.fill`"""
    env: dict[str, str]
    """what the scenario sets; `{fault_file}`, `{fault_journal}` and `{from_agent}` likewise"""
    asked: dict[str, Any]
    """settings to compare with the effective ones: gpu_blocks, block_tokens, connector, ..."""
    phases: tuple[PlannedPhase, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will do."""

    scenario: dict[str, Any]
    """the resolved scenario"""
    lives: tuple[PlannedLife, ...]
    prompts: dict[str, tuple[int, ...]]
    """token ids by prompt id: p1.. scored, f1.. filler, s1.. sentinels, per stage: `replay/p1`"""
    warnings: tuple[str, ...] = ()

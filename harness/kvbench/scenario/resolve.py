"""Which engine settings a stage has under an arm: one place for the order of overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.scenario.engines import FakeEngine, ServedEngine, VllmEngine, parse_engine
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.models import Scenario


def engine_of(scenario: Scenario, stage: str, arm: str) -> VllmEngine | FakeEngine:
    """Return the scenario's engine with the stage's settings over it and the arm's over those."""
    settings: dict[str, Any] = scenario.engine.model_dump()
    for changes in (scenario.stages[stage].engine, scenario.arms[arm].engine):
        settings = deep_merged(settings, changes)
    return parse_engine(settings)


def arms_of(scenario: Scenario, stage: str) -> tuple[str, ...]:
    """Return the arms that a stage runs under, in the scenario's order."""
    named = scenario.stages[stage].arms
    return tuple(arm for arm in scenario.arms if named is None or arm in named)


def geometry_under(geometry: Geometry | None, engine: ServedEngine) -> Geometry | None:
    """Return the geometry as it is with these engine settings.

    `--prefix-match-unit` makes the hits of a hybrid model finer than its blocks; it changes nothing
    for models without a recurrent group (measured on vLLM 0.32).
    """
    unit = engine.prefix_match_unit_tokens
    if geometry is None or unit is None:
        return geometry
    if all(group.kind != "mamba" for group in geometry.groups):
        return geometry
    return geometry.model_copy(update={"hash_block_tokens": unit, "hit_alignment_tokens": unit})


def deep_merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` laid on `under`: mappings merge key by key, anything else replaces."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merged(below, value)
        else:
            merged[key] = value
    return merged

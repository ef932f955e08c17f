"""Scenario files read: fragments merged, overrides applied, stages and arms chosen, all checked.

Everything is resolved before validation, so that a wrong key in a fragment is found where it was
written, and nothing is found wrong that an override would have mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvbench.errors import UsageError
from kvbench.scenario.engines import engine_class
from kvbench.scenario.explain import explain
from kvbench.scenario.fragments import Fragments
from kvbench.scenario.models import Scenario
from kvbench.scenario.overrides import EXTENDS, parse_override
from kvbench.scenario.resolve import arms_of, engine_of
from kvbench.scenario.suggest import did_you_mean
from kvbench.scenario.tree import Key, Node, Place, read_yaml


@dataclass(frozen=True)
class Loaded:
    """A scenario, its dump for the record, and where every value was written."""

    scenario: Scenario
    resolved: dict[str, Any]
    """JSON values, defaults included; `Scenario.model_validate` of it gives `scenario` again"""
    sources: tuple[Path, ...]
    """scenario file first, then every fragment read"""
    tree: Node

    def where(self, *path: Key) -> Place:
        """Return file and line of a field, or of the deepest part of its path that was written."""
        return self.tree.place_of(path)


def load_scenario(
    path: Path | str, *, sets: Sequence[str] = (), stage: str | None = None, arm: Sequence[str] = ()
) -> Loaded:
    """Read a scenario file; `stage` and `arm` keep exactly what they name.

    Raises UsageError with file, line, field and what to write.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{path}: no such scenario file")
    return load_tree(read_yaml(file, name=str(path)), file, sets=sets, stage=stage, arm=arm)


def load_tree(
    root: Node,
    file: Path,
    *,
    sets: Sequence[str] = (),
    stage: str | None = None,
    arm: Sequence[str] = (),
) -> Loaded:
    """Load what was read from `file` already; fragments are looked for as seen from that file."""
    fragments = Fragments(file)
    overrides = [parse_override(text) for text in sets]
    for override in overrides:
        if override.names_fragment:
            root = override.applied(root)
    tree = fragments.resolve(root)
    for override in overrides:
        if not override.names_fragment:
            tree = fragments.resolve(override.applied(tree))
    tree = _chosen_arms(_chosen_stage(tree, stage), arm)
    scenario = _validated(tree)
    return Loaded(
        scenario=scenario,
        resolved=scenario.model_dump(mode="json"),
        sources=(file, *fragments.sources),
        tree=tree,
    )


def _validated(tree: Node) -> Scenario:
    try:
        scenario = Scenario.model_validate(tree.plain())
    except ValidationError as error:
        raise UsageError(explain(error, tree, Scenario)) from error
    for stage in scenario.stages:
        for arm in arms_of(scenario, stage):
            _check_engine(scenario, tree, stage, arm)
    return scenario


def _check_engine(scenario: Scenario, tree: Node, stage: str, arm: str) -> None:
    try:
        engine_of(scenario, stage, arm)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]["loc"]
        settings: list[tuple[Key, ...]] = [("arms", arm, "engine"), ("stages", stage, "engine")]
        prefix = next((p for p in settings if _has(tree, (*p, *wrong[:1]))), ("engine",))
        model = engine_class(scenario.engine.model_dump())
        raise UsageError(explain(error, tree, model, prefix)) from error


def _has(tree: Node, path: Sequence[Key]) -> bool:
    node: Node | None = tree
    for key in path:
        node = node.child(key) if node is not None else None
    return node is not None


def _chosen_stage(tree: Node, stage: str | None) -> Node:
    if stage is None:
        return tree
    stages = _named(tree, "stages", [stage], "--stage")
    return tree.replaced(("stages",), Node({stage: stages[stage]}, tree.place_of(("stages",))))


def _chosen_arms(tree: Node, chosen: Sequence[str]) -> Node:
    if not chosen:
        return tree
    arms = _named(tree, "arms", chosen, "--arm")
    kept = {name: node for name, node in arms.items() if name in chosen}
    tree = tree.replaced(("arms",), Node(kept, tree.place_of(("arms",))))
    stages: dict[str, Node] = {}
    for name, node in _mapping(tree, "stages").items():
        listed = node.child("arms")
        if listed is None or not isinstance(listed.value, list):
            stages[name] = node
            continue
        left = [item for item in listed.value if item.value in kept]
        if left:
            stages[name] = node.replaced(("arms",), Node(left, listed.place))
    if not stages:
        raise UsageError(f"--arm {' --arm '.join(chosen)}: no stage runs under it")
    return tree.replaced(("stages",), Node(stages, tree.place_of(("stages",))))


def _named(tree: Node, key: str, chosen: Sequence[str], option: str) -> dict[str, Node]:
    known = _mapping(tree, key)
    for name in chosen:
        if name not in known:
            raise UsageError(f"{option} {name}: not in the scenario; {did_you_mean(name, known)}")
    return known


def _mapping(tree: Node, key: str) -> dict[str, Node]:
    node = tree.child(key)
    return node.value if node is not None and isinstance(node.value, dict) else {}


__all__ = ["EXTENDS", "Loaded", "load_scenario", "load_tree"]

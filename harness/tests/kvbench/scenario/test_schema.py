from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvbench.scenario.schema import schema

STORED = Path(__file__).parents[4] / "docs" / "scenario.schema.json"


def test_stored_schema_is_the_current_one() -> None:
    stored = STORED.read_text(encoding="utf-8")
    assert stored == json.dumps(schema(), indent=2) + "\n", (
        "stale; run: .venv/bin/kvbench schema > docs/scenario.schema.json"
    )


def test_every_mapping_of_the_schema_may_extend() -> None:
    models = {name: each for name, each in schema()["$defs"].items() if "properties" in each}
    assert models
    assert all("extends" in each["properties"] for each in models.values())


def test_every_field_has_a_description() -> None:
    made = schema()
    nodes: list[tuple[str, dict[str, Any]]] = [("scenario", made), *made["$defs"].items()]
    bare = [
        f"{name}.{key}"
        for name, node in nodes
        for key, field in node.get("properties", {}).items()
        if key != "extends" and "description" not in field
    ]
    assert bare == []


def test_changes_of_the_engine_offer_its_keys() -> None:
    made = schema()["$defs"]
    offered = [each["$ref"] for each in made["Arm"]["properties"]["engine"]["anyOf"]]
    assert offered == ["#/$defs/VllmEngine", "#/$defs/FakeEngine"]
    assert "required" not in made["VllmEngine"]

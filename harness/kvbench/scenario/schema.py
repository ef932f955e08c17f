"""The JSON schema of scenario files, for editors; made from the models.

The trap: a file that `extends` fragments leaves out what they supply, so a schema with every
required key would underline correct files. Required keys are therefore kept only for what no
fragment has; the loader checks the merged whole.
"""

from __future__ import annotations

from typing import Any, Final

from kvbench.scenario.models import Scenario
from kvbench.scenario.overrides import EXTENDS

_OWN_KEYS: Final = ["name", "title", "arms", "stages"]
_NAME: Final = {"type": "string"}
_EXTENDS: Final = {
    "description": "fragments of configs/ merged under this mapping, for example models/tiny_qwen3",
    "anyOf": [_NAME, {"type": "array", "items": _NAME}],
}
# Free mappings whose keys are those of the engine.
_ENGINE_CHANGES: Final = ("Arm", "Stage")
_ENGINES: Final = ("VllmEngine", "FakeEngine")


def schema() -> dict[str, Any]:
    """Return the schema of a scenario file as it is written, before fragments are merged."""
    made: dict[str, Any] = _loosened(Scenario.model_json_schema())
    made["$defs"]["Extends"] = _EXTENDS
    for name in _ENGINE_CHANGES:
        changes = made["$defs"][name]["properties"]["engine"]
        made["$defs"][name]["properties"]["engine"] = {
            "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in _ENGINES],
            "description": changes["description"],
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "required": _OWN_KEYS,
    }


def _loosened(node: Any) -> Any:
    if isinstance(node, list):
        return [_loosened(item) for item in node]
    if not isinstance(node, dict):
        return node
    loose = {
        key: _loosened(value)
        for key, value in node.items()
        # A discriminator demands `kind`, which a fragment may supply.
        if key not in {"required", "discriminator"}
    }
    if "oneOf" in loose:
        loose["anyOf"] = loose.pop("oneOf")
    if isinstance(node.get("properties"), dict):
        loose["properties"] = {EXTENDS: {"$ref": "#/$defs/Extends"}, **loose["properties"]}
    return loose

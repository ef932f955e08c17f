"""The reference page of scenario files, in Markdown; made from the models, so it cannot be stale.

One section for each mapping that a file may hold, in the order in which a reader meets them. A test
says that the committed page is what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvbench.scenario.connectors import NativeConnector, NoConnector, SimpleConnector
from kvbench.scenario.models import Scenario

_REF: Final = "#/$defs/"
_SIZE: Final = "size: bytes, or text such as `64MiB`"
_HEAD: Final = """\
# Every field of a scenario

Made from the models (`kvbench schema --format markdown`), so do not edit it by hand. How the parts
play together: [scenarios.md](scenarios.md). For editors: [JSON schema](scenario.schema.json).

```sh
.venv/bin/kvbench schema --format markdown
```

- Unknown keys are errors. *required*: the file says it, or a fragment that it extends.
- Any mapping may have `extends`: a fragment of `configs/`, or a list of them, merged under it.
- A unit is part of a name: `_tokens`, `_bytes`, `_s` (seconds).
- Where a field takes several kinds of mapping, `kind` chooses; each kind has a section.
- `engine` of an arm and of a stage takes the keys of `engine`; the arm's win over the stage's.
"""

_CONTAINERS: Final[Mapping[str, str]] = {"array": "items", "object": "additionalProperties"}
"""JSON type -> the key under which it says what is in it"""
_KIND: Final = re.compile(r"^\[[\w.]+, kind ")

# Where a mapping stands in a file, for the headings; anything else is named after its class.
_PLACES: Final[Mapping[str, str]] = {
    "Needs": "needs",
    "TinyModel": "model, kind tiny",
    "PathModel": "model, kind path",
    "HubModel": "model, kind hub",
    "FakeModel": "model, kind fake",
    "PypiGgufModel": "model, kind pypi_gguf",
    "Geometry": "model.geometry",
    "Group": "model.geometry.groups, each",
    "VllmEngine": "engine, kind vllm",
    "FakeEngine": "engine, kind fake",
    "FakeFault": "engine.faults, each",
    "FakeTimes": "engine.times",
    "FakeNoise": "engine.noise",
    "Arm": "arms, each",
    NoConnector.__name__: "connector, kind none",
    SimpleConnector.__name__: "connector, kind simple",
    NativeConnector.__name__: "connector, kind native",
    "FaultPlan": "arms.NAME.faults, each",
    "Stage": "stages, each",
    "ReplayWorkload": "workload, kind replay",
    "Prompts": "workload.prompts",
    "Gsm8kWorkload": "workload, kind gsm8k",
    "OwnProblems": "workload.data, kind own",
    "ProblemFiles": "workload.data, kind files",
    "HubProblems": "workload.data, kind hub",
}

_EXTENDED: Final[Mapping[str, str]] = {"FakeEngine": "VllmEngine"}
"""a mapping that has all fields of another one, which are not listed twice"""


def reference() -> str:
    """Return the whole page."""
    made = Scenario.model_json_schema()
    definitions: dict[str, Any] = made["$defs"]
    sections = [_section("the top level", made, definitions)]
    for name in _reached(made, definitions):
        like = definitions[_EXTENDED[name]] if name in _EXTENDED else None
        sections.append(_section(_PLACES.get(name, name), definitions[name], definitions, like))
    return "\n".join([_HEAD, *sections])


def _reached(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """Mappings below a node, in the order of their fields, each before what is below itself."""
    found: dict[str, None] = {}

    def follow(part: Mapping[str, Any]) -> None:
        for name in _references(part.get("properties", {})):
            if name not in found and "properties" in definitions[name]:
                found[name] = None
                follow(definitions[name])

    follow(node)
    return list(found)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(_REF)
        for key, value in node.items():
            if key not in {"$ref", "mapping"}:  # a discriminator names the same ones again
                yield from _references(value)


def _section(
    place: str,
    node: Mapping[str, Any],
    definitions: Mapping[str, Any],
    like: Mapping[str, Any] | None = None,
) -> str:
    required = set(node.get("required", ()))
    listed = {} if like is None else like["properties"]
    rows = [
        f"| `{key}` | {_type(field, definitions)} | {_default(key, field, required)} "
        f"| {_cell(field.get('description', ''))} |"
        for key, field in node["properties"].items()
        if field != listed.get(key)
    ]
    about = " ".join(str(node.get("description", "")).split())
    if like is not None:
        about += f" It has the fields of {_named(str(like['title']), definitions)}, and these:"
    head = ["| field | takes | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {place}", "", about, "", *head, *rows, ""])


def _type(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Say in words what a field takes, as a table cell."""
    if "$ref" in field:
        return _named(field["$ref"].removeprefix(_REF), definitions)
    if "const" in field or "enum" in field:
        return _one_of(field.get("enum") or [field["const"]])
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        return _options(options, definitions)
    kind = str(field.get("type"))
    if kind in _CONTAINERS:
        inner = field.get(_CONTAINERS[kind])
        words = _type(inner, definitions) if isinstance(inner, Mapping) else "anything"
        return f"{'list' if kind == 'array' else 'mapping'} of {words}"
    return _scalar(kind, field)


def _options(options: list[Mapping[str, Any]], definitions: Mapping[str, Any]) -> str:
    if any(option.get("pattern", "").endswith("[KMGT]?i?B)$") for option in options):
        return _SIZE
    words = [_type(option, definitions) for option in options if option.get("type") != "null"]
    kinds = [_KIND.sub("[", word) for word in words]
    if kinds != words:
        return f"kind {', '.join(kinds)}"
    return " or ".join(dict.fromkeys(words))


def _named(name: str, definitions: Mapping[str, Any]) -> str:
    node = definitions[name]
    if "enum" in node:
        return _one_of(node["enum"])
    place = _PLACES.get(name, name)
    return f"[{place}](#{_anchor(place)})"


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")


def _one_of(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _scalar(kind: str, field: Mapping[str, Any]) -> str:
    words = {"integer": "whole number", "boolean": "true or false", "string": "text"}
    limits = [
        f"{sign} {field[key]}"
        for key, sign in (
            ("minimum", ">="),
            ("exclusiveMinimum", ">"),
            ("maximum", "<="),
            ("exclusiveMaximum", "<"),
        )
        if key in field
    ]
    name = words.get(kind, kind)
    return f"{name} {', '.join(limits)}" if limits else name


def _default(key: str, field: Mapping[str, Any], required: set[str]) -> str:
    if key in required:
        return "*required*"
    default = field.get("default")
    if default is None:
        return "-"
    if isinstance(default, Mapping):
        return "its defaults"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

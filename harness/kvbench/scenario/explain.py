"""Pydantic's errors in words: file, line, field, the value found, and what to write.

The trap: pydantic's locations contain the tags of unions (`model.tiny.family`), which a person
never wrote; and it names neither the keys that would have been right nor the place in the file.
"""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvbench.scenario.suggest import did_you_mean
from kvbench.scenario.tree import Key, Node

Prefix = tuple[Key, ...]

_NAMING: Final = frozenset({"extra_forbidden", "union_tag_invalid", "enum", "literal_error"})
_QUOTED: Final = re.compile(r"'([^']*)'")


def explain(error: ValidationError, tree: Node, model: type[BaseModel], prefix: Prefix = ()) -> str:
    """Return one line per mistake; `prefix` is the path of `model` in the tree."""
    details = error.errors(include_url=False)
    # A list whose items are wrong is also called too short, which misleads.
    echoes = {
        detail["loc"]
        for detail in details
        if detail["type"] == "too_short"
        and any(o is not detail and _is_below(o, detail) for o in details)
    }
    lines = [_line(each, tree, model, prefix) for each in details if each["loc"] not in echoes]
    return "\n".join(dict.fromkeys(lines))


def _is_below(inner: ErrorDetails, outer: ErrorDetails) -> bool:
    return inner["loc"][: len(outer["loc"])] == outer["loc"]


def _line(detail: ErrorDetails, tree: Node, model: type[BaseModel], prefix: Prefix) -> str:
    path = _written_path(detail["loc"], model)
    if detail["type"] == "union_tag_invalid":
        path = (*path, "kind")
    full = (*prefix, *path)
    field = ".".join(str(key) for key in full) or "scenario"
    return f"{tree.place_of(full)}: {field}: {_problem(detail, model)}"


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "value_error":
        message = str(context["error"])
        return message if isinstance(found, dict) else f"{_short(found)}: {message}"
    if kind in _NAMING:
        wrong, what, known = _naming(detail, model)
        return f"{what}; {did_you_mean(wrong, known)}"
    if kind == "missing":
        return f"is missing; {_describe(detail['loc'], model)}"
    if kind == "union_tag_not_found":
        return f"kind is missing; known kinds: {', '.join(_tags(detail['loc'], model))}"
    wanted = detail["msg"].removeprefix("Input ")
    return f"{_short(found)} is wrong: {wanted}"


def _naming(detail: ErrorDetails, model: type[BaseModel]) -> tuple[object, str, list[str]]:
    """Return what was named wrongly, the complaint, and the names that exist."""
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        name = detail["loc"][-1]
        return name, f"unknown key {name!r}", _known_keys(detail["loc"], model)
    if kind == "union_tag_invalid":
        tag = context["tag"]
        return tag, f"unknown kind {tag!r}", _QUOTED.findall(str(context["expected_tags"]))
    return found, f"{found!r} is not known", _QUOTED.findall(str(context["expected"]))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _written_path(loc: Sequence[Key], model: type[BaseModel]) -> tuple[Key, ...]:
    """Drop the union tags, which are in the location but not in the file."""
    return tuple(key for key, is_tag, _ in _walk(loc, model) if not is_tag)


def _known_keys(loc: Sequence[Key], model: type[BaseModel]) -> list[str]:
    """Return the keys that the mapping around the last key may have."""
    around: Any = model
    for _, _, annotation in _walk(loc[:-1], model):
        around = annotation
    found = _models(around)
    return [field for each in found for field in each.model_fields]


def _describe(loc: Sequence[Key], model: type[BaseModel]) -> str:
    around: Any = model
    for _, _, annotation in _walk(loc[:-1], model):
        around = annotation
    for each in _models(around):
        field = each.model_fields.get(str(loc[-1]))
        if field is not None and field.description:
            return f"it says: {field.description}"
    return "add it"


def _tags(loc: Sequence[Key], model: type[BaseModel]) -> list[str]:
    around: Any = model
    for _, _, annotation in _walk(loc, model):
        around = annotation
    return [tag for each in _models(around) for tag in _kinds(each)]


def _walk(loc: Sequence[Key], model: type[BaseModel]) -> list[tuple[Key, bool, Any]]:
    """Return for each part of a location: the key, if it is a union tag, the type it leads to."""
    steps: list[tuple[Key, bool, Any]] = []
    here: Any = model
    for key in loc:
        tagged = [each for each in _models(here) if key in _kinds(each)]
        fields = [each.model_fields[str(key)] for each in _models(here) if key in each.model_fields]
        is_tag = bool(tagged) and len(_models(here)) > 1
        if is_tag:
            here = tagged[0]
        elif fields:
            here = fields[0].annotation
        else:
            here = _element(here)
        steps.append((key, is_tag, here))
    return steps


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the model classes that a value of this type may have."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return [each for part in get_args(annotation) for each in _models(part)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return []


def _element(annotation: Any) -> Any:
    """Return the type inside a list or mapping type; None for anything else."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        inner = [_element(part) for part in arguments]
        return next((part for part in inner if part is not None), None)
    if origin is dict:
        return arguments[1]
    if origin in {tuple, list}:
        return arguments[0]
    return None


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return ()
    return tuple(
        value.value if isinstance(value, Enum) else value for value in get_args(field.annotation)
    )

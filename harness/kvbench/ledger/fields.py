"""Reads single values out of another tool's JSON without ever making a 0 of what is not there.

A value is present, absent, null or unreadable, and the reader says which. AIPerf leaves out what it
did not measure and writes null for a number that came out as NaN or infinity (`scrub_non_finite` in
its JSON exporter), so the first two gaps mean different things as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Other = TypeVar("Other")
Tree = dict[str, Any]
_MOST_WORDS = 60


class State(StrEnum):
    """What was found where a value should stand."""

    PRESENT = "present"
    ABSENT = "absent"
    NULL = "null"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Field(Generic[Value]):
    """One value of a file, or why there is none."""

    name: str
    """dotted path inside the file, or the file's own name"""
    state: State
    value: Value | None = None
    """None in every state but present"""
    found: str = ""
    """what stands there, where it could not be read"""

    @property
    def is_present(self) -> bool:
        """True where there is a value."""
        return self.state is State.PRESENT

    @property
    def words(self) -> str:
        """For a sentence: the value, or `n/a (absent)`."""
        if self.is_present:
            return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"n/a ({self.gap})"

    @property
    def gap(self) -> str:
        """Why there is no value: `absent`, `null`, `unreadable: "seven"`."""
        return f"{self.state.value}: {self.found}" if self.found else self.state.value

    def without_value(self, name: str) -> Field[Any]:
        """The same gap, for something that would have been found inside."""
        return Field(name, self.state, found=self.found)


def _unreadable(name: str, found: object) -> Field[Any]:
    text = found if isinstance(found, str) else json.dumps(found, default=str)
    short = text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}..."
    return Field(name, State.UNREADABLE, found=short)


def _find(tree: Field[Tree], path: tuple[str, ...]) -> Field[Any]:
    """Whatever stands at a path; a gap on the way to it is its gap."""
    name = ".".join(path)
    if not tree.is_present:
        return tree.without_value(name)
    here: Any = tree.value
    for key in path:
        if here is None:
            return Field(name, State.NULL)
        if not isinstance(here, dict):
            return _unreadable(name, here)
        if key not in here:
            return Field(name, State.ABSENT)
        here = here[key]
    return Field(name, State.NULL) if here is None else Field(name, State.PRESENT, here)


def _as(found: Field[Any], fits: Callable[[Any], bool], make: Callable[[Any], Other]) -> Field[Any]:
    if not found.is_present:
        return found
    if not fits(found.value):
        return _unreadable(found.name, found.value)
    return Field(found.name, State.PRESENT, make(found.value))


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def number(tree: Field[Tree], *path: str) -> Field[float]:
    """A finite number; NaN, infinity, a bool and a number in quotes are unreadable."""
    return _as(_find(tree, path), _is_number, float)


def flag(tree: Field[Tree], *path: str) -> Field[bool]:
    """True or false; 0, 1 and words are unreadable."""
    return _as(_find(tree, path), lambda value: isinstance(value, bool), bool)


def text(tree: Field[Tree], *path: str) -> Field[str]:
    """A string."""
    return _as(_find(tree, path), lambda value: isinstance(value, str), str)


def words(tree: Field[Tree], *path: str) -> Field[tuple[str, ...]]:
    """A list of strings."""
    return _as(
        _find(tree, path),
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        tuple,
    )


def branch(tree: Field[Tree], *path: str) -> Field[Tree]:
    """A JSON object."""
    return _as(_find(tree, path), lambda value: isinstance(value, dict), dict)


def items(tree: Field[Tree], *path: str) -> Field[tuple[Any, ...]]:
    """A list of whatever."""
    return _as(_find(tree, path), lambda value: isinstance(value, list), tuple)


def parse(name: str, data: str | bytes) -> Field[Tree]:
    """A JSON object from its text; unreadable where it is none."""
    try:
        tree = json.loads(data)
    except ValueError as error:  # no JSON, or no UTF-8
        return _unreadable(name, str(error))
    return Field(name, State.PRESENT, tree) if isinstance(tree, dict) else _unreadable(name, tree)


def read(path: Path) -> Field[Tree]:
    """A JSON file: absent where there is no such file, unreadable where it was cut off."""
    if not path.is_file():
        return Field(path.name, State.ABSENT)
    return parse(path.name, path.read_bytes())

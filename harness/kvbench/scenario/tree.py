"""YAML as a tree that knows the file and line of every value.

The trap: once fragments are merged, a wrong value may come from any of several files. So values
keep their place through the merge, and an error can name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import ScalarString

from kvbench.errors import UsageError

Key = str | int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: a file and line, or a `--set` argument without a line."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place; mappings and sequences hold nodes."""

    value: dict[str, Node] | list[Node] | Any
    place: Place

    def child(self, key: Key) -> Node | None:
        """Return the node under a key or index, or None."""
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        if not (isinstance(self.value, list) and isinstance(key, int)):
            return None
        if -len(self.value) <= key < len(self.value):
            found: Node = self.value[key]
            return found
        return None

    def plain(self) -> Any:
        """Return the tree as plain Python values."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def place_of(self, path: Iterable[Key]) -> Place:
        """Return the place of the deepest node that exists on a path."""
        node = self
        for key in path:
            found = node.child(key)
            if found is None:
                break
            node = found
        return node.place

    def replaced(self, path: tuple[Key, ...], new: Node) -> Node:
        """Return a copy with `new` at a path; missing mappings on the way are made."""
        if not path:
            return new
        key, rest = path[0], path[1:]
        below = self.child(key) or Node({}, new.place)
        if isinstance(self.value, list):
            index = int(key)
            items = [*self.value]
            items[index] = below.replaced(rest, new)
            return Node(items, self.place)
        own = self.value if isinstance(self.value, dict) else {}
        return Node({**own, str(key): below.replaced(rest, new)}, self.place)


def merge(under: Node, over: Node) -> Node:
    """Return `over` laid on `under`: mappings merge key by key, anything else replaces."""
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(under.value)
    for key, node in over.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return Node(merged, over.place)


def read_yaml(path: Path, *, name: str) -> Node:
    """Read a file whose top is a mapping; duplicate keys and bad YAML are usage errors."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: cannot be read: {error}") from error
    node = parse_yaml(text, name=name)
    if not isinstance(node.value, dict):
        raise UsageError(f"{name}: the file must be a mapping (`key: value` lines)")
    return node


def parse_yaml(text: str, *, name: str, has_lines: bool = True) -> Node:
    """Parse YAML text into a tree whose places are in `name`."""
    try:
        loaded = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1 if mark is not None and has_lines else None)
        problem = " ".join(str(error.problem or error.context).split())
        raise UsageError(f"{place}: not valid YAML: {problem}") from error
    except YAMLError as error:
        raise UsageError(f"{name}: not valid YAML: {error}") from error
    return _node(loaded, Place(name, 1 if has_lines else None))


def _node(loaded: Any, place: Place) -> Node:
    if isinstance(loaded, CommentedMap):
        lines = loaded.lc.data or {}
        return Node(
            {str(key): _node(value, _at(place, lines.get(key))) for key, value in loaded.items()},
            place,
        )
    if isinstance(loaded, CommentedSeq):
        lines = loaded.lc.data or {}
        return Node(
            [_node(value, _at(place, lines.get(i))) for i, value in enumerate(loaded)], place
        )
    return Node(_scalar(loaded), place)


def _at(place: Place, position: list[int] | None) -> Place:
    if position is None or place.line is None:
        return place
    return Place(place.file, position[0] + 1)


def _scalar(value: Any) -> Any:
    """Strip ruamel's round-trip types (quoted text, hex or underscored numbers)."""
    if isinstance(value, ScalarString):
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value

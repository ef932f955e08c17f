"""`--set path=value`: one-off changes of a scenario.

The trap is order: a new `extends` must be known before fragments are read, while a single value
must win over what the fragments say. So the first kind is applied before the merge, the second
after.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UsageError
from kvbench.scenario.suggest import did_you_mean
from kvbench.scenario.tree import Key, Node, Place, parse_yaml

EXTENDS = "extends"
# A new name here would be an arm or stage made of one key.
_NAMED = ("arms", "stages")


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`, parsed."""

    path: tuple[str, ...]
    node: Node

    @property
    def names_fragment(self) -> bool:
        """Whether it decides what is merged."""
        return self.path[-1] == EXTENDS

    def applied(self, root: Node) -> Node:
        """Return the tree with this value in it; UsageError where the path leads nowhere."""
        return root.replaced(self._resolve(root), self.node)

    def _resolve(self, root: Node) -> tuple[Key, ...]:
        resolved: list[Key] = []
        node: Node | None = root
        for depth, name in enumerate(self.path):
            key: Key = name
            here = ".".join(self.path[:depth]) or "the top level"
            if node is not None:
                key = self._key(node, name, here)
            resolved.append(key)
            node = node.child(key) if node is not None else None
        return tuple(resolved)

    def _key(self, node: Node, name: str, here: str) -> Key:
        if isinstance(node.value, list):
            return self._index(node.value, name, here)
        if node.value is None:
            return name
        if not isinstance(node.value, dict):
            raise UsageError(
                f"{self.node.place}: {here} is {node.value!r} and has no keys below it"
            )
        if here in _NAMED and name not in node.value:
            raise UsageError(
                f"{self.node.place}: no {name!r} in {here}; {did_you_mean(name, node.value)}"
            )
        return name

    def _index(self, items: list[Node], name: str, here: str) -> int:
        if not name.isdecimal() or int(name) >= len(items):
            known = f"0 to {len(items) - 1}" if items else "none, the list is empty"
            raise UsageError(
                f"{self.node.place}: {here} is a list; {name!r} is no index (known: {known})"
            )
        return int(name)


def parse_override(text: str) -> Override:
    """Parse `path=value`; the value is YAML."""
    path, equals, value = text.partition("=")
    names = tuple(name.strip() for name in path.split("."))
    if not equals or not all(names):
        raise UsageError(f"--set {text}: write path=value, for example engine.gpu_blocks=32")
    place = Place(f"--set {text}")
    return Override(names, parse_yaml(value, name=place.file, has_lines=False))

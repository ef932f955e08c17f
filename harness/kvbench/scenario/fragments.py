"""`extends`: fragments from `configs/`, merged under the mapping that names them.

Any mapping may extend: a scenario names models and nodes at its top, an arm's connector names a
connector. A fragment has the keys of the place where it is used. The mapping's own keys win.
"""

from __future__ import annotations

from pathlib import Path

import kvbench
from kvbench.errors import UsageError
from kvbench.scenario.overrides import EXTENDS
from kvbench.scenario.suggest import did_you_mean
from kvbench.scenario.tree import Node, merge, read_yaml

_CHECKOUT = Path(kvbench.__file__).parents[2]


class Fragments:
    """Finds and reads fragments for one scenario file; remembers what was read."""

    def __init__(self, scenario: Path) -> None:
        folder = scenario.resolve().parent
        shelves = [folder / "configs", folder.parent / "configs", _CHECKOUT / "configs", folder]
        self._shelves = list(dict.fromkeys(shelves))
        self._read: dict[Path, Node] = {}

    @property
    def shelves(self) -> tuple[Path, ...]:
        """Return the folders looked in, in order."""
        return tuple(self._shelves)

    @property
    def sources(self) -> tuple[Path, ...]:
        """Return the files read, in order."""
        return tuple(self._read)

    def resolve(self, node: Node, above: tuple[Path, ...] = ()) -> Node:
        """Return the node with every `extends` in it replaced by what it names."""
        if isinstance(node.value, list):
            return Node([self.resolve(item, above) for item in node.value], node.place)
        if not isinstance(node.value, dict):
            return node
        own = {
            key: self.resolve(value, above) for key, value in node.value.items() if key != EXTENDS
        }
        merged = Node({}, node.place)
        if EXTENDS in node.value:
            for name in _names(node.value[EXTENDS]):
                merged = merge(merged, self._fragment(name, above))
        return merge(merged, Node(own, node.place))

    def _fragment(self, name: Node, above: tuple[Path, ...]) -> Node:
        path = self._find(name)
        if path in above:
            circle = " -> ".join(_shown(step) for step in (*above[above.index(path) :], path))
            raise UsageError(f"{name.place}: extends goes round in a circle: {circle}")
        if path not in self._read:
            self._read[path] = read_yaml(path, name=_shown(path))
        return self.resolve(self._read[path], (*above, path))

    def _find(self, name: Node) -> Path:
        wanted = f"{name.value}".removesuffix(".yaml")
        for shelf in self._shelves:
            path = (shelf / f"{wanted}.yaml").resolve()
            if path.is_file():
                return path
        known = sorted(
            path.relative_to(shelf).with_suffix("").as_posix()
            for shelf in self._shelves[:-1]
            for path in shelf.rglob("*.yaml")
        )
        looked = ", ".join(_shown(shelf) for shelf in self._shelves)
        raise UsageError(
            f"{name.place}: extends: no fragment {wanted!r}; "
            f"{did_you_mean(wanted, dict.fromkeys(known))}; looked in {looked}"
        )


def _names(node: Node) -> list[Node]:
    names = node.value if isinstance(node.value, list) else [node]
    for name in names:
        if not isinstance(name.value, str):
            raise UsageError(
                f"{name.place}: extends: {name.plain()!r} is no fragment; write a name such as "
                "models/tiny_qwen3, or a list of names"
            )
    return names


def _shown(path: Path) -> str:
    """Return the path as a person at the working folder would type it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)

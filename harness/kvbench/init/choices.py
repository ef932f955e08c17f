"""The answers to the three questions, checked: which model, which connector, which machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from kvbench.errors import UsageError
from kvbench.init.checkpoint import Checkpoint, read_checkpoint
from kvbench.scenario.base import parse_bytes
from kvbench.scenario.fragments import Fragments
from kvbench.scenario.models import Model
from kvbench.scenario.overrides import EXTENDS
from kvbench.scenario.suggest import did_you_mean
from kvbench.scenario.tree import Node, Place

TINY: Final = "tiny"
"""short for the smallest model that kvbench makes itself"""
TINY_FRAGMENT: Final = "tiny_qwen3"
DEFAULT_CONNECTOR: Final = "simple_eager"
HOST_SUFFIX: Final = "_host"
"""fragments with kvbench's copies for vLLM's CPU build are named so"""
_NO_CONNECTOR: Final = "none"
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL: TypeAdapter[Model] = TypeAdapter(Model)


class Answers(NamedTuple):
    """What was asked for, as it was written; None takes the default."""

    model: str | None = None
    connector: str | None = None
    host_memory: str | None = None
    gpus: int = 0
    """0: vLLM's CPU build on this machine"""


@dataclass(frozen=True)
class KnownModel:
    """A fragment of configs/models, with the settings that it brings."""

    fragment: str
    model: Model
    engine: dict[str, Any]


@dataclass(frozen=True)
class HubName:
    """A name on the Hugging Face hub, of which nothing else is known here."""

    name: str


ChosenModel = KnownModel | Checkpoint | HubName


class Library:
    """The fragments that a scenario at `file` can extend."""

    def __init__(self, file: Path) -> None:
        self._fragments = Fragments(file)

    def names(self, kind: str) -> list[str]:
        """Return the names of a folder of configs/, sorted."""
        shelves = self._fragments.shelves
        return sorted({path.stem for shelf in shelves for path in (shelf / kind).glob("*.yaml")})

    def connectors(self) -> list[str]:
        """Return the connectors that can be asked for, without the variants for the CPU build."""
        names = self.names("connectors")
        return [n for n in names if n != _NO_CONNECTOR and not n.endswith(HOST_SUFFIX)]

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a fragment, what it extends included."""
        place = Place(name)
        node = self._fragments.resolve(Node({EXTENDS: Node(name, place)}, place))
        content: dict[str, Any] = node.plain()
        return content


def choose_model(text: str | None, library: Library) -> ChosenModel:
    """Return what a model's name or folder means; raises UsageError with the names that are known.

    A folder that exists wins over a name on the hub.
    """
    named = TINY_FRAGMENT if text in {None, TINY} else str(text)
    fragment = named.removeprefix("models/")
    known = library.names("models")
    if fragment in known:
        content = library.read(f"models/{fragment}")
        model = _MODEL.validate_python(content["model"])
        return KnownModel(f"models/{fragment}", model, content.get("engine", {}))
    folder = Path(named).expanduser()
    if folder.is_dir() or named.startswith(("/", ".", "~")):
        return read_checkpoint(folder.absolute())
    if _HUB_NAME.fullmatch(named):
        return HubName(named)
    raise UsageError(
        f"model {named!r} is no folder, no hub name (org/name) and no model of kvbench; "
        f"{did_you_mean(named, [TINY, *known])}"
    )


def choose_connector(text: str | None, library: Library, *, is_cpu: bool) -> str:
    """Return the fragment of a connector; on the CPU the one with kvbench's copies, if it has one.

    Raises UsageError for an unknown one.
    """
    named = (text or DEFAULT_CONNECTOR).removeprefix("connectors/").removesuffix(HOST_SUFFIX)
    known = library.connectors()
    if named not in known:
        raise UsageError(f"connector {named!r} is not known; {did_you_mean(named, known)}")
    host = f"{named}{HOST_SUFFIX}"
    chosen = host if is_cpu and host in library.names("connectors") else named
    return f"connectors/{chosen}"


def choose_bytes(text: str) -> int:
    """Return a size such as 8GiB in bytes; raises UsageError."""
    written: object = int(text) if text.isdecimal() else text
    try:
        size = parse_bytes(written)
    except ValueError as error:
        raise UsageError(f"host memory {text!r}: {error}") from error
    assert isinstance(size, int)
    if size == 0:
        raise UsageError("host memory 0: give the connector some, such as 64MiB")
    return size


def choose_gpus(text: str) -> int:
    """Return the number of GPUs of an answer, 0 for `cpu`; raises UsageError."""
    answer = text.strip().lower()
    if answer == "cpu":
        return 0
    if not answer.isdecimal() or int(answer) == 0:
        raise UsageError(f"{text!r}: write cpu, or a number of GPUs such as 8")
    return int(answer)

"""Faults that a faulty twin applies to its loads: control file, journal and the registry of modes.

The trap is a fault that never fired: a check that stays green would then look proved. So every
applied fault leaves a line in the journal, and a control file that cannot be obeyed leaves one too.
A new mode is one function with ``@fault("name")``. Imports neither vllm nor torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULT_FILE = "KVBENCH_FAULT_FILE"
FAULT_JOURNAL = "KVBENCH_FAULT_JOURNAL"


class ControlError(ValueError):
    """The control file cannot be read or obeyed."""


class NotApplicableError(ValueError):
    """The fault does not fit this load; raised before anything was copied."""


@dataclass(frozen=True, slots=True)
class Control:
    """What the control file asks for; ``times`` of None means every matching load."""

    mode: str = "none"
    block_index: int = 1
    request: str | None = None
    times: int | None = None


@dataclass(frozen=True, slots=True)
class LoadPart:
    """The blocks that one request gets in one load: entry i of both lists belongs together."""

    request_id: str
    cpu_blocks: list[int]
    gpu_blocks: list[int]


@dataclass(frozen=True, slots=True)
class FaultContext:
    """All that a fault may look at or change for one request's load.

    A fault makes the copy itself (``copy_in``), so that it can also copy something else or nothing.
    ``gpu`` and ``cpu`` map a region's name to its blocks; ``parts`` are all requests of this load.
    """

    control: Control
    part: LoadPart
    parts: tuple[LoadPart, ...]
    gpu: Mapping[str, Any]
    cpu: Mapping[str, Any]
    copy_in: Callable[[list[int], list[int]], None]


Fault = Callable[[FaultContext], int]
"""Does the load with the fault in it; returns the device block that is now wrong."""

FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register a fault under the name that the control file uses."""

    def register(function: Fault) -> Fault:
        if name in FAULTS or name == "none":
            raise ValueError(f"fault {name!r} is already taken")
        FAULTS[name] = function
        return function

    return register


@fault("zero_block")
def zero_block(context: FaultContext) -> int:
    """Load the prompt, then overwrite one of its blocks with zeros in every layer."""
    blocks = context.part.gpu_blocks
    index = context.control.block_index
    if not -len(blocks) <= index < len(blocks):
        raise NotApplicableError(f"block_index {index} outside {len(blocks)} loaded blocks")
    context.copy_in(context.part.cpu_blocks, blocks)
    for region in context.gpu.values():
        region[blocks[index]] = 0
    return blocks[index]


def parse_control(text: str) -> Control:
    """Read the control file's text; ControlError says what is wrong with it."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ControlError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ControlError(f"expected an object, found {type(fields).__name__}")
    types: dict[str, tuple[type, ...]] = {
        "mode": (str,),
        "block_index": (int,),
        "request": (str, type(None)),
        "times": (int, type(None)),
    }
    for key, value in fields.items():
        if key not in types:
            raise ControlError(f"unknown key {key!r}; known: {', '.join(types)}")
        if not isinstance(value, types[key]) or isinstance(value, bool):
            raise ControlError(f"{key}: {value!r} has the wrong type")
    if "mode" not in fields:
        raise ControlError("key 'mode' is missing")
    control = Control(**fields)
    if control.mode != "none" and control.mode not in FAULTS:
        raise ControlError(f"unknown mode {control.mode!r}; known: none, {', '.join(FAULTS)}")
    return control


class FaultSwitch:
    """Reads the control file at every load and keeps the journal.

    Counting of ``times`` starts again whenever the file is written, also with the same text.
    """

    def __init__(self, control_path: Path, journal_path: Path, rank: int = 0) -> None:
        self._control_path = control_path
        self._journal_path = journal_path
        self._rank = rank
        self._written: tuple[int, str] | None = None
        self._applied = 0

    @classmethod
    def from_environment(cls, rank: int = 0) -> FaultSwitch:
        """Take both paths from the environment; a twin that cannot be switched must not start."""
        missing = [name for name in (FAULT_FILE, FAULT_JOURNAL) if not os.environ.get(name)]
        if missing:
            raise RuntimeError(f"the faulty twin needs {' and '.join(missing)} in its environment")
        return cls(Path(os.environ[FAULT_FILE]), Path(os.environ[FAULT_JOURNAL]), rank)

    def control(self) -> Control:
        """What to do now; raises ControlError."""
        try:
            text = self._control_path.read_text(encoding="utf-8")
            written = (self._control_path.stat().st_mtime_ns, text)
        except (OSError, UnicodeDecodeError) as error:
            raise ControlError(f"cannot read {self._control_path}: {error}") from error
        if written != self._written:
            self._written, self._applied = written, 0
        return parse_control(text)

    def wants(self, control: Control, part: LoadPart) -> bool:
        """Whether this request's load is to be damaged."""
        if control.mode == "none":
            return False
        if control.times is not None and self._applied >= control.times:
            return False
        return control.request is None or control.request in part.request_id

    def applied(self, context: FaultContext, dst_block: int) -> None:
        """Count and file a fault that was really done."""
        self._applied += 1
        self._file(
            applied=True,
            mode=context.control.mode,
            request_ids=[context.part.request_id],
            dst_block=dst_block,
            loaded_blocks=len(context.part.gpu_blocks),
        )

    def not_applied(self, mode: str | None, parts: tuple[LoadPart, ...], reason: str) -> None:
        """File a fault that was asked for and not done."""
        self._file(
            applied=False,
            mode=mode,
            request_ids=[part.request_id for part in parts],
            dst_block=None,
            loaded_blocks=sum(len(part.gpu_blocks) for part in parts),
            error=reason,
        )

    def _file(self, **fields: object) -> None:
        line = json.dumps({"time_s": time.time(), "rank": self._rank, **fields}) + "\n"
        # One write to a file opened for appending: ranks share the journal.
        with self._journal_path.open("a", encoding="utf-8") as journal:
            journal.write(line)

"""The control file that switches faults while the fake runs, and the journal of what they did.

The trap is a fault that never fired: a check that stays green would then look proved. So every
application leaves a line, and a control file that cannot be obeyed leaves one too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.settings import FaultSetting

CONTROL_VARIABLE: Final = "KVBENCH_FAULT_FILE"
JOURNAL_VARIABLE: Final = "KVBENCH_FAULT_JOURNAL"


class _Document(msgspec.Struct, frozen=True):
    """`{"mode": "none"}`, or the faults that are on; other keys are not ours."""

    faults: list[FaultSetting] = []


class Journal:
    """Appends one JSON line a call; without a path it forgets."""

    def __init__(self, path: str | None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(path, flags, 0o644) if path else None

    def write(self, entry: dict[str, Any]) -> None:
        """Write one entry, in one system call, so that a reader never sees half a line for long."""
        if self._file is not None:
            os.write(self._file, msgspec.json.encode(entry) + b"\n")


class Control:
    """Follows the control file; `look` is cheap enough for every request."""

    def __init__(
        self, path: str | None, faults: ActiveFaults, write: Callable[[dict[str, Any]], None]
    ) -> None:
        self._path = path
        self._faults = faults
        self._write = write
        self._seen: tuple[int, int] | None = None

    def look(self) -> None:
        """Switch faults if the file was replaced; what cannot be obeyed switches all off."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116 - once a request, and half as dear as Path
        except FileNotFoundError:
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            document = msgspec.json.decode(Path(self._path).read_bytes(), type=_Document)
            self._faults.switch(document.faults)
        except (msgspec.DecodeError, ValueError) as error:
            self._faults.switch([])
            self._write({"kind": "control_file", "request": None, "error": str(error)})

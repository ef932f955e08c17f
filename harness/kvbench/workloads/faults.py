"""Switching faults on and off while a server runs, and filing what it really damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kvbench import clock
from kvbench.events import FaultApplied, FaultSwitched
from kvbench.plan_types import PlannedFault, PlannedPhase
from kvbench.record import Record
from kvbench.workloads.window import Window

CONTROL_VARIABLE = "KVBENCH_FAULT_FILE"
JOURNAL_VARIABLE = "KVBENCH_FAULT_JOURNAL"
_OFF: Final = {"mode": "none"}


class FaultSwitch:
    """The control file and the journal that a faulty twin, or the fake engine, reads and writes.

    What is on during a phase stands in the plan; `is_fake` says which of the two dialects the
    server speaks. A twin damages one thing at a time, the fake engine any number.
    """

    def __init__(self, record: Record, life: str, *, is_fake: bool) -> None:
        self._record = record
        self._life = life
        self._is_fake = is_fake
        self._control = record.artifact(f"{life}/fault.json")
        self._journal = record.artifact(f"{life}/faults.jsonl")
        self._journal.touch()
        self._read_bytes = 0
        self._switch(_OFF)

    def env(self) -> dict[str, str]:
        """Variables that tell the server where its files are."""
        return {
            CONTROL_VARIABLE: str(self._control.resolve()),
            JOURNAL_VARIABLE: str(self._journal.resolve()),
        }

    @contextmanager
    def armed(self, window: Window, phase: PlannedPhase) -> Iterator[None]:
        """Switch on the faults planned for this phase, and off after it."""
        if not phase.faults:
            yield
            return
        name = "kind" if self._is_fake else "mode"
        details = [_detail(fault, window, name) for fault in phase.faults]
        self._switch({"faults": details} if self._is_fake else details[0])
        for fault, detail in zip(phase.faults, details, strict=True):
            self._file(window, fault.mode, fault.prompt_id, detail)
        try:
            yield
        finally:
            self._switch(_OFF)
            self._file(window, "none", None, {})

    def collect(self, window: str) -> None:
        """File what was damaged since the last call, as happened in this window."""
        unread = self._journal.read_bytes()[self._read_bytes :]
        data = unread[: unread.rfind(b"\n") + 1]  # what has no end yet is read the next time
        self._read_bytes += len(data)
        for line in data.splitlines():
            self._record.write(
                FaultApplied(
                    time_s=clock.now_s(),
                    life=self._life,
                    window=window,
                    detail=json.loads(line),
                )
            )

    def _switch(self, content: Mapping[str, object]) -> None:
        temporary = self._control.with_suffix(".tmp")
        temporary.write_text(json.dumps(content))
        Path.replace(temporary, self._control)

    def _file(
        self, window: Window, mode: str, prompt_id: str | None, detail: dict[str, object]
    ) -> None:
        window.life.record.write(
            FaultSwitched(
                time_s=clock.now_s(),
                life=window.life.life,
                window=window.id,
                mode=mode,
                prompt_id=prompt_id,
                detail=detail,
            )
        )


def _detail(fault: PlannedFault, window: Window, name: str) -> dict[str, Any]:
    """Return a fault in the words of the control file; the engine's own defaults stay unsaid."""
    detail: dict[str, Any] = {name: fault.mode, "block_index": fault.block_index}
    if fault.prompt_id is not None:
        detail["request"] = window.request_mark(fault.prompt_id)
    if fault.times is not None:
        detail["times"] = fault.times
    if fault.engine is not None:
        detail["engine"] = fault.engine
    if fault.options:
        detail["options"] = fault.options
    return detail

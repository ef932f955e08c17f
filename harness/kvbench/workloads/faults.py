"""Switching a faulty twin on and off while its server runs, and filing what it really damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvbench import clock
from kvbench.events import FaultApplied, FaultSwitched
from kvbench.plan_types import PlannedPhase
from kvbench.record import Record
from kvbench.scenario.models import FaultPlan
from kvbench.workloads.window import Window

CONTROL_VARIABLE = "KVBENCH_FAULT_FILE"
JOURNAL_VARIABLE = "KVBENCH_FAULT_JOURNAL"


class FaultSwitch:
    """The control file and the journal that a faulty twin in the server reads and writes."""

    def __init__(self, record: Record, life: str, faults: tuple[FaultPlan, ...]) -> None:
        self._faults = list(faults)
        self._control = record.artifact(f"{life}/fault.json")
        self._journal = record.artifact(f"{life}/faults.jsonl")
        self._journal.touch()
        self._read_bytes = 0
        self._switch({"mode": "none"})

    def env(self) -> dict[str, str]:
        """Variables that tell the twin where its files are."""
        return {
            CONTROL_VARIABLE: str(self._control.resolve()),
            JOURNAL_VARIABLE: str(self._journal.resolve()),
        }

    @contextmanager
    def armed(self, window: Window, phase: PlannedPhase) -> Iterator[None]:
        """Switch on the fault planned for this phase, once in a run, and off after it."""
        fault = next((f for f in self._faults if f.phase in (phase.name, phase.kind)), None)
        if fault is None:
            yield
            return
        self._faults.remove(fault)
        prompt_id = f"{phase.stage}/{fault.prompt}"
        detail = {
            "mode": fault.mode,
            "block_index": fault.block_index,
            "request": window.request_mark(prompt_id),
            "times": fault.times,
        }
        self._switch(detail)
        self._file(window, fault.mode, prompt_id, detail)
        try:
            yield
        finally:
            self._switch({"mode": "none"})
            self._file(window, "none", None, {})
            self._collect(window)

    def _switch(self, content: dict[str, object]) -> None:
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

    def _collect(self, window: Window) -> None:
        unread = self._journal.read_bytes()[self._read_bytes :]
        data = unread[: unread.rfind(b"\n") + 1]  # what has no end yet is read the next time
        self._read_bytes += len(data)
        for line in data.splitlines():
            window.life.record.write(
                FaultApplied(
                    time_s=clock.now_s(),
                    life=window.life.life,
                    window=window.id,
                    detail=json.loads(line),
                )
            )

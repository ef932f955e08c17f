"""What every workload's driver does around its load: prove a reset, open a window, skip a phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvbench import clock
from kvbench.events import Skipped
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.scenario.connectors import Connector
from kvbench.workloads.faults import FaultSwitch
from kvbench.workloads.reset_proof import Limits, prove_reset
from kvbench.workloads.window import Life, Window


class PhaseDriver:
    """Base of the drivers of one stage and arm on a running engine."""

    def __init__(
        self,
        life: Life,
        plan: Plan,
        connector: Connector,
        faults: FaultSwitch | None,
        limits: Limits,
    ) -> None:
        self._life = life
        self._prompts = plan.prompts
        self._connector = connector
        self._faults = faults
        self._limits = limits
        self._resets = 0

    def _prove_reset(self, phase: PlannedPhase) -> None:
        """Prove the reset before a phase; raises ResetRefusedError when the engine never agrees."""
        assert phase.sentinel_id is not None
        self._resets += 1
        prove_reset(
            self._life,
            phase,
            self._prompts[phase.sentinel_id],
            connector=self._connector,
            number=self._resets,
            limits=self._limits,
        )

    @contextmanager
    def _opened(self, phase: PlannedPhase) -> Iterator[Window]:
        """Open the window of a phase with its faults on, and file what they damaged."""
        with Window(
            self._life,
            stage=phase.stage,
            arm=phase.arm,
            phase=phase.name,
            kind=phase.kind,
            run=phase.run,
            concurrency=phase.concurrency,
        ) as window:
            if self._faults is None:
                yield window
                return
            try:
                with self._faults.armed(window, phase):
                    yield window
            finally:
                self._faults.collect(window.id)

    def _skip(self, phase: PlannedPhase, reason: str) -> None:
        self._life.record.write(
            Skipped(
                time_s=clock.now_s(),
                stage=phase.stage,
                arm=phase.arm,
                phase=phase.name,
                reason=reason,
            )
        )

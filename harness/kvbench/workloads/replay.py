"""Runs the phases of the deterministic workload on one life, and files what it saw."""

from __future__ import annotations

from kvbench import clock
from kvbench.events import Skipped
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.scenario.connectors import Connector
from kvbench.scenario.replay import ReplayWorkload
from kvbench.workloads.faults import FaultSwitch
from kvbench.workloads.reset_proof import Limits, ResetRefusedError, prove_reset
from kvbench.workloads.stores import wait_for_stores
from kvbench.workloads.window import Life, Load, Window


class ReplayDriver:
    """Drives the planned phases of one stage and arm through a running engine."""

    def __init__(
        self,
        life: Life,
        plan: Plan,
        workload: ReplayWorkload,
        connector: Connector,
        faults: FaultSwitch | None,
    ) -> None:
        self._life = life
        self._prompts = plan.prompts
        self._workload = workload
        self._connector = connector
        self._faults = faults
        self._limits = Limits(reset_s=workload.reset_limit_s, store_s=workload.store_limit_s)
        self._resets = 0

    def run(self, phase: PlannedPhase) -> None:
        """Run one phase with the proof of its reset; a phase whose reset is refused is skipped.

        Raises EngineError when the engine dies or hangs.
        """
        self._life.progress.phase(phase.stage, phase.arm, phase.name, phase.concurrency)
        if phase.reset != "none":
            try:
                self._prove_reset(phase)
            except ResetRefusedError as error:
                self._skip(phase, str(error))
                return
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
                self._send(window, phase)
                return
            try:
                with self._faults.armed(window, phase):
                    self._send(window, phase)
            finally:
                self._faults.collect(window.id)

    def _prove_reset(self, phase: PlannedPhase) -> None:
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

    def _send(self, window: Window, phase: PlannedPhase) -> None:
        for wave in phase.waves:
            window.send(
                [
                    Load(
                        request.prompt_id,
                        self._prompts[request.prompt_id],
                        request.role,
                        new_tokens=phase.new_tokens,
                        top_logprobs=phase.top_logprobs,
                        engine=request.engine,
                    )
                    for request in wave
                ]
            )
        wait_for_stores(window, self._connector, self._workload.store_limit_s)

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

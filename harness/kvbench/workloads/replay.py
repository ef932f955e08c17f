"""Runs the phases of the deterministic workload on one life, and files what it saw."""

from __future__ import annotations

from kvbench.plan_types import Plan, PlannedPhase
from kvbench.scenario.connectors import Connector
from kvbench.scenario.replay import ReplayWorkload
from kvbench.workloads.driving import PhaseDriver
from kvbench.workloads.faults import FaultSwitch
from kvbench.workloads.reset_proof import Limits, ResetRefusedError
from kvbench.workloads.stores import wait_for_stores
from kvbench.workloads.window import Life, Load, Window


class ReplayDriver(PhaseDriver):
    """Drives the planned phases of one stage and arm through a running engine."""

    def __init__(
        self,
        life: Life,
        plan: Plan,
        workload: ReplayWorkload,
        connector: Connector,
        faults: FaultSwitch | None,
    ) -> None:
        limits = Limits(reset_s=workload.reset_limit_s, store_s=workload.store_limit_s)
        super().__init__(life, plan, connector, faults, limits)
        self._workload = workload

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
        with self._opened(phase) as window:
            self._send(window, phase)

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

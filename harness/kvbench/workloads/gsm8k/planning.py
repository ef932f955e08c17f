"""The rounds of a GSM8K stage, and the sentinels that prove the resets before them."""

from __future__ import annotations

from kvbench.errors import UsageError
from kvbench.plan_types import PlannedPhase
from kvbench.scenario.engines import ServedEngine
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.workloads.prompts import PromptBook
from kvbench.workloads.replay_plan import engines_of
from kvbench.workloads.room import Room

ROUND = "round"
"""kind of its phases"""


class Gsm8kPlanner:
    """Plans one stage under one arm."""

    def __init__(
        self,
        *,
        stage: str,
        arm: str,
        workload: Gsm8kWorkload,
        engine: ServedEngine,
        book: PromptBook,
        room: Room,
    ) -> None:
        self._stage = stage
        self._arm = arm
        self._workload = workload
        self._engine = engine
        self._book = book
        self._room = room
        self.warnings: list[str] = []

    def phases(self) -> tuple[PlannedPhase, ...]:
        """Return one phase a round; the first begins cold where the engine can be reset."""
        if not self._engine.dev_mode:
            self.warnings.append(
                f"stage {self._stage}: engine.dev_mode is off, so round 1 cannot be proved cold"
            )
        return tuple(self._round(number) for number in range(1, self._workload.rounds + 1))

    def _round(self, number: int) -> PlannedPhase:
        workload = self._workload
        reset = "all" if number == 1 else workload.reset_between_rounds
        if not self._engine.dev_mode:
            reset = "none"
        return PlannedPhase(
            stage=self._stage,
            arm=self._arm,
            name=f"{ROUND}-{number}",
            kind=ROUND,
            run=number,
            concurrency=workload.concurrency,
            reset=reset,
            sentinel_id=None if reset == "none" else self._sentinel(number),
            waves=(),
            new_tokens=workload.max_new_tokens,
            top_logprobs=workload.top_logprobs,
            tool_requests=workload.samples if workload.samples != "all" else None,
            engines=engines_of(self._engine),
        )

    def _sentinel(self, number: int) -> str:
        length = 256 if self._room.geometry is None else self._room.sentinel_tokens()
        if length is None:
            raise UsageError(
                f"stages.{self._stage}: no room for the sentinel of a reset proof; raise "
                "engine.max_model_len_tokens or engine.gpu_blocks"
            )
        return self._book.sentinel(number, length)

"""The phases of the deterministic workload: what is sent, in which order, after which reset.

The traps: a hot phase must be a GPU hit at any pool size, so each prompt is sent twice in a row in
waves that fit in half of the pool; and no pressure may use a filler that an earlier one has stored,
or the tier would be asked to give it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvbench.errors import UsageError
from kvbench.events import ResetScope, Role
from kvbench.plan_types import PlannedFault, PlannedPhase, PlannedRequest
from kvbench.scenario.engines import FakeFault, ServedEngine
from kvbench.scenario.models import FaultPlan
from kvbench.scenario.replay import PhaseKind, ReplayWorkload
from kvbench.workloads.prompts import PromptBook
from kvbench.workloads.room import HOT_SHARE, WAVE_SHARE, Room

Waves = tuple[tuple[PlannedRequest, ...], ...]


def engines_of(engine: ServedEngine) -> tuple[int | None, ...]:
    """Engines that requests are pinned to; a server with one engine needs no pin.

    A prompt always goes to the same engine, because another one has none of its blocks.
    """
    return tuple(range(engine.data_parallel)) if engine.data_parallel > 1 else (None,)


class ReplayPlanner:
    """Plans one stage under one arm; `warnings` collects what the plan could not do as asked."""

    def __init__(
        self,
        *,
        stage: str,
        arm: str,
        workload: ReplayWorkload,
        engine: ServedEngine,
        book: PromptBook,
        room: Room,
        faults: Sequence[FaultPlan | FakeFault] = (),
    ) -> None:
        self._stage = stage
        self._arm = arm
        self._workload = workload
        self._engine = engine
        self._book = book
        self._room = room
        self._pending = list(faults)
        self._engines = engines_of(engine)
        self._fillers = 0
        self._sentinels = 0
        self.warnings: list[str] = []

    def phases(self) -> tuple[PlannedPhase, ...]:
        """Return all phases, once per concurrency."""
        return tuple(
            self._phase(kind, run, concurrency)
            for concurrency in self._workload.concurrency
            for kind, run in self._order()
        )

    def _order(self) -> Iterator[tuple[PhaseKind, int]]:
        workload = self._workload
        kinds = list(workload.phases)
        runs = {
            PhaseKind.FRESH: workload.fresh_runs,
            PhaseKind.HOT: workload.hot_runs,
            PhaseKind.REPLAY: workload.replay_runs,
            PhaseKind.RELOAD: workload.reload_runs,
        }
        pair = (PhaseKind.PRESSURE, PhaseKind.REPLAY)
        is_paired = all(kind in kinds for kind in pair)
        for kind in kinds:
            if is_paired and kind is PhaseKind.REPLAY:
                continue
            if is_paired and kind is PhaseKind.PRESSURE:
                for run in range(1, workload.replay_runs + 1):
                    yield from ((each, run) for each in pair)
                continue
            for run in range(1, runs.get(kind, 1) + 1):
                yield kind, run

    def _phase(self, kind: PhaseKind, run: int, concurrency: int) -> PlannedPhase:
        reset = self._reset(kind)
        name = f"{kind.value}-{run}"
        is_pressure = kind is PhaseKind.PRESSURE
        return PlannedPhase(
            stage=self._stage,
            arm=self._arm,
            name=name,
            kind=kind.value,
            run=run,
            concurrency=concurrency,
            reset=reset,
            sentinel_id=None if reset == "none" else self._sentinel(),
            waves=self._pressure() if is_pressure else self._waves(kind, concurrency),
            new_tokens=1 if is_pressure else self._workload.new_tokens,
            top_logprobs=self._workload.top_logprobs,
            faults=self._faults_in(kind, name),
            engines=self._engines,
        )

    def _reset(self, kind: PhaseKind) -> ResetScope:
        if not self._engine.dev_mode:
            return "none"
        if kind in {PhaseKind.FRESH, PhaseKind.COLD_AGAIN}:
            return "all"
        return "local" if kind is PhaseKind.RELOAD else "none"

    def _sentinel(self) -> str:
        if self._room.geometry is None:
            length: int | None = max(self._book.length(each) for each in self._book.scored)
        else:
            length = self._room.sentinel_tokens()
        if length is None:
            raise UsageError(
                f"stages.{self._stage}: no room for the sentinel of a reset proof, which must be "
                "longer than one hit-alignment block; raise engine.max_model_len_tokens or "
                "engine.gpu_blocks"
            )
        self._sentinels += 1
        return self._book.sentinel(self._sentinels, length)

    def _pressure(self) -> Waves:
        waves: list[tuple[PlannedRequest, ...]] = []
        for length in self._filler_lengths():
            self._fillers += 1
            filler = self._book.filler(self._fillers, length)
            # Every engine has a pool of its own to fill.
            waves += [(PlannedRequest(filler, "filler", engine),) for engine in self._engines]
        return tuple(waves)

    def _filler_lengths(self) -> Sequence[int]:
        if self._workload.filler_lengths_tokens:
            return self._workload.filler_lengths_tokens
        if self._room.is_known:
            return self._room.filler_lengths(self._workload.pressure_factor)
        raise UsageError(
            f"stages.{self._stage}.workload.phases: pressure is sized from the GPU pool; set "
            "engine.gpu_blocks and declare model.geometry, or write "
            f"stages.{self._stage}.workload.filler_lengths_tokens"
        )

    def _waves(self, kind: PhaseKind, concurrency: int) -> Waves:
        is_hot = kind is PhaseKind.HOT
        lengths = [self._book.length(each) for each in self._book.scored]
        groups, is_limited = self._room.waves(
            lengths,
            new_tokens=self._workload.new_tokens,
            most=concurrency,
            share=HOT_SHARE if is_hot else WAVE_SHARE,
        )
        if is_limited:
            self._warn_small_waves(is_hot=is_hot, concurrency=concurrency, groups=groups)
        roles: tuple[Role, ...] = ("prime", "scored") if is_hot else ("scored",)
        return tuple(
            tuple(
                PlannedRequest(
                    self._book.scored[index], role, self._engines[index % len(self._engines)]
                )
                for index in group
            )
            for group in groups
            for role in roles
        )

    def _warn_small_waves(
        self, *, is_hot: bool, concurrency: int, groups: Sequence[Sequence[int]]
    ) -> None:
        sizes = sorted({len(group) for group in groups})
        what, share = ("hot waves", "half") if is_hot else ("waves", "three quarters")
        self.warnings.append(
            f"stage {self._stage}, concurrency {concurrency}: {what} hold {sizes[0]} to "
            f"{sizes[-1]} requests, because {share} of the GPU pool ({self._room.blocks} usable "
            "blocks) holds no more"
        )

    def _faults_in(self, kind: PhaseKind, name: str) -> tuple[PlannedFault, ...]:
        """Return the faults of a phase.

        One with a number of times is switched on once, in the first phase that fits; one without in
        every phase that fits.
        """
        here = [fault for fault in self._pending if fault.phase in {kind.value, name}]
        self._pending = [
            fault for fault in self._pending if fault not in here or fault.times is None
        ]
        return tuple(self._planned(fault) for fault in here)

    def _planned(self, fault: FaultPlan | FakeFault) -> PlannedFault:
        prompt_id = None if fault.prompt is None else f"{self._stage}/{fault.prompt}"
        if isinstance(fault, FaultPlan):
            return PlannedFault(
                mode=fault.mode,
                prompt_id=prompt_id,
                block_index=fault.block_index,
                times=fault.times,
            )
        return PlannedFault(
            mode=fault.kind,
            prompt_id=prompt_id,
            block_index=fault.block_index,
            times=fault.times,
            engine=fault.engine,
            options=fault.options,
        )

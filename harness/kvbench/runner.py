"""Executes a plan: the only loop; owns time limits, signals and teardown.

It measures and files; it never judges. Whatever happens, the server's process tree is ended and the
record is closed: with an end line when the runner lived to write one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec
from pydantic import TypeAdapter

from kvbench import __version__, clock, environments, masking
from kvbench.client import Client
from kvbench.engine.command import events_endpoints
from kvbench.engine.fork import ForkServer
from kvbench.engine.vllm import VllmServer
from kvbench.errors import EngineError, LaunchError
from kvbench.events import (
    SCHEMA_VERSION,
    LifeEnded,
    LifeFailed,
    LifeReady,
    LifeStarted,
    RunEnded,
    RunStarted,
    Skipped,
)
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.progress import Reporter
from kvbench.record import Record
from kvbench.scenario.connectors import Connector
from kvbench.scenario.engines import FakeEngine, ServedEngine, parse_engine
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.scenario.models import Scenario
from kvbench.telemetry.kv_events import KvEventStream
from kvbench.telemetry.machine import machine_facts, source_facts
from kvbench.workloads.faults import FaultSwitch
from kvbench.workloads.gsm8k.driver import Gsm8kDriver
from kvbench.workloads.replay import ReplayDriver
from kvbench.workloads.window import Life

_CONNECTOR: TypeAdapter[Connector] = TypeAdapter(Connector)


class Driver(Protocol):
    """Drives the phases of one stage and arm through a running engine."""

    def run(self, phase: PlannedPhase) -> None:
        """Run one phase; raises EngineError when the engine dies or hangs."""


class Runner:
    """One run of one plan, filed in one record."""

    def __init__(
        self,
        scenario: Scenario,
        plan: Plan,
        record: Record,
        progress: Reporter,
        *,
        model_path: str,
        command: Sequence[str],
    ) -> None:
        self._scenario = scenario
        self._plan = plan
        self._record = record
        self._progress = progress
        self._model_path = model_path
        self._command = tuple(command)
        self._windows = 0
        self._fork_servers: dict[str, ForkServer] = {}

    def run(self) -> RunEnded:
        """Run all lives; returns the end line, which is also written.

        KeyboardInterrupt ends the run in order and is reported as `interrupted`, not raised.
        """
        self._begin()
        ended = RunEnded(time_s=clock.now_s(), outcome="error", reason="kvbench itself failed")
        try:
            broken = [life.life for life in self._plan.lives if not self._live(life)]
            reason = f"engine error in {', '.join(broken)}" if broken else None
            ended = RunEnded(
                time_s=clock.now_s(), outcome="error" if broken else "complete", reason=reason
            )
        except KeyboardInterrupt:
            ended = RunEnded(time_s=clock.now_s(), outcome="interrupted", reason="interrupted")
        finally:
            for server in self._fork_servers.values():
                server.stop()
            self._record.close(ended)
        return ended

    def _begin(self) -> None:
        self._record.write_plan(self._plan)
        secrets = masking.secrets_in(msgspec.to_builtins(self._plan))
        command = masking.mask_argv(self._command)
        self._record.write(
            RunStarted(
                time_s=clock.now_s(),
                schema=SCHEMA_VERSION,
                kvbench_version=__version__,
                run_id=self._record.run_id,
                scenario_name=self._scenario.name,
                command=tuple(masking.mask_text(word, secrets) for word in command),
                source=source_facts(),
                machine=machine_facts(),
            )
        )

    def _live(self, planned: PlannedLife) -> bool:
        """Run one life; False when its engine could not be started, died or hung."""
        remaining = list(planned.phases)
        try:
            with self._started(planned) as drivers:
                while remaining:
                    phase = remaining[0]
                    drivers[phase.stage, phase.arm].run(phase)
                    remaining.pop(0)
        except (LaunchError, EngineError) as error:
            self._fail(planned, error, remaining)
            return False
        return True

    @contextmanager
    def _started(self, planned: PlannedLife) -> Iterator[dict[tuple[str, str], Driver]]:
        """Start the life's server, yield a driver for each stage and arm, and end the server."""
        engine = parse_engine(planned.engine)
        faults = self._fault_switch(planned, engine)
        server = VllmServer(
            planned,
            engine,
            model_path=self._model_path,
            log=self._record.artifact(f"{planned.life}/server.log"),
            fork_server=self._fork_server(engine),
            extra_env=faults.env() if faults else {},
        )
        self._progress.life(f"starting {planned.life} ({', '.join(planned.arms)})")
        try:
            life = self._start(planned, engine, server)
            try:
                yield self._drivers(planned, life, faults)
            finally:
                self._windows = life.windows
                life.client.close()
                if life.events is not None:
                    life.events.stop()
        finally:
            self._stop(planned, server)
            if faults is not None:
                faults.collect("")

    def _fault_switch(self, planned: PlannedLife, engine: ServedEngine) -> FaultSwitch | None:
        """The files of a server that can be told to do wrong."""
        is_fake = isinstance(engine, FakeEngine)
        if not is_fake and not any(phase.faults for phase in planned.phases):
            return None
        return FaultSwitch(self._record, planned.life, is_fake=is_fake)

    def _events(self, planned: PlannedLife, server: VllmServer) -> KvEventStream | None:
        if server.events_folder is None:
            return None
        engines = int(planned.engine["data_parallel"])
        stream = KvEventStream(
            self._record.artifact(f"{planned.life}/kv_events.jsonl"),
            events_endpoints(server.events_folder, engines),
        )
        stream.start()
        return stream

    def _drivers(
        self, planned: PlannedLife, life: Life, faults: FaultSwitch | None
    ) -> dict[tuple[str, str], Driver]:
        return {
            (stage, arm): self._driver(planned, stage, life, faults)
            for stage, arm in dict.fromkeys((phase.stage, phase.arm) for phase in planned.phases)
        }

    def _driver(
        self, planned: PlannedLife, stage: str, life: Life, faults: FaultSwitch | None
    ) -> Driver:
        connector: Connector = _CONNECTOR.validate_python(planned.connector)
        workload = self._scenario.stages[stage].workload
        if isinstance(workload, Gsm8kWorkload):
            is_fake = planned.engine["kind"] == "fake"
            return Gsm8kDriver(
                life,
                self._plan,
                workload,
                connector,
                faults,
                # The fake engine's tokens are its own.
                tokenizer=None if is_fake else self._model_path,
                trust_remote_code=bool(planned.engine["trust_remote_code"]),
            )
        return ReplayDriver(life, self._plan, workload, connector, faults)

    def _fork_server(self, engine: ServedEngine) -> ForkServer | None:
        """The warm fork server of the engine's interpreter, started once for all lives."""
        if isinstance(engine, FakeEngine) or engine.start != "fork":
            return None
        if engine.python not in self._fork_servers:
            self._progress.life("starting the fork server")
            server = ForkServer(
                environments.resolve_python(engine.python),
                log=self._record.artifact(f"fork-server-{len(self._fork_servers) + 1}.log"),
            )
            self._fork_servers[engine.python] = server
            server.start()
        return self._fork_servers[engine.python]

    def _drain_limit_s(self, planned: PlannedLife) -> float:
        stages = {phase.stage for phase in planned.phases}
        return max(self._scenario.stages[stage].workload.drain_limit_s for stage in stages)

    def _start(self, planned: PlannedLife, engine: ServedEngine, server: VllmServer) -> Life:
        self._record.write(
            LifeStarted(
                time_s=clock.now_s(),
                life=planned.life,
                argv=tuple(masking.mask_argv(server.argv)),
                env=masking.mask_env(server.env),
                python=engine.python,
                vllm_version=_vllm_version(engine),
                start_mode="fake" if isinstance(engine, FakeEngine) else engine.start,
                url=server.url,
                pid=None,
                log=self._record.relative(server.log),
            )
        )
        ready = server.start(self._progress.detail)
        self._record.write(
            LifeReady(
                time_s=clock.now_s(),
                life=planned.life,
                start_s=ready.start_s,
                model_id=ready.model_id,
                process_start_time_s=ready.process_start_time_s,
                effective=ready.effective,
                asked=planned.asked,
            )
        )
        self._progress.say(
            f"{planned.life} ({', '.join(planned.arms)}) up in {ready.start_s:.1f} s"
        )
        return Life(
            life=planned.life,
            server=server,
            client=Client(server.url, ready.model_id, engine.request_limit_s),
            record=self._record,
            progress=self._progress,
            drain_limit_s=self._drain_limit_s(planned),
            progress_limit_s=engine.progress_limit_s,
            events=self._events(planned, server),
            windows=self._windows,
        )

    def _stop(self, planned: PlannedLife, server: VllmServer) -> None:
        self._progress.life(f"stopping {planned.life}")
        stopped = server.stop()
        self._record.write(
            LifeEnded(
                time_s=clock.now_s(),
                life=planned.life,
                orderly=stopped.orderly,
                exit_status=stopped.exit_status,
                stop_s=stopped.stop_s,
                survivors=stopped.survivors,
                killed=stopped.killed if stopped.orderly else (),
            )
        )

    def _fail(
        self,
        planned: PlannedLife,
        error: LaunchError | EngineError,
        remaining: Sequence[PlannedPhase],
    ) -> None:
        is_launch = isinstance(error, LaunchError)
        self._record.write(
            LifeFailed(
                time_s=clock.now_s(),
                life=planned.life,
                kind=error.kind,
                message=str(error),
                log_tail=masking.mask_text(error.log_tail),
                exit_status=error.exit_status,
                phase=None if is_launch or not remaining else remaining[0].name,
            )
        )
        self._progress.say(f"{planned.life}: {error}", style="red")
        for phase in remaining[0 if is_launch else 1 :]:
            self._record.write(
                Skipped(
                    time_s=clock.now_s(),
                    stage=phase.stage,
                    arm=phase.arm,
                    phase=phase.name,
                    reason=f"{planned.life} failed before: {error.kind}",
                )
            )


def _vllm_version(engine: ServedEngine) -> str | None:
    if isinstance(engine, FakeEngine):
        return f"none: fake engine in the manner of {engine.generation}"
    return environments.vllm_version(environments.resolve_python(engine.python))

"""A server as kvbench measures it: started, proved to be ours, watched, and proved gone.

A vLLM server, or kvbench's fake engine, which is a process with the same face.

`/health` answers long before a generation works and long after the engine behind it died, so ready
means a real generation, and alive means that our own process tree still runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from kvbench import clock, environments, masking
from kvbench.client import Client
from kvbench.engine import effective, failures, identity
from kvbench.engine.command import AGENT, EVENTS_FOLDER, HARNESS_PYTHON, MODEL, PORT, fill
from kvbench.engine.family import runs
from kvbench.engine.fork import ForkServer, base_env
from kvbench.engine.patience import TAIL_CHARACTERS, Patience
from kvbench.engine.process import ProcessTree, StopResult, Tree
from kvbench.errors import EngineError, LaunchError
from kvbench.plan_types import PlannedLife
from kvbench.scenario.engines import ServedEngine, VllmEngine
from kvbench.telemetry import metrics

POLL_S: Final = 0.2
PROBE_TOKENS: Final = (100, 101, 102, 103)
COUNTERS_LIMIT_S: Final = 5.0
"""how long the counters may take to show the readiness probe"""
DEATH_GRACE_S: Final = 3.0
"""requests fail some moments before the end of their server can be seen"""
_PASSING: Final = frozenset({"connection", "timeout"})
"""failures of a generation that a server which is still getting ready may show"""
_ENGINE_TITLE: Final = "VLLM::"


class EngineDiedError(EngineError):
    """A server that had become ready has ended."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a server said about itself once a generation had come back."""

    start_s: float
    model_id: str
    process_start_time_s: float | None
    effective: dict[str, Any]


class VllmServer:
    """One server process of one planned life."""

    def __init__(
        self,
        life: PlannedLife,
        engine: ServedEngine,
        *,
        model_path: str,
        log: Path,
        fork_server: ForkServer | None = None,
        extra_env: Mapping[str, str] | None = None,
    ) -> None:
        self._engine = engine
        self._fork_server = fork_server
        self._tree: Tree | None = None
        self._started_s = 0.0
        self._stopped: StopResult | None = None
        self._engine_processes: dict[psutil.Process, str] = {}
        self.log = log
        self.host = "127.0.0.1" if engine.host in {"", "0.0.0.0"} else engine.host  # noqa: S104
        self.port = engine.port or identity.free_port(engine.host)
        self.events_folder = tempfile.mkdtemp(prefix="kvb-") if engine.kv_events else None
        self.argv = fill(life.argv, self._values(model_path))
        self.env = _filled_env(life.env, extra_env or {})
        self.model_id = str(life.asked["model_id"])

    def _values(self, model_path: str) -> dict[str, str]:
        """What stands in the planned command for values that are known only now."""
        values = {PORT: str(self.port), MODEL: model_path, HARNESS_PYTHON: sys.executable}
        if self.events_folder is not None:
            values[EVENTS_FOLDER] = self.events_folder
        return values

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the server; None before its start."""
        return None if self._tree is None else self._tree.pid

    def start(self, on_progress: Callable[[str], None]) -> Ready:
        """Start the process and wait until it really generates.

        Raises LaunchError with a class, vLLM's decisive line and the tail of the log.
        """
        if identity.is_taken(self.host, self.port):
            raise LaunchError(
                f"port {self.port} is taken by {identity.listener(self.port).words()}; "
                "end that server, or leave engine.port out so that a free port is chosen",
                kind="port",
            )
        self._started_s = clock.now_s()
        start_s = clock.monotonic_s()
        self._tree = self._launch()
        try:
            proved, read = self._get_ready(on_progress)
        except EngineError as error:
            status = self._end_within(DEATH_GRACE_S)
            if status is not None:
                raise self._failed(status) from error
            raise LaunchError(
                f"the server is up, but does not answer: {error}",
                kind=failures.classify(self._log_text(), None).kind,
                log_tail=self.log_tail(),
            ) from error
        self._engine_processes = _engine_processes(self._tree.members())
        return Ready(
            start_s=clock.monotonic_s() - start_s,
            model_id=proved.model_id,
            process_start_time_s=proved.process_start_time_s,
            effective={**read, "model_id": proved.model_id, "listener": proved.listener},
        )

    def _get_ready(
        self, on_progress: Callable[[str], None]
    ) -> tuple[identity.Identity, dict[str, Any]]:
        """Wait until it is up, ours and generating; return who it is and its settings."""
        assert self._tree is not None
        with Client(self.url, self.model_id, self._engine.start_limit_s) as client:
            patience = Patience(self.log, self._engine.start_limit_s, on_progress)
            while not client.health():
                self._keep_waiting(patience)
            proved = identity.prove(
                client,
                self._tree,
                port=self.port,
                wanted_model_id=self.model_id,
                started_s=self._started_s,
            )
            while not self._generates(client):
                self._keep_waiting(patience)
            if self._engine.dev_mode:
                self._preflight(client)
            return proved, effective.read(
                metrics_page=client.metrics_page(),
                server_info=client.server_info() if self._engine.dev_mode else None,
                log_text=self._log_text(),
                version=client.version(),
                max_model_len_tokens=proved.max_model_len_tokens,
            )

    def members(self) -> tuple[int, ...]:
        """Process ids of the tree, as far as it is known; none before the start."""
        return () if self._tree is None else tuple(self._tree.members())

    def alive(self) -> bool:
        """Whether the server's main process still runs."""
        return self._tree is not None and self._tree.poll() is None

    def check_alive(self) -> None:
        """Raise EngineDiedError when the server, or an engine process behind it, has ended.

        For use after a request was lost: it waits a moment for an end that cannot be seen yet.
        """
        deadline_s = clock.monotonic_s() + DEATH_GRACE_S
        while True:
            self._raise_if_ended()
            if clock.monotonic_s() >= deadline_s:
                return
            clock.sleep_s(POLL_S)

    def _raise_if_ended(self) -> None:
        assert self._tree is not None, "not started"
        status = self._tree.poll()
        gone = [title for process, title in self._engine_processes.items() if not runs(process)]
        if status is not None:
            what = f"the engine ended with status {status}"
        elif gone:
            what = f"{', '.join(gone)} ended behind a server that still runs"
        elif "EngineDeadError" in self._log_text():
            what = "the engine behind a server that still runs is dead"
        else:
            return
        failure = self._failure(status, has_vanished=bool(gone) and status is None)
        raise EngineDiedError(
            f"{what} ({failure.kind}): {failure.message}",
            kind=failure.kind,
            log_tail=self.log_tail(),
            exit_status=status,
        )

    def log_tail(self) -> str:
        """The last lines of the log, secrets masked."""
        return masking.mask_text(self._log_text()[-TAIL_CHARACTERS:], self._secrets())

    def stop(self) -> StopResult:
        """End the whole tree, and take secrets out of the log; may be called again."""
        if self.events_folder is not None:
            shutil.rmtree(self.events_folder, ignore_errors=True)
        if self._tree is None:
            return StopResult(orderly=True, exit_status=None, stop_s=0.0, survivors=())
        if self._stopped is None:
            self._stopped = self._tree.stop(self._engine.stop_limit_s)
            if self.log.is_file():
                masking.mask_file(self.log, self._secrets())
        return self._stopped

    def _launch(self) -> Tree:
        if self._fork_server is not None:
            try:
                return self._fork_server.launch(
                    self.argv, {**base_env(), **self.env}, self.log, self.log.parent
                )
            except EngineError as error:
                raise LaunchError(str(error), kind="command") from error
        if isinstance(self._engine, VllmEngine):
            # Resolved only here, so that a plan can be made where the interpreter is not.
            environments.resolve_python(self._engine.python)
        tree = ProcessTree(self.argv, log=self.log, env={**base_env(), **self.env})
        tree.start()
        return tree

    def _keep_waiting(self, patience: Patience) -> None:
        """Pause, unless the start has failed or used up its time; then raise LaunchError."""
        assert self._tree is not None
        status = self._tree.poll()
        if status is not None:
            raise self._failed(status)
        exhausted = patience.exhausted()
        if exhausted is not None:
            raise self._timed_out(exhausted)
        clock.sleep_s(POLL_S)

    def _end_within(self, limit_s: float) -> int | None:
        """Return the exit status if the server ends in time: a failed call may come before it."""
        assert self._tree is not None
        deadline_s = clock.monotonic_s() + limit_s
        while (status := self._tree.poll()) is None and clock.monotonic_s() < deadline_s:
            clock.sleep_s(POLL_S)
        return status

    def _generates(self, client: Client) -> bool:
        """Try to generate one token; raises LaunchError when the server refuses to."""
        answer = client.complete(
            PROBE_TOKENS, request_id="kvbench-readiness", new_tokens=1, top_logprobs=0
        )
        if answer.error is None:
            # Counters lag an answer; those of the probe must not fall into the first window.
            metrics.settle(
                client,
                finished=1,
                prompt_tokens=len(PROBE_TOKENS),
                since=(),
                limit_s=COUNTERS_LIMIT_S,
            )
            return True
        if answer.error_kind in _PASSING or answer.http_status == 503:
            return False
        raise LaunchError(
            f"the server is up, but cannot generate: {answer.error}",
            kind=failures.classify(self._log_text(), None).kind,
            log_tail=self.log_tail(),
        )

    def _preflight(self, client: Client) -> None:
        """Resets must exist before load: without them a warm run is taken for a cold one."""
        answer = client.reset_prefix_cache(external=True)
        if answer.http_status in {404, 405}:
            raise LaunchError(
                f"/reset_prefix_cache answers {answer.http_status}: the server does not run in "
                "development mode; set VLLM_SERVER_DEV_MODE=1 (engine.dev_mode: true)",
                kind="dev_mode",
                log_tail=self.log_tail(),
            )

    def _failed(self, status: int) -> LaunchError:
        failure = self._failure(status)
        return LaunchError(
            f"the server ended with status {status} ({failure.kind}): {failure.message}",
            kind=failure.kind,
            log_tail=self.log_tail(),
            exit_status=status,
        )

    def _failure(self, status: int | None, *, has_vanished: bool = False) -> failures.Failure:
        """Classify the log; its decisive line is masked, because it becomes a message."""
        failure = failures.classify(self._log_text(), status, has_vanished=has_vanished)
        return replace(failure, message=masking.mask_text(failure.message, self._secrets()))

    def _timed_out(self, what: str) -> LaunchError:
        return LaunchError(
            f"the server did not become ready: {what}; raise engine.start_limit_s "
            f"({self._engine.start_limit_s:g} s) or look at {self.log}",
            kind="timeout",
            log_tail=self.log_tail(),
        )

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.is_file() else ""

    def _secrets(self) -> tuple[str, ...]:
        return masking.secrets_of(self.env, self.argv)


def _filled_env(planned: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Put in what is known only now; a variable asked from an agent that lacks it is left out."""
    env = {}
    for name, value in {**planned, **extra}.items():
        if value != AGENT:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
    return env


def _engine_processes(pids: Sequence[int]) -> dict[psutil.Process, str]:
    """Find the processes that vLLM titles as its engines and workers, with their titles."""
    found = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(pid)
            title = " ".join(process.cmdline())
            if title.startswith(_ENGINE_TITLE):
                found[process] = title.strip()
    return found

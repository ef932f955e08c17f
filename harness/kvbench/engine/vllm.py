"""A vLLM server as kvbench measures it: started, proved to be ours, watched, and proved gone.

`/health` answers long before a generation works and long after the engine behind it died, so ready
means a real generation, and alive means that our own process tree still runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvbench import clock, environments, masking
from kvbench.client import Client
from kvbench.engine import effective, failures, identity
from kvbench.engine.command import AGENT, MODEL, PORT, fill
from kvbench.engine.fork import ForkServer, base_env
from kvbench.engine.process import ProcessTree, StopResult, Tree
from kvbench.errors import EngineError, LaunchError
from kvbench.plan_types import PlannedLife
from kvbench.scenario.models import VllmEngine

POLL_S: Final = 0.2
PROBE_LIMIT_S: Final = 60.0
TAIL_CHARACTERS: Final = 4000
TOTAL_LIMIT_FACTOR: Final = 10
"""a log that progresses extends the limit of a start, up to this many times"""
PROBE_TOKENS: Final = (100, 101, 102, 103)


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
        engine: VllmEngine,
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
        self.log = log
        self.host = "127.0.0.1" if engine.host in {"", "0.0.0.0"} else engine.host  # noqa: S104
        self.port = engine.port or identity.free_port(engine.host)
        self.argv = fill(life.argv, {PORT: str(self.port), MODEL: model_path})
        self.env = _filled_env(life.env, extra_env or {})
        self.model_id = str(life.asked["model_id"])

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
        with Client(self.url, self.model_id, PROBE_LIMIT_S) as client:
            self._wait_until_up(client, on_progress)
            proved = self._prove(client)
            self._generate(client)
            if self._engine.dev_mode:
                self._preflight(client)
            read = effective.read(
                metrics_page=client.metrics_page(),
                server_info=client.server_info() if self._engine.dev_mode else None,
                log_text=self._log_text(),
                version=client.version(),
                max_model_len_tokens=proved.max_model_len_tokens,
            )
        return Ready(
            start_s=clock.monotonic_s() - start_s,
            model_id=proved.model_id,
            process_start_time_s=proved.process_start_time_s,
            effective={**read, "model_id": proved.model_id, "listener": proved.listener},
        )

    def alive(self) -> bool:
        """Whether the server's main process still runs."""
        return self._tree is not None and self._tree.poll() is None

    def check_alive(self) -> None:
        """Raise EngineError with the class and the decisive line when the server has ended."""
        assert self._tree is not None, "not started"
        status = self._tree.poll()
        if status is not None:
            failure = failures.classify(self._log_text(), status)
            raise EngineError(f"the engine ended ({failure.kind}): {failure.message}")
        failure = failures.classify(self._log_text(), None)
        if "EngineDeadError" in self._log_text():
            raise EngineError(
                f"the engine behind a living server ended ({failure.kind}): {failure.message}"
            )

    def log_tail(self) -> str:
        """The last lines of the log, secrets masked."""
        return masking.mask_text(self._log_text()[-TAIL_CHARACTERS:], self._secrets())

    def stop(self) -> StopResult:
        """End the whole tree, and take secrets out of the log; may be called again."""
        if self._tree is None:
            return StopResult(orderly=True, exit_status=None, stop_s=0.0, survivors=())
        if self._stopped is None:
            self._stopped = self._tree.stop(self._engine.stop_limit_s)
            if self.log.is_file():
                masking.mask_file(self.log, self._secrets())
        return self._stopped

    def _launch(self) -> Tree:
        if self._fork_server is not None:
            return self._fork_server.launch(
                self.argv, {**base_env(), **self.env}, self.log, self.log.parent
            )
        # Resolved only here, so that a plan can be made where the interpreter is not.
        environments.resolve_python(self._engine.python)
        tree = ProcessTree(self.argv, log=self.log, env={**base_env(), **self.env})
        tree.start()
        return tree

    def _wait_until_up(self, client: Client, on_progress: Callable[[str], None]) -> None:
        """Poll `/health`; the limit counts from the last growth of the log."""
        assert self._tree is not None
        begin_s = moved_s = clock.monotonic_s()
        size_bytes = 0
        limit_s = self._engine.start_limit_s
        while True:
            status = self._tree.poll()
            if status is not None:
                raise self._failed(status)
            if client.health():
                return
            now_s = clock.monotonic_s()
            grown_bytes = self.log.stat().st_size if self.log.is_file() else 0
            if grown_bytes > size_bytes:
                size_bytes, moved_s = grown_bytes, now_s
                on_progress(f"starting: {_last_line(self._log_text())}")
            silent_s = now_s - moved_s
            if silent_s > limit_s or now_s - begin_s > limit_s * TOTAL_LIMIT_FACTOR:
                raise self._timed_out(f"the log was silent for {silent_s:.0f} s")
            clock.sleep_s(POLL_S)

    def _prove(self, client: Client) -> identity.Identity:
        assert self._tree is not None
        return identity.prove(
            client,
            self._tree,
            port=self.port,
            wanted_model_id=self.model_id,
            started_s=self._started_s,
        )

    def _generate(self, client: Client) -> None:
        answer = client.complete(
            PROBE_TOKENS, request_id="kvbench-readiness", new_tokens=1, top_logprobs=0
        )
        if answer.error is None:
            return
        assert self._tree is not None
        status = self._tree.poll()
        if status is not None:
            raise self._failed(status)
        if answer.error_kind == "timeout":
            raise self._timed_out("a generation of one token did not come back")
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
        failure = failures.classify(self._log_text(), status)
        return LaunchError(
            f"the server ended with status {status} ({failure.kind}): {failure.message}",
            kind=failure.kind,
            log_tail=self.log_tail(),
            exit_status=status,
        )

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


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return lines[-1][-100:] if lines else ""

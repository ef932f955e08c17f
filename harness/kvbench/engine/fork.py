"""Starts servers from a warm process that has imported vLLM already: seconds instead of 30.

Only for tests and CPU runs: such a server runs vLLM's own code, but not the command that a user
types. The other side of the socket is `kvbench_vllm/kvb_fork_server.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kvbench import clock
from kvbench.engine import guard
from kvbench.engine.command import CONNECTOR_FOLDER, SERVER_MODULE
from kvbench.engine.family import Family
from kvbench.engine.process import ProcessTree, StopResult
from kvbench.errors import EngineError, LaunchError

SCRIPT: Final = CONNECTOR_FOLDER / "kvb_fork_server.py"
WARM_LIMIT_S: Final = 240.0
CALL_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 20.0
UNIPROC: Final = ("--distributed-executor-backend", "uni")
_POLL_S: Final = 0.1
_READY: Final = "ready threads="


class ForkServer:
    """A warm parent of servers for one interpreter; shared between lives, stopped at the end.

    `env` is its whole environment (default: kvbench's own PATH, HOME and locale).
    """

    def __init__(self, python: Path, *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.python = python
        self.log = log
        self._folder = Path(tempfile.mkdtemp(prefix="kvbench-fork-"))
        self._socket = self._folder / "socket"
        self._tree = ProcessTree(
            [str(python), "-u", str(SCRIPT), str(self._socket)],
            log=log,
            env=base_env() if env is None else env,
            cwd=self._folder,
        )
        self._is_started = False

    def start(self) -> None:
        """Start it and wait until it is warm; raises LaunchError with the log's tail."""
        self._tree.start()
        self._is_started = True
        deadline_s = clock.monotonic_s() + WARM_LIMIT_S
        while _READY not in self._log_text():
            status = self._tree.poll()
            if status is not None or clock.monotonic_s() >= deadline_s:
                self.stop()
                what = "took too long to get warm" if status is None else f"ended with {status}"
                raise LaunchError(
                    f"the fork server {what}; its log is {self.log}; "
                    "use `start: plain` to do without it",
                    kind="timeout" if status is None else "unknown",
                    log_tail=self._log_text()[-4000:],
                    exit_status=status,
                )
            clock.sleep_s(_POLL_S)

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.is_file() else ""

    def __enter__(self) -> ForkServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self._is_started and self._tree.poll() is None

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path
    ) -> ForkedTree:
        """Fork a server; `argv` is the whole plain command of the same interpreter."""
        request = {
            "argv": fork_arguments(argv),
            "env": dict(env),
            "log": str(log.resolve()),
            "cwd": str(cwd),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        return ForkedTree(self, int(self.request(request)["pid"]))

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer; raises EngineError when there is none."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(CALL_LIMIT_S)
                connection.connect(str(self._socket))
                connection.sendall(json.dumps(message).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    answer: dict[str, Any] = json.loads(stream.readline() or b"{}")
        except OSError as error:
            raise EngineError(f"the fork server does not answer: {error}") from error
        if not answer or "error" in answer:
            raise EngineError(f"the fork server refused: {answer.get('error', 'no answer')}")
        return answer

    def stop(self) -> StopResult:
        """End it and every server that came from it."""
        if not self._is_started:
            return StopResult(orderly=True, exit_status=None, stop_s=0.0, survivors=())
        result = self._tree.stop(STOP_LIMIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return result


class ForkedTree:
    """A server that was forked: the same face as a ProcessTree.

    The fork server collects it only when it is asked for the exit code, so that until then its
    process id cannot be given to a stranger.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self._pid = pid
        self._family = Family(pid)
        self._exit_status: int | None = None
        self._stopped: StopResult | None = None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._pid

    @property
    def create_time(self) -> float:
        """When it was forked, seconds since the epoch; 0.0 if it ended at once."""
        return self._family.create_time_s or 0.0

    def poll(self) -> int | None:
        """Exit status, None while it runs; also looks for new descendants."""
        if self._exit_status is None:
            self._family.refresh()
            self._exit_status = self._ask()
        return self._exit_status

    def _ask(self) -> int | None:
        try:
            answer = self._server.request({"wait": self._pid})
        except EngineError:
            # Servers are killed with their parent; without it nobody knows how they ended.
            return None if self._server.alive() else -signal.SIGKILL
        code: int | None = answer["exit_code"]
        return code

    def members(self) -> tuple[int, ...]:
        """Process ids of the tree that run now."""
        self._family.refresh(at_least_every_s=0)
        return self._family.pids()

    def stop(self, limit_s: float) -> StopResult:
        """Ask the server to end, kill what is left after `limit_s`, and look whether it is gone."""
        if self._stopped is not None:
            return self._stopped
        start_s = clock.monotonic_s()
        self._family.refresh(at_least_every_s=0)
        ran_before = self.poll() is None
        if ran_before:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
        orderly = self._until_ended(limit_s) and ran_before
        self._until_gone(guard.LEFTOVER_GRACE_S)
        killed = self._family.pids()
        survivors = self._family.kill(guard.KILL_LIMIT_S)
        self.poll()
        self._stopped = StopResult(
            orderly=orderly,
            exit_status=self._exit_status,
            stop_s=clock.monotonic_s() - start_s,
            survivors=survivors,
            killed=killed,
        )
        return self._stopped

    def _until_ended(self, limit_s: float) -> bool:
        deadline_s = clock.monotonic_s() + limit_s
        while self.poll() is None:
            if clock.monotonic_s() >= deadline_s:
                return False
            clock.sleep_s(_POLL_S)
        return True

    def _until_gone(self, limit_s: float) -> None:
        """Give helpers of a server that has ended a moment to follow it."""
        deadline_s = clock.monotonic_s() + limit_s
        while self._exit_status is not None and self.members():
            if clock.monotonic_s() >= deadline_s:
                return
            clock.sleep_s(_POLL_S)


def fork_arguments(argv: Sequence[str]) -> list[str]:
    """Return the server's own arguments of a plain command, with the worker inside the engine.

    One process is possible only where one rank is asked for. Raises LaunchError of kind `command`
    for a command that does not start vLLM's API server.
    """
    words = list(argv)
    if SERVER_MODULE not in words:
        raise LaunchError(f"only `-m {SERVER_MODULE}` can be forked", kind="command")
    own = words[words.index(SERVER_MODULE) + 1 :]
    if "--distributed-executor-backend" in own or _world_size(own) > 1:
        return own
    return [*own, *UNIPROC]


_PARALLEL_FLAGS: Final = {
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
}


def _world_size(words: Sequence[str]) -> int:
    size = 1
    for place, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag in _PARALLEL_FLAGS:
            text = value or (words[place + 1] if place + 1 < len(words) else "1")
            size *= int(text) if text.isdigit() else 1
    return size


def base_env() -> dict[str, str]:
    """Return what every server gets from kvbench's own environment: where programs and home are."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "USER", "KVBENCH_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}

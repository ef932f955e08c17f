"""Starts a command with everything that it will start, and proves it gone afterwards.

An engine that is only asked to stop leaves workers behind that hold memory and ports, and the next
start fails; one that is ended by name takes a stranger with it (fault F31). Every command therefore
runs under `guard`, which also ends it when kvbench itself is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvbench import clock
from kvbench.engine import guard
from kvbench.engine.family import Family
from kvbench.errors import LaunchError

_ANSWER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class StopResult:
    """How a process tree ended.

    `orderly`: the main process ended by itself, in time, after it was asked to. `exit_status` is
    negative for a signal, None where it could not be learnt. `killed` had to be killed, `survivors`
    are still there.
    """

    orderly: bool
    exit_status: int | None
    stop_s: float
    survivors: tuple[int, ...]
    killed: tuple[int, ...] = ()


class Tree(Protocol):
    """A main process and its descendants."""

    @property
    def pid(self) -> int:
        """Process id of the main process."""

    @property
    def create_time(self) -> float:
        """When it was created, seconds since the epoch."""

    def poll(self) -> int | None:
        """Exit status of the main process; None while it runs; negative for a signal."""

    def members(self) -> tuple[int, ...]:
        """Process ids of the tree that run now."""

    def stop(self, limit_s: float) -> StopResult:
        """End everything; the main process gets `limit_s` to end by itself."""


class ProcessTree:
    """A command under a guard.

    `env` is the whole environment. Both output streams go to the end of `log`.
    """

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self._argv = list(argv)
        self._log = log
        self._env = dict(env)
        self._cwd = cwd
        self._guard: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._unread = b""
        self._pid: int | None = None
        self._family: Family | None = None
        self._exit_status: int | None = None
        self._ending: dict[str, Any] | None = None
        self._guard_lost = False
        self._stopped: StopResult | None = None

    def start(self) -> None:
        """Start the command; raises LaunchError of kind `command` when it cannot be executed."""
        assert self._guard is None, "a tree is started once"
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [sys.executable, "-I", "-S", guard.__file__, str(fd), str(os.getpid())]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self._log.open("ab") as log:
            self._guard = subprocess.Popen(
                [*command, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                pass_fds=(fd,),
                start_new_session=True,
            )
        self._control = ours
        deadline_s = clock.monotonic_s() + _ANSWER_LIMIT_S
        while self._pid is None and not self._guard_lost and clock.monotonic_s() < deadline_s:
            self._listen(1.0)
        if self._pid is None:
            self._guard.kill()
            self._guard.wait()
            raise LaunchError(f"{self._argv[0]} could not be started", kind="command")
        self._family = Family(self._pid)

    @property
    def pid(self) -> int:
        """Process id of the command itself (not of its guard)."""
        assert self._pid is not None, "not started"
        return self._pid

    @property
    def create_time(self) -> float:
        """When the command was created, seconds since the epoch; 0.0 if it ended at once."""
        assert self._family is not None, "not started"
        return self._family.create_time_s or 0.0

    def poll(self) -> int | None:
        """Exit status of the command, None while it runs; also looks for new descendants."""
        if self._stopped is None:
            self._listen(0)
        if self._exit_status is None and self._family is not None:
            self._family.refresh()
        return self._exit_status

    def members(self) -> tuple[int, ...]:
        """Process ids of the tree that run now, without the guard."""
        assert self._family is not None, "not started"
        self._family.refresh(at_least_every_s=0)
        return self._family.pids()

    def stop(self, limit_s: float) -> StopResult:
        """Ask the command to end, kill what is left after `limit_s`, and look whether it is gone.

        May be called again; the first answer stays.
        """
        if self._stopped is not None:
            return self._stopped
        assert self._family is not None, "not started"
        start_s = clock.monotonic_s()
        self._family.refresh(at_least_every_s=0)
        self._order_stop(limit_s)
        ending = self._ending or {}
        survivors = {*ending.get("survivors", ()), *self._family.kill(guard.KILL_LIMIT_S)}
        self._end_guard()
        self._stopped = StopResult(
            orderly=bool(ending.get("orderly", False)),
            exit_status=self._exit_status,
            stop_s=clock.monotonic_s() - start_s,
            survivors=tuple(sorted(survivors)),
            killed=tuple(ending.get("killed", ())),
        )
        return self._stopped

    def _order_stop(self, limit_s: float) -> None:
        assert self._control is not None
        try:
            self._control.sendall(f"stop {limit_s} {guard.LEFTOVER_GRACE_S}\n".encode())
        except OSError:
            self._guard_lost = True
        grace_s = guard.LEFTOVER_GRACE_S + guard.KILL_LIMIT_S + _ANSWER_LIMIT_S
        deadline_s = clock.monotonic_s() + limit_s + grace_s
        while self._ending is None and not self._guard_lost and clock.monotonic_s() < deadline_s:
            self._listen(1.0)

    def _end_guard(self) -> None:
        assert self._guard is not None
        assert self._control is not None
        try:
            self._guard.wait(_ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._control.close()

    def _listen(self, limit_s: float) -> None:
        """Take in what the guard has said, waiting at most `limit_s` for it."""
        assert self._control is not None
        while not self._guard_lost and select.select([self._control], [], [], limit_s)[0]:
            limit_s = 0
            try:
                data = self._control.recv(4096)
            except OSError:
                data = b""
            if not data:
                self._guard_lost = True
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
        if self._guard_lost and self._ending is None and self._exit_status is None:
            # The command was told to die with its guard.
            self._exit_status = -signal.SIGKILL

    def _hear(self, message: dict[str, Any]) -> None:
        if "pid" in message:
            self._pid = int(message["pid"])
        elif "exit" in message:
            self._exit_status = int(message["exit"])
        elif "orderly" in message:
            self._ending = message
        elif "error" in message:
            raise LaunchError(
                f"{self._argv[0]} could not be started: {message['error']}", kind="command"
            )

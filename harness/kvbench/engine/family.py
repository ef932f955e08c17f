"""The processes that came from one process, remembered by process id and create time.

Process ids are given out again, so a bare number proves nothing; and a process that was started by
a worker which has since ended hangs under another parent. What was seen once is kept, together with
what shares the session of a known member. Nothing is ever found by its name.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from kvbench import clock

REFRESH_S = 2.0
_TICK_S = 0.05


class Family:
    """A process and everything that was seen to come from it."""

    def __init__(self, pid: int) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._create_time_s: float | None = None
        self._refreshed_s = float("-inf")
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            self._known[pid] = root
            self._create_time_s = root.create_time()

    @property
    def create_time_s(self) -> float | None:
        """When the first process was created, seconds since the epoch; None if it was gone."""
        return self._create_time_s

    def refresh(self, *, at_least_every_s: float = REFRESH_S) -> None:
        """Look for new members; costs a walk over all processes, so it is done now and then."""
        if clock.monotonic_s() - self._refreshed_s < at_least_every_s:
            return
        self._refreshed_s = clock.monotonic_s()
        members = {process.pid for process in self.alive()}
        sessions = {session for pid in members if (session := _session(pid)) in self._known}
        parents = _parents()
        for pid, parent in parents.items():
            if pid in members:
                continue
            chain = parent
            while chain in parents and chain not in members:
                chain = parents[chain]
            if chain in members or _session(pid) in sessions:
                self._add(pid)

    def _add(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if self._create_time_s is None or process.create_time() < self._create_time_s:
                return
            self._known[pid] = process

    def alive(self) -> list[psutil.Process]:
        """Members that still run; a process that took over an old number is not one."""
        return [process for process in self._known.values() if runs(process)]

    def pids(self) -> tuple[int, ...]:
        """Process ids of the members that still run."""
        return tuple(sorted(process.pid for process in self.alive()))

    def kill(self, limit_s: float) -> tuple[int, ...]:
        """Kill every member; return the process ids that are still there after `limit_s`."""
        deadline_s = clock.monotonic_s() + limit_s
        while True:
            self.refresh(at_least_every_s=0)
            alive = self.alive()
            for process in alive:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()
            if not alive or clock.monotonic_s() >= deadline_s:
                return self.pids()
            clock.sleep_s(_TICK_S)


def _parents() -> dict[int, int]:
    parents = {}
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            parents[pid] = psutil.Process(pid).ppid()
    return parents


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def runs(process: psutil.Process) -> bool:
    """Tell whether this very process still runs; one that waits to be collected does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""Starts one command and ends everything that came from it, even when kvbench itself is killed.

Run by its file, `python -I -S guard.py FD OWNER COMMAND...`, so that it needs nothing but the
standard library. FD is one end of a socket pair, OWNER the process that holds the other end. The
guard tells, one JSON object a line: `{"pid": n}` or `{"error": text}`, `{"exit": status}` when the
command ended (negative: signal), and after an order `stop SECONDS GRACE` what it had to do.

The traps: a server's workers move to sessions of their own and lose their parent, so neither a
process group nor a walk over children finds them (the guard is a *subreaper*: every orphan below
it becomes its child, and "no child left" proves that nothing is left); the parent-death signal
follows the thread that started a process, so the guard watches the socket and its parent instead.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

OWNER_POLL_S = 0.5
ORPHAN_GRACE_S = 3.0
LEFTOVER_GRACE_S = 3.0
"""for helpers of a command that ended in an orderly way, such as multiprocessing's tracker"""
KILL_LIMIT_S = 10.0
TICK_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) refused")


def _die_with_guard() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(ancestor: int) -> dict[int, str]:
    """Return the processes below `ancestor` with their state letter (`Z`: ended, not collected)."""
    parents: dict[int, int] = {}
    states: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in brackets may hold spaces and brackets itself.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        states[pid], parents[pid] = fields[0], int(fields[1])
    found: dict[int, str] = {}
    for pid in parents:
        chain = pid
        while chain in parents and chain != ancestor:
            chain = parents[chain]
        if chain == ancestor and pid != ancestor:
            found[pid] = states[pid]
    return found


class Guard:
    """One command, from its start to the proof that nothing of it is left."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control = control
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._told_to_end = False
        self._leftover_grace_s = LEFTOVER_GRACE_S
        self._selector = selectors.DefaultSelector()

    def run(self, command: list[str]) -> int:
        """Start the command, wait for the order to stop or for the owner's end, stop all of it."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._watch()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_guard,  # noqa: PLW1509 - this process has one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say({"error": f"{type(error).__name__}: {error}"})
            return 1
        self._say({"pid": self._process.pid})
        self._end(self._wait_for_order())
        return 0

    def _watch(self) -> None:
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end)
        self._selector.register(woken, selectors.EVENT_READ)
        self._selector.register(self._control, selectors.EVENT_READ)

    def _on_end(self, *_: object) -> None:
        self._told_to_end = True

    def _wait_for_order(self) -> float:
        """Return how many seconds the command gets for an orderly end."""
        while True:
            self._reap()
            for key, _ in self._selector.select(OWNER_POLL_S):
                if not isinstance(key.fileobj, socket.socket):
                    continue
                try:
                    data = key.fileobj.recv(4096)
                except OSError:
                    data = b""
                if key.fileobj is not self._control:
                    continue
                words = data.split()
                if words[:1] == [b"stop"]:
                    self._leftover_grace_s = float(words[2])
                    return float(words[1])
                if not data:
                    return ORPHAN_GRACE_S
            if self._told_to_end or os.getppid() != self._owner:
                return ORPHAN_GRACE_S

    def _reap(self) -> bool:
        """Collect what has ended; tell whether any child is left."""
        assert self._process is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._process.pid:
                self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
                self._say({"exit": self._status})

    def _until(self, deadline_s: float, *, all_gone: bool) -> bool:
        """Wait for the command (or everything) to end; tell whether it did."""
        while True:
            left = self._reap()
            if not left or (not all_gone and self._status is not None):
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(TICK_S)

    def _end(self, limit_s: float) -> None:
        assert self._process is not None
        ended_before = self._status is not None
        orderly = False
        if not ended_before:
            # Not collected yet, so the number cannot belong to anybody else.
            os.kill(self._process.pid, signal.SIGTERM)
            orderly = self._until(time.monotonic() + limit_s, all_gone=False)
        if orderly or ended_before:
            self._until(time.monotonic() + self._leftover_grace_s, all_gone=True)
        killed: set[int] = set()
        deadline_s = time.monotonic() + KILL_LIMIT_S
        while self._reap() and time.monotonic() < deadline_s:
            for pid, state in descendants(os.getpid()).items():
                if state != "Z":
                    killed.add(pid)
                    self._kill(pid)
            time.sleep(TICK_S)
        survivors = [pid for pid, state in descendants(os.getpid()).items() if state != "Z"]
        self._say({"orderly": orderly, "killed": sorted(killed), "survivors": sorted(survivors)})

    def _kill(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _say(self, message: dict[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # the owner is gone; there is nobody to tell


if __name__ == "__main__":
    sys.exit(Guard(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run(sys.argv[3:]))

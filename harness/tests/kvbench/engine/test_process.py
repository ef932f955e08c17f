"""Process trees: ended whole, proved gone, and never a stranger's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

import kvbench
from kvbench.engine import guard
from kvbench.engine.process import ProcessTree
from kvbench.errors import LaunchError

T = TypeVar("T")
ENV = {"PATH": os.environ["PATH"]}
SLEEPER = "import time; time.sleep(600)"
IGNORING = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

# Starts a child in a session of its own that ignores SIGTERM, tells its pid, and goes on.
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {IGNORING!r}], start_new_session=True)
print("child", child.pid, flush=True)
"""
# The same through a process in between that ends: the grandchild hangs under nobody of ours.
DAEMON = f"""
import subprocess, sys, time
middle = {PARENT!r}
subprocess.run([sys.executable, "-c", middle])
"""


def wait_for(look: Callable[[], T | None], limit_s: float = 10) -> T:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def child_pid(log: Path) -> int:
    def look() -> int | None:
        for line in log.read_text().splitlines() if log.exists() else ():
            if line.startswith("child "):
                return int(line.split()[1])
        return None

    return wait_for(look)


def is_gone(pid: int) -> bool | None:
    """True when it is; None when it is not, to be waited for."""
    try:
        return True if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LEFTOVER_GRACE_S", 0.3)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def tree(log: Path) -> Iterator[Callable[..., ProcessTree]]:
    made: list[ProcessTree] = []

    def start(code: str, **more: object) -> ProcessTree:
        made.append(ProcessTree([sys.executable, "-c", code], log=log, env=ENV))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop(0.1)


def test_command_ends_in_an_orderly_way(tree: Callable[..., ProcessTree], log: Path) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    code = f"import signal,sys,time; {handler}; print('child 0', flush=True); time.sleep(600)"
    started = tree(code)
    child_pid(log)
    assert started.poll() is None
    assert abs(started.create_time - time.time()) < 30
    assert started.pid in started.members()
    result = started.stop(5)
    assert (result.orderly, result.exit_status) == (True, 3)
    assert (result.killed, result.survivors) == ((), ())
    assert is_gone(started.pid)


def test_exit_status_of_a_command_that_ends_by_itself(tree: Callable[..., ProcessTree]) -> None:
    started = tree("import sys; print('last words'); sys.exit(7)")
    assert wait_for(started.poll) == 7
    result = started.stop(1)
    assert (result.orderly, result.exit_status) == (False, 7)


def test_signal_that_ended_a_command_is_negative(tree: Callable[..., ProcessTree]) -> None:
    started = tree(SLEEPER)
    os.kill(started.pid, signal.SIGKILL)
    assert wait_for(started.poll) == -signal.SIGKILL


@pytest.mark.parametrize("code", [PARENT + "time.sleep(600)", DAEMON + "time.sleep(600)", DAEMON])
def test_grandchild_that_ignores_the_polite_signal_is_ended(
    tree: Callable[..., ProcessTree], log: Path, code: str
) -> None:
    started = tree(code)
    grandchild = child_pid(log)
    assert is_gone(grandchild) is None
    result = started.stop(2)
    assert grandchild in result.killed
    assert result.survivors == ()
    assert is_gone(grandchild)


def test_command_that_ignores_the_polite_signal_is_killed_after_the_limit(
    tree: Callable[..., ProcessTree], log: Path
) -> None:
    started = tree(IGNORING.replace("time.sleep", "print('child 0', flush=True); time.sleep"))
    child_pid(log)
    result = started.stop(0.5)
    assert not result.orderly
    assert result.exit_status == -signal.SIGKILL
    assert result.killed == (started.pid,)
    assert result.stop_s < 5


def test_stranger_with_the_same_command_survives(
    tree: Callable[..., ProcessTree], log: Path
) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    try:
        tree(SLEEPER).stop(1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stopping_again_gives_the_same_answer(tree: Callable[..., ProcessTree]) -> None:
    started = tree(SLEEPER)
    assert started.stop(1) is started.stop(1)
    assert started.poll() == -signal.SIGTERM


def test_command_that_does_not_exist_is_a_launch_error(log: Path) -> None:
    with pytest.raises(LaunchError, match="FileNotFoundError") as caught:
        ProcessTree(["/no/such/command"], log=log, env=ENV).start()
    assert caught.value.kind == "command"


def test_environment_is_exactly_the_given_one(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_LEAK", "1")
    code = "import os; print(sorted(os.environ))"
    started = ProcessTree([sys.executable, "-c", code], log=log, env={"ONLY": "this"})
    started.start()
    wait_for(started.poll)
    started.stop(1)
    assert "ONLY" in log.read_text()
    assert "KVBENCH_LEAK" not in log.read_text()


HARNESS = """
import sys, time
from pathlib import Path
from typing import TypeVar
from kvbench.engine.process import ProcessTree
tree = ProcessTree([sys.executable, "-c", sys.argv[1]], log=Path(sys.argv[2]), env={})
tree.start()
print(tree.pid, tree._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def harness(log: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A kvbench of its own, the pid of its command and that of the guard."""
    path = str(Path(kvbench.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS, DAEMON + "time.sleep(600)", str(log)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    command, guard = map(int, process.stdout.readline().split())
    yield process, command, guard
    process.kill()
    process.wait()
    process.stdout.close()


def test_nothing_is_left_when_kvbench_itself_is_killed(
    harness: tuple[subprocess.Popen[str], int, int], log: Path
) -> None:
    process, command, guard = harness
    grandchild = child_pid(log)
    process.kill()
    process.wait()
    for pid in (command, grandchild, guard):
        assert wait_for(lambda pid=pid: is_gone(pid), limit_s=12)  # type: ignore[misc]


def test_command_dies_with_its_guard_and_the_rest_is_ended_by_stop(
    tree: Callable[..., ProcessTree], log: Path
) -> None:
    started = tree(PARENT + "time.sleep(600)")
    grandchild = child_pid(log)
    assert grandchild in started.members()
    assert started._guard is not None
    started._guard.kill()
    assert wait_for(started.poll) == -signal.SIGKILL
    result = started.stop(1)
    assert not result.orderly
    assert is_gone(grandchild)


def test_guard_told_to_end_ends_everything(
    harness: tuple[subprocess.Popen[str], int, int], log: Path
) -> None:
    _, command, guard = harness
    grandchild = child_pid(log)
    os.kill(guard, signal.SIGTERM)
    for pid in (command, grandchild):
        assert wait_for(lambda pid=pid: is_gone(pid), limit_s=12)  # type: ignore[misc]

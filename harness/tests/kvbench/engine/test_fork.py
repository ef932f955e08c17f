"""The client of the fork server, against a small fork server that forks sleepers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvbench.engine import fork, guard
from kvbench.engine.command import SERVER_MODULE
from kvbench.engine.fork import ForkServer, fork_arguments
from kvbench.errors import EngineError, LaunchError

# The protocol of kvb_fork_server.py without vLLM: argv[0] says what the child does.
SMALL = """
import json, os, signal, socket, subprocess, sys, time
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen(8)
print("ready threads=1", flush=True)
codes = {}
def child(request):
    listener.close()
    os.setsid()
    what = request["argv"][0]
    if what == "exit":
        os._exit(5)
    if what == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(request["log"], "w").write("up")
    time.sleep(600)
while True:
    connection, _ = listener.accept()
    request = json.loads(connection.makefile().readline())
    if "wait" in request:
        pid = request["wait"]
        if pid not in codes:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        answer = {"exit_code": codes.get(pid)}
    elif request["argv"][0] == "bad":
        answer = {"error": "no"}
    else:
        pid = os.fork()
        if pid == 0:
            child(request)
        answer = {"pid": pid}
    connection.sendall(json.dumps(answer).encode() + b"\\n"); connection.close()
"""


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LEFTOVER_GRACE_S", 0.3)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    monkeypatch.setattr(fork, "SCRIPT", script)
    with ForkServer(Path(sys.executable), log=tmp_path / "fork.log") as started:
        yield started


def launch(server: ForkServer, tmp_path: Path, what: str) -> fork.ForkedTree:
    argv = ["python", "-m", SERVER_MODULE, what]
    log = tmp_path / "life" / "server.log"
    tree = server.launch(argv, {"A": "b"}, log, tmp_path)
    deadline = time.monotonic() + 5
    while what != "exit" and not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return tree


def test_forked_server_is_watched_and_stopped(server: ForkServer, tmp_path: Path) -> None:
    tree = launch(server, tmp_path, "sleeps")
    assert tree.poll() is None
    assert tree.members() == (tree.pid,)
    assert abs(tree.create_time - time.time()) < 30
    result = tree.stop(5)
    assert (result.orderly, result.exit_status) == (True, -signal.SIGTERM)
    assert not psutil.pid_exists(tree.pid)
    assert server.alive()
    assert tree.stop(5) is result


def test_forked_server_that_will_not_end_is_killed_with_its_child(
    server: ForkServer, tmp_path: Path
) -> None:
    tree = launch(server, tmp_path, "stays")
    members = tree.members()
    assert len(members) == 2
    result = tree.stop(0.3)
    assert not result.orderly
    assert result.killed == members
    assert result.survivors == ()


def test_exit_code_of_a_server_that_ended_is_told(server: ForkServer, tmp_path: Path) -> None:
    tree = launch(server, tmp_path, "exit")
    deadline = time.monotonic() + 5
    while tree.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert tree.poll() == 5
    assert tree.stop(1).orderly is False


def test_refusal_is_an_engine_error(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="refused: no"):
        launch(server, tmp_path, "bad")


def test_lost_fork_server_ends_its_servers_and_says_so(server: ForkServer, tmp_path: Path) -> None:
    tree = launch(server, tmp_path, "sleeps")
    os.kill(server._tree.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while tree.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert tree.poll() == -signal.SIGKILL
    assert tree.stop(1).survivors == ()
    assert not psutil.pid_exists(tree.pid) or psutil.Process(tree.pid).status() == "zombie"


def test_stopping_the_fork_server_ends_what_came_from_it(
    server: ForkServer, tmp_path: Path
) -> None:
    tree = launch(server, tmp_path, "stays")
    members = tree.members()
    assert server.stop().survivors == ()
    assert not any(psutil.pid_exists(pid) for pid in members)


def test_fork_server_that_ends_while_warming_is_a_launch_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no vllm here')")
    monkeypatch.setattr(fork, "SCRIPT", script)
    with pytest.raises(LaunchError, match="ended with 1") as caught:
        ForkServer(Path(sys.executable), log=tmp_path / "fork.log").start()
    assert "no vllm here" in caught.value.log_tail


def test_arguments_are_those_after_the_module() -> None:
    argv = ["python", "-m", SERVER_MODULE, "--model", "m"]
    assert fork_arguments(argv) == ["--model", "m", *fork.UNIPROC]
    assert fork_arguments([*argv, "--tensor-parallel-size", "2"])[-2:] == [
        "--tensor-parallel-size",
        "2",
    ]
    assert fork_arguments([*argv, "-dp=2"])[-1] == "-dp=2"
    given = [*argv, "--distributed-executor-backend", "mp"]
    assert fork_arguments(given) == given[3:]


def test_another_command_cannot_be_forked() -> None:
    with pytest.raises(LaunchError):
        fork_arguments(["vllm", "serve", "m"])


def test_server_gets_nothing_secret_of_our_own_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PATH", "/bin")
    assert fork.base_env()["PATH"] == "/bin"
    assert "HF_TOKEN" not in fork.base_env()


def test_fork_server_that_was_never_started_refuses_and_can_be_stopped(tmp_path: Path) -> None:
    server = ForkServer(Path("/no/python"), log=tmp_path / "fork.log")
    assert not server.alive()
    with pytest.raises(EngineError, match="does not answer"):
        server.request({"wait": 1})
    assert server.stop().survivors == ()

"""Life cycle of the fork server: with a stand-in for vLLM, and once with the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "kvbench_vllm"

STAND_IN_SERVER = """
import json, os, subprocess, sys, time

def main():
    what = sys.argv[1]
    if what == "tell":
        print(json.dumps({"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd(),
                          "leads": os.getsid(0) == os.getpid(), "path": sys.path}))
    elif what == "exit":
        sys.exit(int(sys.argv[2]))
    elif what == "raise":
        raise ValueError("broken start")
    else:
        helper = os.fork()
        if helper == 0:
            time.sleep(600)
        print(helper, flush=True)
        time.sleep(600)
"""


def wait_until(holds: Callable[[], bool], deadline_s: float = 60) -> bool:
    end = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A package named vllm with the few names that the fork server needs."""
    root = tmp_path / "site"
    modules = {
        "vllm/utils/system_utils.py": "",
        "vllm/entrypoints/launchers/launcher.py": "",
        "vllm/entrypoints/launchers/api_server/entry.py": STAND_IN_SERVER,
    }
    for name, text in modules.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for folder in (root / "vllm").rglob("*"):
        if folder.is_dir() and folder.name != "__pycache__":
            (folder / "__init__.py").touch()
    (root / "vllm/__init__.py").touch()
    return root


@pytest.fixture
def client(stand_in: Path, tmp_path: Path, fork_client: Any) -> Iterator[Any]:
    client = fork_client(
        Path(sys.executable), tmp_path / "socket", {"PYTHONPATH": str(stand_in), "LEAK": "yes"}
    )
    assert client.said[-1] == "ready threads=1"
    yield client
    client.close()


def exit_code_of(client: Any, pid: int) -> int | None:
    def has_ended() -> bool:
        return client.ask(wait=pid)["exit_code"] is not None

    assert wait_until(has_ended)
    code = client.ask(wait=pid)["exit_code"]
    assert isinstance(code, int)
    return code


def test_child_gets_its_own_arguments_environment_folder_and_session(
    client: Any, tmp_path: Path
) -> None:
    log = tmp_path / "child.log"
    environment = {"PYTHONPATH": "/a:/b", "MARK": "1", "OMP_NUM_THREADS": "2"}
    pid = client.ask(argv=["tell", "--x"], env=environment, log=str(log), cwd=str(tmp_path))["pid"]
    assert exit_code_of(client, pid) == 0
    told = json.loads(log.read_text(encoding="utf-8"))
    assert told["argv"] == ["--x"]
    assert told["cwd"] == str(tmp_path)
    assert told["leads"] is True
    assert told["path"][:2] == ["/a", "/b"]
    assert told["env"] == environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@pytest.mark.parametrize(("argv", "code"), [(["exit", "0"], 0), (["exit", "7"], 7), (["raise"], 1)])
def test_exit_code_of_a_child_is_reported(
    client: Any, tmp_path: Path, argv: list[str], code: int
) -> None:
    log = tmp_path / "child.log"
    pid = client.ask(argv=argv, env={}, log=str(log))["pid"]
    assert exit_code_of(client, pid) == code
    assert ("broken start" in log.read_text(encoding="utf-8")) is (argv == ["raise"])


def test_running_child_has_no_exit_code_and_a_killed_one_its_signal(
    client: Any, tmp_path: Path
) -> None:
    pid = client.ask(argv=["sleep"], env={}, log=str(tmp_path / "log"))["pid"]
    assert client.ask(wait=pid) == {"exit_code": None}
    os.kill(pid, signal.SIGKILL)
    assert exit_code_of(client, pid) == -signal.SIGKILL


@pytest.mark.parametrize(
    "request_",
    [
        {"argv": ["tell"], "env": {}},
        {"argv": "tell", "env": {}, "log": "/tmp/x"},
        {"argv": ["tell"], "env": {"A": 1}, "log": "/tmp/x"},
        {"argv": ["tell"], "env": {}, "log": "/no/such/folder/log"},
        {"wait": 1},
    ],
)
def test_request_that_cannot_be_served_is_answered_with_an_error(
    client: Any, request_: dict[str, object]
) -> None:
    assert list(client.ask(**request_)) == ["error"]
    assert client.process.poll() is None


def test_threads_in_the_parent_are_refused(
    stand_in: Path, tmp_path: Path, fork_client: Any
) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True)"
    (stand_in / "vllm/utils/system_utils.py").write_text(f"{thread}.start()\n", encoding="utf-8")
    client = fork_client(Path(sys.executable), tmp_path / "socket", {"PYTHONPATH": str(stand_in)})
    assert client.said[-1].startswith("failed threads=2")
    assert client.process.wait(20) == 1


def test_quit_ends_children_and_their_children(client: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = client.ask(argv=["sleep"], env={}, log=str(log))["pid"]
    assert wait_until(lambda: text_of(log).endswith("\n"))
    helper = int(log.read_text(encoding="utf-8"))
    assert client.ask(quit=True) == {"quitting": True}
    assert client.process.wait(30) == 0
    assert wait_until(lambda: not is_running(pid) and not is_running(helper))
    assert not (tmp_path / "socket").exists()


OWNER = """
import json, socket, subprocess, sys, time
python, server, path, log, argv, env = sys.argv[1:7]
fork = subprocess.Popen([python, server, path], stdout=subprocess.PIPE, text=True)
for line in fork.stdout:
    if line.startswith("ready"):
        break
link = socket.socket(socket.AF_UNIX)
link.connect(path)
request = {"argv": json.loads(argv), "env": json.loads(env), "log": log}
link.sendall((json.dumps(request) + "\\n").encode())
print(fork.pid, json.loads(link.makefile("r").readline())["pid"], flush=True)
time.sleep(600)
"""


def start_owner(
    python: Path, folder: Path, argv: list[str], child_env: dict[str, str], env: dict[str, str]
) -> tuple[subprocess.Popen[str], list[int]]:
    owner = subprocess.Popen(
        [
            *(sys.executable, "-c", OWNER, str(python), str(FOLDER / "kvb_fork_server.py")),
            *(str(folder / "socket"), str(folder / "log"), json.dumps(argv)),
            json.dumps(child_env),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert owner.stdout is not None
    return owner, [int(each) for each in owner.stdout.readline().split()]


@pytest.mark.parametrize("victim", ["owner", "fork server"])
def test_nothing_survives_a_parent_killed_with_sigkill(
    stand_in: Path, tmp_path: Path, victim: str
) -> None:
    owner, started = start_owner(
        Path(sys.executable), tmp_path, ["sleep"], {}, {"PYTHONPATH": str(stand_in)}
    )
    try:
        log = tmp_path / "log"
        assert wait_until(lambda: text_of(log).endswith("\n"))
        started.append(int(log.read_text(encoding="utf-8")))
        assert all(is_running(pid) for pid in started)
        os.kill(owner.pid if victim == "owner" else started[0], signal.SIGKILL)
        assert wait_until(lambda: not any(is_running(pid) for pid in started))
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.vllm
def test_no_vllm_process_survives_an_owner_killed_with_sigkill(
    vllm_python: Path, checkpoint: Path, tmp_path: Path, server_argv: Any, server_env: Any
) -> None:
    owner, started = start_owner(
        vllm_python, tmp_path, server_argv(checkpoint, 0), server_env, server_env
    )
    log = tmp_path / "log"
    try:
        assert wait_until(lambda: "Application startup complete" in text_of(log), 180), text_of(
            log
        )[-2000:]
        engine = Path(f"/proc/{started[1]}/task/{started[1]}/children").read_text("utf-8").split()
        started += [int(pid) for pid in engine]
        assert len(started) >= 3
        os.kill(owner.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(is_running(pid) for pid in started), 60)
    finally:
        owner.kill()
        owner.wait()

"""A warm parent that imports vLLM once and forks one API server per request.

Servers started here are for tests: log-probabilities may differ from a plain start in the last bits
(OpenMP thread count), so references are taken within one start.

A plain start spends nearly all of its time on imports. The traps of forking instead: threads in the
parent (refused: a lock held by one would stay locked in every child), vLLM's own choice of spawn
(replaced before any other import of vLLM), and servers that outlive their parents (every process
below asks the kernel to be killed with its parent).

Variables that vLLM or torch read while they are imported (logging level, OMP_NUM_THREADS) are those
of the parent; a child's ``env`` comes too late for them.

Run as ``python kvb_fork_server.py SOCKET``. Prints ``ready threads=1``, then answers one JSON
object a line:
``{"argv": [...], "env": {...}, "log": path, "cwd": path}`` -> ``{"pid": n}``,
``{"wait": pid}`` -> ``{"exit_code": n or null}`` (null: still running; negative: signal),
``{"quit": true}`` -> ``{"quitting": true}``. Errors -> ``{"error": text}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

FORK_ENVIRONMENT = {
    # One engine process with the worker inside it, next to the API server.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # An OpenMP pool started before the fork does not exist after it.
    "OMP_NUM_THREADS": "1",
}
"""Set in the parent and, where a request does not set them, in its child."""

SERVER_MODULE = "vllm.entrypoints.launchers.api_server.entry"
PRELOADED_MODULES = (
    SERVER_MODULE,
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.kv_offload.tiering.spec",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector",
    "vllm.model_executor.models.qwen3",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.configuration_qwen3",
    "tokenizers",
)
STOP_GRACE_S = 15.0
OWNER_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    """One line for the process that started this one."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def die_with_parent() -> None:
    """Ask the kernel to kill this process as soon as its parent is gone."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) refused")


class Lineage:
    """Makes every process that a server forks die with the server.

    The kernel tells nobody about a parent that was gone before it was asked, so each child also
    looks whether the process that forked it is still its parent.
    """

    def __init__(self) -> None:
        self._forking = os.getpid()

    def watch(self) -> None:
        """From now on, in this process and its descendants."""
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self._forking = os.getpid()

    def _in_child(self) -> None:
        die_with_parent()
        if os.getppid() != self._forking:
            os._exit(1)


def import_vllm() -> None:
    """Import everything a server needs, with fork in place of vLLM's spawn.

    Modules take ``get_mp_context`` by name, so it is replaced before any of them is imported.
    """
    os.environ.update({key: os.environ.get(key, value) for key, value in FORK_ENVIRONMENT.items()})
    system_utils: Any = importlib.import_module("vllm.utils.system_utils")
    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    for name in PRELOADED_MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            say(f"not preloaded: {name}: {error}")
    # At shutdown vLLM looks for a foreign process on its port. A forked engine holds the inherited
    # socket for a moment longer, is taken for one, and being a zombie makes the lookup raise.
    launcher: Any = importlib.import_module("vllm.entrypoints.launchers.launcher")
    launcher.find_process_using_port = lambda _port: None


def run_server(request: dict[str, Any], parent: int) -> NoReturn:
    """Become the API server that the request describes; never returns."""
    code = 1
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        Lineage().watch()
        redirect_output(request["log"])
        os.chdir(request.get("cwd") or "/")
        replace_environment(request["env"])
        sys.argv = ["vllm-api-server", *request["argv"]]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        importlib.import_module(SERVER_MODULE).main()
        code = 0
    except SystemExit as stop:
        code = exit_code_of(stop)
    except BaseException:  # noqa: BLE001 - the last frame of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_code_of(stop: SystemExit) -> int:
    """The status that the interpreter would give for this exit."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    sys.stderr.write(f"{stop.code}\n")
    return 1


def redirect_output(log: str) -> None:
    """Send stdout and stderr to the log, and read nothing."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(nothing)


def replace_environment(environment: dict[str, str]) -> None:
    """Exchange the whole environment, and honour PYTHONPATH as a fresh interpreter would."""
    os.environ.clear()
    os.environ.update(FORK_ENVIRONMENT)
    os.environ.update(environment)
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = folders


class ForkServer:
    """Answers requests on a Unix socket, one thread, until its owner is gone or says quit.

    A child is reaped only when its exit code is asked for or at the end: until then its process
    id cannot be given to anybody else, so whoever signals it cannot hit a stranger.
    """

    def __init__(self, path: Path, owner: int) -> None:
        self._owner = owner
        self._path = path
        self._running: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._buffers: dict[socket.socket, bytes] = {}
        self._quitting = False

    def serve(self) -> None:
        """Answer until told to quit or orphaned, then stop what was started here."""
        try:
            while not self._quitting and os.getppid() == self._owner:
                for key, _ in self._selector.select(OWNER_POLL_S):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)
        finally:
            self._path.unlink(missing_ok=True)
            self._stop_children()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._buffers[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            del self._buffers[connection]
            connection.close()
            return
        *lines, rest = (self._buffers[connection] + data).split(b"\n")
        self._buffers[connection] = rest
        for line in lines:
            answer = json.dumps(self._answer(line)) + "\n"
            try:
                connection.sendall(answer.encode())
            except OSError:
                return

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return {"error": f"expected an object, got {line[:200]!r}"}
            if "wait" in request:
                return self._exit_code(request["wait"])
            if request.get("quit"):
                self._quitting = True
                return {"quitting": True}
            return {"pid": self._fork(request)}
        except (KeyError, TypeError, ValueError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _fork(self, request: dict[str, Any]) -> int:
        check_request(request)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for connection in (self._listener, *self._buffers):
                connection.close()
            self._selector.close()
            run_server(request, parent)
        self._running.add(pid)
        return pid

    def _exit_code(self, pid: int) -> dict[str, object]:
        if pid in self._running:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._running.discard(pid)
                self._exit_codes[pid] = os.waitstatus_to_exitcode(status)
        elif pid not in self._exit_codes:
            return {"error": f"process {pid} was not started here"}
        return {"exit_code": self._exit_codes.get(pid)}

    def _stop_children(self) -> None:
        """End the servers started here: politely, then their process groups for good."""
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        alive = set(self._running)
        while alive and time.monotonic() < deadline:
            alive = {pid for pid in alive if not has_ended(pid)}
            time.sleep(0.05 if alive else 0)
        for pid in self._running:
            # Not reaped yet, so the group is still this child's: setsid made it the leader.
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._running:
            os.waitpid(pid, 0)


def has_ended(pid: int) -> bool:
    """Whether a child has exited, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def check_request(request: dict[str, Any]) -> None:
    """Refuse a malformed request here: in the child it would only be seen in a log."""
    argv, env, log = request["argv"], request["env"], request["log"]
    if not (isinstance(argv, list) and all(isinstance(each, str) for each in argv)):
        raise TypeError("argv must be a list of strings")
    pairs = env.items() if isinstance(env, dict) else [(env, env)]
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in pairs):
        raise TypeError("env must map strings to strings")
    if not (isinstance(log, str) and Path(log).parent.is_dir()):
        raise ValueError(f"log: no folder for {log!r}")


def main(path: str) -> int:
    """Warm up, check that forking is safe, serve."""
    owner = os.getppid()
    import_vllm()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        say(f"failed threads={threads}: forking a process with threads is not safe")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = ForkServer(Path(path), owner)
    say(f"ready threads={threads}")
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

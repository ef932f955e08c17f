"""What else happens on the machine while a row runs: strangers on the port, and bystanders.

Only processes that were started here are ended, by their handles.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from kvbench import clock
from kvbench.engine.identity import free_port, is_taken
from kvbench.workloads.faults import CONTROL_VARIABLE

_LOOPBACK: Final = "127.0.0.1"
_LIMIT_S: Final = 15.0
_STEP_S: Final = 0.02
_STRANGERS: Final = {"stranger": "fake-model", "stranger_other_model": "another-model"}
_BYSTANDER: Final = "VLLM::EngineCore"


class Setups:
    """Use as a context manager around a run."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._port = free_port(_LOOPBACK) if kind.startswith("stranger") else None
        self._own: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Setups:
        if self._kind in _STRANGERS:
            self._start_stranger(_STRANGERS[self._kind])
            self._until_taken()
        if self._kind == "bystander":
            wait = "import signal; signal.pause()"
            self._own.append(subprocess.Popen([_BYSTANDER, "-c", wait], executable=sys.executable))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        for process in self._own:
            process.kill()
            process.wait()

    def sets(self) -> list[str]:
        """Overrides that the setup needs."""
        return [] if self._port is None else [f"engine.port={self._port}"]

    def watch(self, directory: Path) -> None:
        """Begin what depends on how far the run has come."""
        if self._kind != "stranger_between":
            return
        self._watcher = threading.Thread(target=self._take_port, args=(directory,), daemon=True)
        self._watcher.start()

    def problem(self) -> str | None:
        """What must not be after a run: a process left, a bystander gone."""
        if self._kind == "bystander" and self._own[0].poll() is not None:
            return "an unrelated process with a similar name was ended"
        left = [process.pid for process in psutil.process_iter() if self._is_ours(process)]
        return f"processes were left behind: {left}" if left else None

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            control = process.environ().get(CONTROL_VARIABLE, "")
            return bool(control) and Path(control).is_relative_to(self._folder.resolve())
        return False

    def _take_port(self, directory: Path) -> None:
        """Put a stranger on the port between the check and the start of the server."""
        journal = directory / "journal.jsonl"
        while not self._ended.wait(_STEP_S):
            if journal.is_file() and '"life_started"' in journal.read_text():
                self._start_stranger("fake-model")
                return

    def _start_stranger(self, model: str) -> None:
        assert self._port is not None
        command = [sys.executable, "-m", "kvbench.engine.fake", "--host", _LOOPBACK]
        command += ["--port", str(self._port), "--settings"]
        command += [json.dumps({"model_id": model})]
        self._own.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def _until_taken(self) -> None:
        assert self._port is not None
        deadline_s = clock.monotonic_s() + _LIMIT_S
        while not is_taken(_LOOPBACK, self._port):
            if clock.monotonic_s() > deadline_s:
                raise TimeoutError(f"the stranger did not come up within {_LIMIT_S:.0f} s")
            clock.sleep_s(_STEP_S)

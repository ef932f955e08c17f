"""Real servers for the tests of what runs inside vLLM: one fork server per session.

Tests that need the managed environment are skipped, with the reason, where it is absent.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvbench.tiny import build

FOLDER = Path(__file__).parents[2] / "kvbench_vllm"
sys.path.insert(0, str(FOLDER))

START_DEADLINE_S = 180.0
ANSWER_DEADLINE_S = 60.0
SERVER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONPATH": str(FOLDER),
    "PATH": os.environ["PATH"],
    "HOME": os.environ["HOME"],
}


def wait_until(holds: Callable[[], bool], deadline_s: float, what: str) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.02)


class ForkClient:
    """The test's end of the fork server's socket."""

    def __init__(self, python: Path, path: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(python), str(FOLDER / "kvb_fork_server.py"), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith(("ready", "failed")):
                break
        if self.said and self.said[-1].startswith("ready"):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(str(path))
            self._answers = self._socket.makefile("r")

    def ask(self, **request: object) -> dict[str, Any]:
        self._socket.sendall((json.dumps(request) + "\n").encode())
        answer = json.loads(self._answers.readline())
        assert isinstance(answer, dict)
        return answer

    def close(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)


@dataclass
class Server:
    """One running API server; every answer is parsed."""

    port: int

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=ANSWER_DEADLINE_S) as answer:
            text = answer.read().decode()
        assert isinstance(text, str)
        return text

    def post(self, path: str, body: object = None, request_id: str = "") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if request_id:
            headers["X-Request-Id"] = request_id
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body or {}).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=ANSWER_DEADLINE_S) as answer:
            parsed = json.loads(answer.read())
        assert isinstance(parsed, dict)
        return parsed

    def complete(self, prompt: list[int], request_id: str = "") -> Completion:
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": 4,
            "temperature": 0,
            "logprobs": 20,
            "ignore_eos": True,
        }
        answer = self.post("/v1/completions", body, request_id)
        return Completion(
            cached_tokens=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            top_logprobs=answer["choices"][0]["logprobs"]["top_logprobs"],
        )

    def reset(self, *, external: bool) -> None:
        path = "/reset_prefix_cache" + ("?reset_external=true" if external else "")
        wait_until(lambda: self.post(path)["success"] is True, 10, f"{path} succeeds")

    def hits(self) -> dict[str, float]:
        """Local and external hit tokens so far."""
        names = {
            "vllm:prefix_cache_hits_total": "local",
            "vllm:external_prefix_cache_hits_total": "external",
        }
        found = {}
        for line in self.get("/metrics").splitlines():
            name = line.partition("{")[0]
            if name in names:
                found[names[name]] = float(line.rpartition(" ")[2])
        return found


@dataclass(frozen=True)
class Completion:
    cached_tokens: int
    top_logprobs: list[dict[str, float]]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    default = Path.home() / ".cache/kvbench/envs/cpu/bin/python"
    python = Path(os.environ.get("KVBENCH_VLLM_PYTHON", default))
    if not python.is_file():
        pytest.skip(f"no vLLM interpreter at {python}; set KVBENCH_VLLM_PYTHON")
    return python


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3", cache_dir=tmp_path_factory.mktemp("checkpoints")).path


@pytest.fixture(scope="session")
def fork_server(
    vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkClient]:
    client = ForkClient(vllm_python, tmp_path_factory.mktemp("fork") / "socket", SERVER_ENVIRONMENT)
    assert client.said[-1:] == ["ready threads=1"], client.said
    yield client
    assert client.close() == 0


StartServer = Callable[..., Any]


def server_arguments(checkpoint: Path, port: int, *extra: str) -> list[str]:
    return [
        *("--model", str(checkpoint), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--seed", "0", "--dtype", "float32"),
        *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--max-model-len", "2048", "--max-num-seqs", "8", "--num-gpu-blocks-override", "32"),
        *("--block-size", "128", "--distributed-executor-backend", "uni", *extra),
    ]


@pytest.fixture
def serve(fork_server: ForkClient, checkpoint: Path, tmp_path: Path) -> StartServer:
    """``with serve(kv_transfer_config, **environment) as server``."""

    @contextmanager
    def run(connector: dict[str, object], **environment: str) -> Iterator[Server]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tmp_path / "server.log"
        argv = server_arguments(checkpoint, port, "--kv-transfer-config", json.dumps(connector))
        pid = fork_server.ask(
            argv=argv, env=SERVER_ENVIRONMENT | environment, log=str(log), cwd=str(tmp_path)
        )["pid"]

        def is_up() -> bool:
            if fork_server.ask(wait=pid)["exit_code"] is not None:
                pytest.fail(f"server ended: {log.read_text(encoding='utf-8')[-2000:]}")
            try:
                Server(port).get("/health")
            except (urllib.error.URLError, OSError):
                return False
            return True

        try:
            wait_until(is_up, START_DEADLINE_S, "server is healthy")
            yield Server(port)
        finally:
            if fork_server.ask(wait=pid)["exit_code"] is None:
                os.kill(pid, 15)
            wait_until(
                lambda: fork_server.ask(wait=pid)["exit_code"] is not None, 30, "server ends"
            )

    return run


def prompt_of(seed: int, tokens: int = 1000) -> list[int]:
    return [100 + (i * 37 + seed * 101 + (i * i * seed) % 71) % 100 for i in range(tokens)]


@pytest.fixture
def prompt() -> Callable[..., list[int]]:
    return prompt_of


@pytest.fixture
def fork_client() -> type[ForkClient]:
    return ForkClient


@pytest.fixture
def server_argv() -> Callable[..., list[str]]:
    return server_arguments


@pytest.fixture
def server_env() -> dict[str, str]:
    return SERVER_ENVIRONMENT

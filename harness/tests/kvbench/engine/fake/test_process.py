from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from kvbench import clock
from kvbench.client import Answer, Client
from kvbench.engine import effective, failures, identity
from kvbench.engine.fake.log import FIRST_LINE
from kvbench.engine.fake.settings import FakeGroup, FakeSettings, FaultSetting
from kvbench.engine.family import runs

LIMIT_S = 20.0
PROMPT = tuple(range(300, 350))


class Started:
    """A fake engine as a process of its own."""

    def __init__(self, log: Path, *arguments: str, **settings: Any) -> None:
        self.log = log
        self.port = identity.free_port("127.0.0.1")
        self.settings = FakeSettings(port=self.port, **settings)
        words = msgspec.json.encode(self.settings).decode()
        command = [sys.executable, "-m", "kvbench.engine.fake", "--settings", words, *arguments]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ)
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def until(self, condition: Any) -> None:
        deadline_s = clock.monotonic_s() + LIMIT_S
        while not condition():
            assert clock.monotonic_s() < deadline_s, self.text
            clock.sleep_s(0.01)

    def until_up(self) -> None:
        self.until(lambda: "startup complete" in self.text or self.process.poll() is not None)
        assert self.process.poll() is None, self.text

    def ends(self) -> int:
        return self.process.wait(LIMIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ends()

    def companions(self) -> list[psutil.Process]:
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if " ".join(child.cmdline()).startswith("VLLM::")
        ]

    def ask(self, request_id: str = "w.p1-0") -> Answer:
        with Client(f"http://127.0.0.1:{self.port}", "fake-model", LIMIT_S) as client:
            return client.complete(PROMPT, request_id=request_id, new_tokens=2, top_logprobs=0)

    def health(self) -> bool:
        with Client(f"http://127.0.0.1:{self.port}", "fake-model", LIMIT_S) as client:
            return client.health()


@contextmanager
def started(folder: Path, *arguments: str, **settings: Any) -> Iterator[Started]:
    found = Started(folder / "log.txt", *arguments, **settings)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def faulty(kind: str, request: str | None = None, **options: Any) -> dict[str, Any]:
    return {"faults": (FaultSetting(kind=kind, request=request, options=options),)}


def test_process_looks_and_ends_like_a_server(tmp_path: Path) -> None:
    groups = tuple(FakeGroup(kind="full_attention", block_tokens=size) for size in (16, 32))
    settings: dict[str, Any] = {
        "engines": 2,
        "groups": groups,
        "hash_block_tokens": 16,
        "hit_alignment_tokens": 32,
        "dtype": "bfloat16",
        "max_model_len_tokens": 512,
        "chunk_tokens": 64,
        "connector_class": "SimpleCPUOffloadConnector",
    }
    with started(tmp_path, "--served-model-name", "fake-model", **settings) as fake:
        fake.until_up()
        assert fake.text.splitlines()[0] == FIRST_LINE
        assert fake.ask().error is None
        found = effective.read(metrics_page=None, server_info=None, log_text=fake.text)
        assert (
            found
            | {
                "dtype": "bfloat16",
                "max_model_len_tokens": 512,
                "chunk_tokens": 64,
                "group_block_tokens": [16, 32],
                "connector": "SimpleCPUOffloadConnector",
                "data_parallel": 2,
                "vllm_version": "0.32.0+kvbench.fake",
            }
            == found
        )
        companions = fake.companions()
        titles = {" ".join(each.cmdline()).strip() for each in companions}
        assert titles == {"VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"}
        assert fake.stop() == 0
        assert not any(runs(each) for each in companions)
        assert "shutdown complete" in fake.text


def test_companion_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    with started(tmp_path) as fake:
        fake.until_up()
        (companion,) = fake.companions()
        fake.process.kill()
        fake.until(lambda: not runs(companion))


def test_taken_port_ends_the_start_as_in_vllm(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with started(tmp_path, "--port", port) as fake:
            assert fake.ends() == 1
            assert failures.classify(fake.text, 1).kind == "port"


def test_settings_that_cannot_be_read_end_it_at_once(tmp_path: Path) -> None:
    with started(tmp_path, "--settings", '{"engines": "two"}') as fake:
        assert fake.ends() == 2
        assert "engines" in fake.text


@pytest.mark.parametrize("at", ["admission", "token"])
def test_engine_dies_by_an_exception_and_the_front_lives(tmp_path: Path, at: str) -> None:
    fault = faulty("engine_dies", ".p2-", how="exception", at=at)
    with started(tmp_path, **fault) as fake:
        fake.until_up()
        (companion,) = fake.companions()
        assert fake.ask().error is None
        assert fake.ask("w.p2-0").http_status == 500
        refused = fake.ask()
        assert refused.http_status == 500
        assert "EngineCore encountered an issue" in (refused.error or "")
        assert not runs(companion)
        assert fake.health()
        assert "EngineDeadError" in fake.text
        failure = failures.classify(fake.text, None)
        assert failure.kind == "assertion"
        assert "two block tables" in failure.message


def test_engine_is_killed_without_a_reason_in_the_log(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("engine_dies", how="killed")) as fake:
        fake.until_up()
        (companion,) = fake.companions()
        assert fake.ask().http_status == 500
        assert not runs(companion)
        assert fake.health()
        assert failures.classify(fake.text, None, has_vanished=True).kind == "killed"
        assert fake.stop() == 0


def test_server_listens_late_and_says_so(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("slow_start", delay_s=0.5, logs=True)) as fake:
        fake.until(lambda: "2/2" in fake.text)
        assert "startup complete" not in fake.text.partition("1/2")[0]
        fake.until_up()
        assert fake.ask().error is None


def test_server_that_waits_to_listen_can_be_stopped(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("slow_start", delay_s=60)) as fake:
        fake.until(lambda: "init engine" in fake.text)
        clock.sleep_s(0.05)
        assert fake.stop() == 0
        assert not identity.is_taken("127.0.0.1", fake.port)


def test_health_answers_before_generation_works(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("slow_start", delay_s=0.4, what="generation")) as fake:
        fake.until_up()
        assert fake.health()
        assert fake.ask().http_status == 503
        fake.until(lambda: fake.ask().error is None)


def test_server_ends_at_its_start(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("ends_at_start")) as fake:
        assert fake.ends() == 1
        failure = failures.classify(fake.text, 1)
        assert failure.kind == "config"
        assert "max seq len" in failure.message


def test_server_ignores_a_polite_signal(tmp_path: Path) -> None:
    with started(tmp_path, **faulty("stubborn")) as fake:
        fake.until_up()
        fake.process.send_signal(signal.SIGTERM)
        clock.sleep_s(0.1)
        assert fake.ask().error is None


def test_grandchild_stays_behind_and_holds_memory(tmp_path: Path) -> None:
    fault = faulty("stubborn", what="grandchild", life_s=30)
    with started(tmp_path, **fault) as fake:
        fake.until_up()
        children = psutil.Process(fake.process.pid).children()
        (child,) = [each for each in children if each not in fake.companions()]
        try:
            assert fake.stop() == 0
            child.terminate()
            clock.sleep_s(0.05)
            assert child.is_running()
            assert os.getsid(child.pid) == child.pid
            assert child.memory_info().rss > 50 << 20
        finally:
            child.kill()

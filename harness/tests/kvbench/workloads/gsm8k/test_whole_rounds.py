"""Real lm-eval rounds on the fake engine, by the driver; one is lost in the middle."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gsm8k_rows
import msgspec
import pytest

from kvbench import clock
from kvbench.client import Client
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.vllm import VllmServer
from kvbench.errors import EngineError
from kvbench.events import EvaluationDone, Event, PhaseEnded, RequestDone, SampleDone, WaitDone
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.progress import Silent
from kvbench.record import Record, StoredRecord
from kvbench.scenario.connectors import NoConnector
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.workloads.gsm8k.driver import Gsm8kDriver
from kvbench.workloads.window import Life

pytestmark = pytest.mark.e2e
QUESTIONS = 12


class FakeServer:
    """The face of a server over the fake engine's process."""

    def __init__(self, settings: FakeSettings) -> None:
        argv = [sys.executable, "-m", "kvbench.engine.fake", "--settings"]
        data = msgspec.json.encode(settings).decode()
        self.process = subprocess.Popen([*argv, data], stderr=subprocess.DEVNULL)

    def alive(self) -> bool:
        return self.process.poll() is None

    def check_alive(self) -> None:
        if not self.alive():
            raise EngineError(f"the engine ended with status {self.process.poll()}", kind="died")

    def members(self) -> tuple[int, ...]:
        return (self.process.pid,)

    def log_tail(self) -> str:
        return ""


class Counting(Silent):
    """Calls something after so many answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.at: tuple[int, Callable[[], None]] | None = None

    def done(self, requests: int) -> None:
        self.answers += requests
        if self.at is not None and self.answers == self.at[0]:
            self.at[1]()


@pytest.fixture
def settings() -> FakeSettings:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return FakeSettings(port=port, decode_tokens_per_s=200, max_model_len_tokens=8192)


@pytest.fixture
def server(settings: FakeSettings) -> Iterator[FakeServer]:
    found = FakeServer(settings)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture
def client(settings: FakeSettings, server: FakeServer) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{settings.port}", settings.model_id, 60) as found:
        deadline_s = clock.monotonic_s() + 30
        while not found.health() and clock.monotonic_s() < deadline_s:
            clock.sleep_s(0.1)
        yield found


@pytest.fixture
def life(run: Path, server: FakeServer, client: Client, quick_disk: None) -> Life:
    return Life(
        life="life-1",
        server=cast("VllmServer", server),
        client=client,
        record=Record(run),
        progress=Counting(),
        drain_limit_s=10,
        progress_limit_s=60,
    )


@pytest.fixture
def driver(life: Life, tmp_path: Path) -> Gsm8kDriver:
    data = gsm8k_rows.write(tmp_path)
    workload = Gsm8kWorkload.model_validate(
        {
            "kind": "gsm8k",
            "samples": QUESTIONS,
            "data": {"kind": "files", "train": data.train, "test": data.test},
        }
    )
    plan = Plan(scenario={}, lives=(), prompts={})
    return Gsm8kDriver(life, plan, workload, NoConnector(kind="none"), None, tokenizer=None)


def phase(number: int) -> PlannedPhase:
    return PlannedPhase(
        stage="accuracy",
        arm="none",
        name=f"round-{number}",
        kind="round",
        run=number,
        concurrency=4,
        reset="none",
        sentinel_id=None,
        waves=(),
        new_tokens=16,
        top_logprobs=5,
    )


def filed(life: Life, kind: type[Event]) -> list[Any]:
    lines = (life.record.directory / "journal.jsonl").read_bytes().splitlines()
    decoder = StoredRecord(life.record.directory)._decoder
    return [event for event in map(decoder.decode, lines) if isinstance(event, kind)]


def test_second_round_asks_the_same_and_hits_what_the_first_left(
    life: Life, driver: Gsm8kDriver
) -> None:
    driver.run(phase(1))
    driver.run(phase(2))
    samples = filed(life, SampleDone)
    first, second = samples[:QUESTIONS], samples[QUESTIONS:]
    assert len(second) == QUESTIONS
    told = [(s.doc_id, s.prompt_sha256, s.prompt_tokens, s.answer) for s in first]
    assert told == [(s.doc_id, s.prompt_sha256, s.prompt_tokens, s.answer) for s in second]
    assert all(
        two.cached_tokens > one.cached_tokens for one, two in zip(first, second, strict=True)
    )
    assert [done.samples_answered for done in filed(life, EvaluationDone)] == [QUESTIONS] * 2
    assert filed(life, WaitDone) == []
    requests = filed(life, RequestDone)
    assert all(len(each.tokens) == 16 and len(each.tokens[0].top) == 5 for each in requests)


def test_server_killed_in_mid_round_leaves_the_finished_answers_and_no_score(
    life: Life, driver: Gsm8kDriver, server: FakeServer
) -> None:
    counting = cast("Counting", life.progress)
    counting.at = (4, lambda: server.process.send_signal(signal.SIGKILL))
    with pytest.raises(EngineError, match="ended with status -9"):
        driver.run(phase(1))
    whole = [sample for sample in filed(life, SampleDone) if sample.error is None]
    assert 4 <= len(whole) < QUESTIONS
    assert all(sample.answer and sample.strict_correct is None for sample in whole)
    (ended,) = filed(life, PhaseEnded)
    assert ended.outcome == "aborted"
    assert filed(life, EvaluationDone) == []

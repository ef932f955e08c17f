"""One life of a real vLLM server on the CPU: what is read back from it, and how its end is seen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvbench import environments, tiny
from kvbench.client import Client, Completion
from kvbench.engine import command
from kvbench.engine.vllm import EngineDiedError, Ready, VllmServer
from kvbench.errors import LaunchError
from kvbench.plan_types import PlannedLife
from kvbench.scenario.connectors import Connector, NoConnector, SimpleConnector
from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.models import TinyModel
from kvbench.telemetry import metrics, processes, stores

pytestmark = pytest.mark.vllm

MODEL = TinyModel(kind="tiny", family="qwen3")
SIMPLE = SimpleConnector(kind="simple", copies="host_memory", host_pool_bytes_total=64 << 20)
PROMPT = [(place * 37) % 900 + 50 for place in range(500)]


def engine(**changes: object) -> VllmEngine:
    values = {
        "kind": "vllm",
        "dtype": "float32",
        "max_model_len_tokens": 2048,
        "max_num_seqs": 16,
        "gpu_blocks": 32,
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    return VllmEngine.model_validate(values | changes)


def server(folder: Path, made: VllmEngine, connector: Connector) -> VllmServer:
    path = tiny.build("qwen3", cache_dir=environments.home() / "tiny").path
    argv = command.server_command(
        made,
        connector,
        MODEL,
        model_path=command.MODEL,
        port=command.PORT,
        served_name=command.served_name(MODEL),
    )
    life = PlannedLife(
        life="life-1",
        arms=("a",),
        engine={},
        connector={},
        argv=tuple(argv),
        env=command.server_env(made, connector, MODEL),
        asked=command.asked_settings(made, connector, MODEL),
        phases=(),
    )
    return VllmServer(life, made, model_path=str(path), log=folder / "server.log")


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, Ready]]:
    started = server(tmp_path_factory.mktemp("life"), engine(), SIMPLE)
    try:
        yield started, started.start(lambda _line: None)
    finally:
        assert started.stop().survivors == ()


@pytest.fixture
def client(life: tuple[VllmServer, Ready]) -> Iterator[Client]:
    with Client(life[0].url, life[1].model_id, 60) as made:
        yield made


def test_what_was_asked_for_is_effective(life: tuple[VllmServer, Ready]) -> None:
    asked = command.asked_settings(engine(), SIMPLE, MODEL)
    effective = life[1].effective
    assert {key: effective.get(key) for key in asked} == asked
    assert effective["listener"] == "own"
    assert effective["hash_block_tokens"] == 128
    assert life[1].process_start_time_s is not None


def test_second_answer_hits_and_counters_reach_what_was_sent(client: Client) -> None:
    since = metrics.read(client.metrics_page()).samples
    answers = [
        client.complete(PROMPT, request_id=f"a{turn}", new_tokens=4, top_logprobs=20)
        for turn in range(2)
    ]
    assert [answer.error for answer in answers] == [None, None]
    assert [answer.cached_tokens for answer in answers] == [0, 384]
    assert answers[0].tokens[0].top == answers[1].tokens[0].top
    settled = metrics.settle(client, finished=2, prompt_tokens=1000, since=since, limit_s=10)
    assert settled.reached
    assert metrics.delta(since, settled.samples, "local_hits") == 384
    waited = stores.wait(client, SIMPLE, limit_s=10, nudge=lambda: None)
    assert waited.reached


def test_wave_is_answered_and_reset_is_accepted(client: Client) -> None:
    wave = [
        Completion(prompt=PROMPT[place:], request_id=f"w{place}", new_tokens=3, top_logprobs=5)
        for place in range(8)
    ]
    answers = client.complete_many(wave, concurrency=8)
    assert all(answer.error is None and len(answer.tokens) == 3 for answer in answers)
    assert client.reset_until(external=True, limit_s=10)[-1].success is True


def test_prompt_that_is_too_long_is_an_error_of_http(client: Client) -> None:
    answer = client.complete([5] * 3000, request_id="long", new_tokens=1, top_logprobs=1)
    assert (answer.http_status, answer.error_kind) == (400, "http")


def test_tree_has_memory_and_its_engine_process(life: tuple[VllmServer, Ready]) -> None:
    started = life[0]
    assert started._tree is not None
    used = processes.usage(started._tree.members())
    assert used.processes >= 2
    assert used.rss_bytes > 100 << 20
    assert any("EngineCore" in title for title in started._engine_processes.values())


def test_killed_engine_behind_the_server_is_seen(life: tuple[VllmServer, Ready]) -> None:
    """The last test of this life: it ends it."""
    started = life[0]
    core = next(p for p, title in started._engine_processes.items() if "EngineCore" in title)
    members = [psutil.Process(pid) for pid in started._tree.members()] if started._tree else []
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError):
        started.check_alive()
    assert started.stop().survivors == ()
    assert not any(process.is_running() for process in members)


def test_wrong_flag_ends_the_start_with_its_own_line(tmp_path: Path) -> None:
    started = server(tmp_path, engine(args=("--no-such-flag",)), NoConnector(kind="none"))
    with pytest.raises(LaunchError, match="--no-such-flag") as caught:
        started.start(lambda _line: None)
    assert caught.value.kind == "unknown_flag"
    assert started.stop().survivors == ()

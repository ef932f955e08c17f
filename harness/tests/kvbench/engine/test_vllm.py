"""The life of a server, against a stand-in for vLLM's API server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_server import serving

from kvbench.client import Client
from kvbench.engine import identity, patience, vllm
from kvbench.engine.command import SERVER_MODULE
from kvbench.engine.fork import ForkServer
from kvbench.engine.vllm import EngineDiedError, VllmServer
from kvbench.errors import LaunchError
from kvbench.plan_types import PlannedLife
from kvbench.scenario.engines import VllmEngine
from kvbench.telemetry import metrics

FAKE = Path(__file__).parent / "fake_api_server.py"


def planned(mode: str, env: dict[str, str]) -> PlannedLife:
    argv = (sys.executable, str(FAKE), mode, "--model", "{model}", "--port", "{port}")
    return PlannedLife(
        life="life-1",
        arms=("a",),
        engine={},
        connector={"kind": "none"},
        argv=(*argv, "--served-model-name", "tiny"),
        env=env,
        asked={"model_id": "tiny"},
        phases=(),
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., VllmServer]]:
    made: list[VllmServer] = []

    def make(mode: str, env: dict[str, str] | None = None, **engine: Any) -> VllmServer:
        values = {"kind": "vllm", "python": sys.executable, "stop_limit_s": 2, "start_limit_s": 20}
        made.append(
            VllmServer(
                planned(mode, env or {}),
                VllmEngine.model_validate(values | engine),
                model_path="/m",
                log=tmp_path / "server.log",
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "DEATH_GRACE_S", 0.5)


def silent(_line: str) -> None:
    pass


def test_ready_means_a_generation_and_says_who_answers(
    server: Callable[..., VllmServer],
) -> None:
    started = server("fine")
    ready = started.start(silent)
    assert ready.model_id == "tiny"
    assert ready.process_start_time_s is not None
    assert ready.effective["gpu_blocks"] == 8
    assert ready.effective["max_model_len_tokens"] == 2048
    assert ready.effective["vllm_version"] == "0.0.1"
    assert ready.effective["listener"] == "own"
    assert started.alive()
    started.check_alive()
    stopped = started.stop()
    assert stopped.orderly
    assert not started.alive()
    assert started.pid is not None
    assert not psutil.pid_exists(started.pid)


def test_health_before_generation_is_not_ready(server: Callable[..., VllmServer]) -> None:
    started = server("late_generation")
    said: list[str] = []
    started.start(said.append)
    assert "fake server starts" in said[0]
    with Client(started.url, "tiny", 5) as client:
        answer = client.complete([1], request_id="r", new_tokens=1, top_logprobs=0)
        assert answer.error is None


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("unknown_flag", "unknown_flag", "--nope"),
        ("other_model", "stranger", "it serves another"),
        ("no_reset", "dev_mode", "VLLM_SERVER_DEV_MODE"),
        ("cannot_generate", "unknown", "cannot generate"),
    ],
)
def test_start_that_fails_says_why(
    server: Callable[..., VllmServer], mode: str, kind: str, words: str
) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        server(mode).start(silent)
    assert caught.value.kind == kind


def test_without_development_mode_no_reset_is_needed(server: Callable[..., VllmServer]) -> None:
    server("no_reset", dev_mode=False).start(silent)


def test_silent_start_ends_at_its_limit(server: Callable[..., VllmServer]) -> None:
    with pytest.raises(LaunchError, match="log was silent") as caught:
        server("silent", start_limit_s=1).start(silent)
    assert caught.value.kind == "timeout"


def test_log_that_goes_on_extends_the_limit_but_not_for_ever(
    server: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TOTAL_LIMIT_FACTOR", 1.5)
    with pytest.raises(LaunchError, match="in all") as caught:
        server("talking", start_limit_s=2).start(silent)
    assert caught.value.kind == "timeout"
    assert "still loading" in caught.value.log_tail


def test_port_of_another_server_is_an_error_before_any_load(
    server: Callable[..., VllmServer],
) -> None:
    with serving() as stranger:
        started = server("fine", port=stranger.port)
        with pytest.raises(LaunchError, match=f"pid {os.getpid()}") as caught:
            started.start(silent)
        assert caught.value.kind == "port"
        assert started.pid is None
        assert [seen.path for seen in stranger.seen] == []
    assert started.stop().survivors == ()


def test_stranger_that_took_the_port_in_between_is_not_measured(
    server: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is free when it is checked; our own server then says nothing on it."""
    with serving() as stranger:
        stranger.routes |= {
            "GET /health": lambda handler: handler.give(200, b""),
            "GET /v1/models": lambda handler: handler.give(200, b'{"data":[{"id":"tiny"}]}'),
        }
        monkeypatch.setattr(identity, "is_taken", lambda host, port: False)
        with pytest.raises(LaunchError, match="not the one that was started") as caught:
            server("silent", port=stranger.port).start(silent)
    assert caught.value.kind == "stranger"
    assert not [seen for seen in stranger.seen if seen.path.startswith("/v1/completions")]


def test_older_process_on_the_port_is_a_stranger(
    server: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_process_start_time_s", lambda client: 1.0)
    with pytest.raises(LaunchError, match="older"):
        server("fine").start(silent)


def test_engine_that_died_is_named_with_its_class(server: Callable[..., VllmServer]) -> None:
    started = server("fine")
    started.start(silent)
    assert started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError) as caught:
        started.check_alive()
    assert (caught.value.kind, caught.value.exit_status) == ("killed", -9)


def test_server_that_dies_at_the_first_generation_is_classified(
    server: Callable[..., VllmServer],
) -> None:
    with pytest.raises(LaunchError, match="out of memory") as caught:
        server("dies_later", dev_mode=False).start(silent)
    assert (caught.value.kind, caught.value.exit_status) == ("out_of_memory", -9)


def test_key_does_not_stay_in_the_log(server: Callable[..., VllmServer]) -> None:
    started = server("says_key", env={"VLLM_API_KEY": "abcdef-123456"})
    started.start(silent)
    assert "abcdef-123456" not in started.log_tail()
    started.stop()
    assert "abcdef-123456" not in started.log.read_text()
    assert "'api_key': ['***']" in started.log.read_text()


def test_variable_of_the_agent_is_put_in_at_start_only(
    server: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret1")
    monkeypatch.delenv("ABSENT", raising=False)
    started = server("fine", env={"HF_TOKEN": "{from_agent}", "ABSENT": "{from_agent}", "A": "b"})
    assert started.env == {"HF_TOKEN": "secret1", "A": "b"}


def test_server_that_will_not_end_is_ended_with_its_child(
    server: Callable[..., VllmServer],
) -> None:
    started = server("stays", stop_limit_s=0.5)
    started.start(silent)
    assert started._tree is not None
    members = started._tree.members()
    assert len(members) == 2
    result = started.stop()
    assert not result.orderly
    assert result.survivors == ()
    assert not any(psutil.pid_exists(pid) for pid in members)


def test_server_that_was_never_started_can_be_stopped(server: Callable[..., VllmServer]) -> None:
    assert server("fine").stop().survivors == ()


def test_engine_that_died_behind_a_living_server_is_seen_in_its_log(
    server: Callable[..., VllmServer],
) -> None:
    started = server("fine")
    started.start(silent)
    with started.log.open("a") as log:
        log.write("AssertionError: odd block\nEngineDeadError: See stack trace (above).\n")
    with pytest.raises(EngineDiedError, match="odd block") as caught:
        started.check_alive()
    assert (caught.value.kind, caught.value.exit_status) == ("assertion", None)
    assert "odd block" in caught.value.log_tail


def test_key_does_not_stay_in_a_message(server: Callable[..., VllmServer]) -> None:
    started = server("fine", env={"VLLM_API_KEY": "abcdef-123456"})
    started.start(silent)
    with started.log.open("a") as log:
        log.write("ValueError: bad key abcdef-123456\nEngineDeadError: x\n")
    with pytest.raises(EngineDiedError, match=r"bad key \*\*\*"):
        started.check_alive()


def test_ready_server_has_counted_its_readiness_probe(server: Callable[..., VllmServer]) -> None:
    """Else its tokens would be counted in the first window."""
    started = server("late_counters")
    started.start(silent)
    with Client(started.url, "tiny", 5) as client:
        samples = metrics.read(client.metrics_page()).samples
    assert metrics.total(samples, "prompt_tokens") == len(vllm.PROBE_TOKENS)


def test_refusal_of_the_fork_server_is_a_launch_error(
    server: Callable[..., VllmServer], tmp_path: Path
) -> None:
    started = server("fine")
    started.argv = [sys.executable, "-m", SERVER_MODULE]
    started._fork_server = ForkServer(Path(sys.executable), log=tmp_path / "fork.log")
    with pytest.raises(LaunchError, match="does not answer"):
        started.start(silent)
    assert started.stop().survivors == ()

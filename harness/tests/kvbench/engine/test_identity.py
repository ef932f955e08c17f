"""Who listens on a port, and whether it is the server that was started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest
from small_server import SmallServer, serving, text

from kvbench.client import Client
from kvbench.engine import identity
from kvbench.engine.process import StopResult
from kvbench.errors import EngineError, LaunchError

MODELS = '{"data":[{"id":"tiny","root":"/m","max_model_len":2048}]}'


def test_free_port_is_free_and_a_used_one_is_taken() -> None:
    assert not identity.is_taken("127.0.0.1", identity.free_port("127.0.0.1"))
    with serving() as small:
        assert identity.is_taken("127.0.0.1", small.port)
        assert identity.is_taken("0.0.0.0", small.port)


def test_listener_is_found_and_named() -> None:
    with serving() as small:
        found = identity.listener(small.port)
    assert found.pids == (os.getpid(),)
    assert f"pid {os.getpid()} (" in found.words()


def test_listener_that_cannot_be_determined_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)
    found = identity.listener(1)
    assert found.pids is None
    assert found.words() == "a process that cannot be named"


@dataclass
class OwnTree:
    """A tree of which this very process is a member, so that its servers are our own."""

    status: int | None = None
    pids: tuple[int, ...] = (os.getpid(),)
    pid: int = os.getpid()
    create_time: float = 0.0

    def poll(self) -> int | None:
        return self.status

    def members(self) -> tuple[int, ...]:
        return self.pids

    def stop(self, limit_s: float) -> StopResult:
        raise NotImplementedError


@pytest.fixture
def small() -> Iterator[SmallServer]:
    with serving() as server:
        server.routes["GET /v1/models"] = text(MODELS)
        server.routes["GET /metrics"] = text(f"process_start_time_seconds {time.time()}\n")
        yield server


def prove(small: SmallServer, tree: OwnTree | None = None) -> identity.Identity:
    with Client(small.url, "tiny", 5) as client:
        return identity.prove(
            client,
            tree or OwnTree(),
            port=small.port,
            wanted_model_id="tiny",
            started_s=time.time(),
        )


def refused(small: SmallServer, tree: OwnTree | None = None) -> str:
    with pytest.raises(LaunchError) as caught:
        prove(small, tree)
    assert caught.value.kind == "stranger"
    return str(caught.value)


def test_own_server_is_proved(small: SmallServer) -> None:
    proved = prove(small)
    assert (proved.model_id, proved.model_root, proved.max_model_len_tokens) == (
        "tiny",
        "/m",
        2048,
    )
    assert proved.process_start_time_s is not None
    assert proved.listener == "own"


def test_another_model_is_a_stranger(small: SmallServer) -> None:
    small.routes["GET /v1/models"] = text('{"data":[{"id":"other"}]}')
    assert "it serves other, not tiny" in refused(small)


def test_server_without_models_is_a_stranger(small: SmallServer) -> None:
    small.routes["GET /v1/models"] = text('{"data":[]}')
    assert "no model" in refused(small)


def test_older_server_with_the_same_model_is_a_stranger(small: SmallServer) -> None:
    small.routes["GET /metrics"] = text(f"process_start_time_seconds {time.time() - 3600}\n")
    assert "3600 s older" in refused(small)


def test_start_time_within_the_clocks_rounding_is_ours(small: SmallServer) -> None:
    small.routes["GET /metrics"] = text(f"process_start_time_seconds {time.time() - 2}\n")
    assert prove(small).listener == "own"


def test_socket_of_another_process_is_a_stranger(small: SmallServer) -> None:
    assert f"belongs to pid {os.getpid()}" in refused(small, OwnTree(pids=(1,)))


def test_answer_after_our_own_process_ended_is_a_strangers(small: SmallServer) -> None:
    assert "ours ended with status 1" in refused(small, OwnTree(status=1))


def test_start_time_that_is_not_told_is_unknown(small: SmallServer) -> None:
    del small.routes["GET /metrics"]
    assert prove(small).process_start_time_s is None


def test_owner_that_is_not_told_is_unknown(
    small: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    assert prove(small).listener == "unknown"
    assert identity.listener(small.port).words() == "a process that cannot be named"


def test_server_that_does_not_list_its_models_is_an_error(small: SmallServer) -> None:
    small.routes["GET /v1/models"] = text("busy", 500)
    with pytest.raises((LaunchError, EngineError), match="HTTP 500"):
        prove(small)


def test_listener_is_named_without_its_arguments() -> None:
    port = identity.free_port("127.0.0.1")
    code = (
        "import socket,sys,time; s=socket.create_server(('127.0.0.1', int(sys.argv[1])));"
        "print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(port), "secret"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = identity.listener(port)
        assert found.pids == (process.pid,)
        assert str(process.pid) in found.words()
        assert "secret" not in found.words()
    finally:
        process.kill()
        process.communicate()

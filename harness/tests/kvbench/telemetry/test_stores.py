"""When stores count as done."""

from __future__ import annotations

import pytest

from kvbench.scenario.connectors import NativeConnector, NoConnector, SimpleConnector
from kvbench.telemetry import stores

IDLE = 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'
BUSY = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 0\n'
SIMPLE = SimpleConnector(kind="simple", host_pool_bytes_total=1)
NATIVE = NativeConnector(kind="native", host_pool_bytes_total=1)


def pending(blocks: int) -> str:
    return f'{IDLE}vllm:simple_kv_offload_pending_store_blocks{{engine="0"}} {blocks}\n'


def stored(size_bytes: int) -> str:
    return f'{IDLE}vllm:kv_offload_store_bytes_total{{engine="0"}} {size_bytes}\n'


class Server:
    def __init__(self, *pages: str, after_nudge: str | None = None) -> None:
        self._pages = list(pages)
        self._after_nudge = after_nudge
        self.nudges = 0

    def metrics_page(self) -> str:
        return self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]

    def nudge(self) -> None:
        self.nudges += 1
        if self._after_nudge is not None:
            self._pages = [self._after_nudge]


@pytest.fixture(autouse=True)
def _quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kvbench.clock.monotonic_s", lambda: now[0])
    monkeypatch.setattr(
        "kvbench.clock.sleep_s", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )


def wait(
    server: Server, connector: SimpleConnector | NativeConnector | NoConnector
) -> stores.StoreWait:
    return stores.wait(server, connector, limit_s=20, nudge=server.nudge)


def test_pending_blocks_are_waited_for() -> None:
    server = Server(pending(3), pending(1), pending(0))
    waited = wait(server, SIMPLE)
    assert waited.reached
    assert waited.waited_s == pytest.approx(0.2)
    assert "simple_pending_store_blocks = 0" in waited.condition
    assert server.nudges == 0


def test_gauge_that_was_never_published_needs_a_nudge_and_is_not_zero() -> None:
    server = Server(IDLE, after_nudge=pending(0))
    waited = wait(server, SIMPLE)
    assert waited.reached
    assert server.nudges == 1
    assert "1 nudges" in waited.detail


def test_stale_gauge_ends_after_its_nudges() -> None:
    server = Server(pending(2))
    waited = wait(server, SIMPLE)
    assert not waited.reached
    assert server.nudges == stores.NUDGES
    assert "simple_pending_store_blocks 2" in waited.detail


def test_busy_engine_is_waited_for_and_not_nudged() -> None:
    server = Server(BUSY)
    waited = wait(server, SIMPLE)
    assert not waited.reached
    assert server.nudges == 0
    assert waited.waited_s == pytest.approx(20, abs=0.2)


def test_bytes_must_stand_still_over_several_looks() -> None:
    server = Server(stored(1), stored(2), stored(3), stored(3))
    waited = wait(server, NATIVE)
    assert waited.reached
    assert waited.waited_s == pytest.approx(0.1 * (2 + stores.QUIET_POLLS))


def test_no_connector_has_only_to_be_idle() -> None:
    assert wait(Server(IDLE), NoConnector(kind="none")).waited_s == 0


def test_series_that_is_still_absent_after_a_nudge_is_given_up() -> None:
    server = Server(IDLE)
    waited = wait(server, SIMPLE)
    assert (waited.reached, waited.is_unreadable, server.nudges) == (False, True, 1)
    assert waited.waited_s == pytest.approx(2 * stores.STALE_S, abs=0.3)


def test_series_that_the_nudge_brings_is_waited_for() -> None:
    server = Server(IDLE, after_nudge=pending(0))
    waited = wait(server, SIMPLE)
    assert (waited.reached, waited.is_unreadable) == (True, False)

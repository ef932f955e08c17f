"""The watchdog: what counts as progress, and what never does."""

from __future__ import annotations

import pytest

from kvbench import clock
from kvbench.errors import EngineError
from kvbench.workloads.watchdog import Watchdog


class Server:
    """A page with one number that moves, or none."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.usage = 0.0
        self.is_lost = False

    def metrics_page(self) -> str:
        if self.is_lost:
            raise EngineError("/metrics: connection refused")
        return (
            f'vllm:prompt_tokens_total{{engine="0"}} {self.prompt_tokens}\n'
            f'vllm:num_requests_waiting{{engine="0"}} 3\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.usage}\n'
        )

    def health(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now[0])
    return now


def test_nothing_moves_for_the_limit(now: list[float]) -> None:
    watchdog = Watchdog(Server(), limit_s=8)
    watchdog.look()
    now[0] = 7.9
    watchdog.look()
    now[0] = 8.0
    with pytest.raises(EngineError, match=r"no progress for 8 s.*waiting 3.*/health 200") as caught:
        watchdog.look()
    assert caught.value.kind == "hang"


@pytest.mark.parametrize("field", ["prompt_tokens", "usage"])
def test_any_token_or_block_is_progress(now: list[float], field: str) -> None:
    server = Server()
    watchdog = Watchdog(server, limit_s=8)
    for second in range(1, 100):
        now[0] = float(second)
        setattr(server, field, second)
        watchdog.look()


def test_page_that_cannot_be_had_is_no_progress(now: list[float]) -> None:
    server = Server()
    watchdog = Watchdog(server, limit_s=8)
    watchdog.look()
    server.is_lost = True
    now[0] = 9.0
    with pytest.raises(EngineError, match="no progress"):
        watchdog.look()


def test_it_looks_several_times_within_the_limit() -> None:
    assert Watchdog(Server(), limit_s=8).pause_s == 1.0
    assert Watchdog(Server(), limit_s=0.01).pause_s >= 0.1

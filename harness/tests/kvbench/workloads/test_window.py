"""What a window files, and what it makes of an engine that no longer answers."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from kvbench import clock
from kvbench.client import Answer, Client, Completion, ErrorKind, ResetAnswer, Watch
from kvbench.engine.vllm import VllmServer
from kvbench.errors import EngineError
from kvbench.events import (
    Event,
    MemorySampled,
    PhaseEnded,
    RequestDone,
    ResetDone,
    Snapshot,
    WaitDone,
)
from kvbench.plan_types import PlannedPhase
from kvbench.progress import TerminalProgress
from kvbench.record import Record, StoredRecord
from kvbench.scenario.connectors import NoConnector, SimpleConnector
from kvbench.telemetry import metrics
from kvbench.workloads.reset_proof import Limits, ResetRefusedError, prove_reset
from kvbench.workloads.window import Life, Load, Window

NONE = NoConnector(kind="none")
SIMPLE = SimpleConnector(kind="simple", host_pool_bytes_total=1 << 26)
LIMITS = Limits(reset_s=1, store_s=1)


@dataclass
class Engine:
    """Counts what it is sent; stands behind the faces of the client and of the server."""

    hits: list[tuple[int, int]] = field(default_factory=list)
    """local and external hit tokens of the next requests"""
    failure: ErrorKind | None = None
    http_status: int | None = 200
    death: EngineError | None = None
    is_page_lost: bool = False
    is_hung: bool = False
    lag: int = 0
    """tokens that the counters do not show"""
    resets: list[bool] = field(default_factory=list)
    reset_success: bool | None = True
    sent: list[Completion] = field(default_factory=list)
    counters: dict[str, int] = field(
        default_factory=lambda: (
            dict.fromkeys(("prompt_tokens", "request_success", "prefix_cache_hits"), 0)
            | {"external_prefix_cache_hits": 0}
        )
    )

    def complete_many(
        self, requests: Sequence[Completion], concurrency: int, *, watch: Watch
    ) -> list[Answer]:
        if self.is_hung:
            for _ in range(100):
                clock.sleep_s(watch.pause_s)
                watch.look()
        return [self._answer(request) for request in requests]

    def _answer(self, request: Completion) -> Answer:
        self.sent.append(request)
        failed = self.failure is not None
        if not failed:
            local, external = self.hits.pop(0) if self.hits else (0, 0)
            self.counters["prompt_tokens"] += len(request.prompt)
            self.counters["request_success"] += 1
            self.counters["prefix_cache_hits"] += local
            self.counters["external_prefix_cache_hits"] += external
        return Answer(
            request_id=request.request_id,
            sent_s=1.0,
            ttft_s=None if failed else 0.1,
            latency_s=0.2,
            http_status=self.http_status,
            error="no answer" if failed else None,
            error_kind=self.failure,
            prompt_tokens=None if failed else len(request.prompt),
            cached_tokens=None,
            completion_tokens=None,
            finish_reason=None,
            tokens=(),
        )

    def metrics_page(self) -> str:
        if self.is_page_lost:
            raise EngineError("/metrics: connection refused")
        shown = self.counters | {"prompt_tokens": self.counters["prompt_tokens"] - self.lag}
        lines = [f'vllm:{name}_total{{engine="0"}} {value}' for name, value in shown.items()]
        gauges = ("num_requests_running", "num_requests_waiting")
        lines += [f'vllm:{name}{{engine="0"}} 0' for name in gauges]
        lines.append('vllm:simple_kv_offload_pending_store_blocks{engine="0"} 0')
        return "\n".join(lines) + "\n"

    def reset_until(self, *, external: bool, limit_s: float) -> list[ResetAnswer]:
        self.resets.append(external)
        return [ResetAnswer(200, "", self.reset_success)]

    def check_alive(self) -> None:
        if self.death is not None:
            raise self.death

    def log_tail(self) -> str:
        return "the last lines"

    def health(self) -> bool:
        return True

    def members(self) -> tuple[int, ...]:
        return ()


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch, quick_disk: None) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now[0])
    monkeypatch.setattr(clock, "sleep_s", lambda s: now.__setitem__(0, now[0] + s))


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def life(engine: Engine, tmp_path: Path) -> Life:
    return Life(
        life="life-1",
        server=cast("VllmServer", engine),
        client=cast("Client", engine),
        record=Record(tmp_path / "run"),
        progress=TerminalProgress(Console(quiet=True), 1),
        drain_limit_s=1,
        progress_limit_s=4,
    )


def opened(life: Life, concurrency: int = 1) -> Window:
    return Window(
        life, stage="s", arm="a", phase="cold-1", kind="cold", run=1, concurrency=concurrency
    )


def load(prompt_id: str = "s/p1", length: int = 10) -> Load:
    return Load(prompt_id, tuple(range(length)), "scored", new_tokens=1, top_logprobs=1)


def filed(life: Life, kind: type[Event]) -> list[Any]:
    found = StoredRecord(life.record.directory).events()
    return [event for _, event in found if isinstance(event, kind)]


def test_window_files_requests_snapshots_and_a_complete_end(life: Life) -> None:
    with opened(life) as window:
        window.send([load()])
    (ended,) = filed(life, PhaseEnded)
    assert (ended.window, ended.outcome) == ("w001", "complete")
    (done,) = filed(life, RequestDone)
    assert (done.prompt_id, done.wave, done.error) == ("s/p1", 0, None)
    assert [(s.window, s.edge) for s in filed(life, Snapshot)] == [
        ("w001", "before"),
        (f"w001/{done.request_id}", "after"),
        ("w001", "after"),
    ]
    assert not filed(life, WaitDone)


def test_page_of_each_edge_is_kept_whole(life: Life, engine: Engine) -> None:
    with opened(life) as window:
        window.send([load()])
    pages = [snapshot.page for snapshot in filed(life, Snapshot)]
    assert pages[1] is None
    kept = gzip.decompress((life.record.directory / pages[2]).read_bytes()).decode()
    assert kept == engine.metrics_page()


def test_wave_above_concurrency_one_has_no_snapshot_per_request(life: Life) -> None:
    with opened(life, concurrency=2) as window:
        window.send([load("s/p1"), load("s/p2")])
    assert len(filed(life, Snapshot)) == 2


def test_request_ids_are_unique_in_a_run_and_name_window_and_prompt(
    life: Life, engine: Engine
) -> None:
    for _ in range(2):
        with opened(life) as window:
            window.send([load(), load("s/p11")])
            assert engine.sent[-2].request_id.startswith(window.request_mark("s/p1"))
            assert not engine.sent[-1].request_id.startswith(window.request_mark("s/p1"))
    assert len({request.request_id for request in engine.sent}) == 4


def test_hits_since_the_last_snapshot_are_split_by_tier(life: Life, engine: Engine) -> None:
    engine.hits = [(0, 0), (128, 256)]
    with opened(life) as window:
        window.send([load()])
        assert window.cached_split() == (0, 0)
        window.send([load()])
        assert window.cached_split() == (128, 256)


def test_counters_that_never_arrive_are_filed_and_not_waited_for_ever(
    life: Life, engine: Engine
) -> None:
    with opened(life) as window:
        engine.lag = 3
        window.send([load()])
    (wait,) = filed(life, WaitDone)
    assert not wait.reached
    assert "prompt_tokens 7 of 10" in wait.detail
    assert wait.waited_s >= life.drain_limit_s


def test_counter_that_goes_back_aborts_the_window(life: Life, engine: Engine) -> None:
    engine.counters["prompt_tokens"] = 100

    def measure() -> None:
        with opened(life) as window:
            engine.lag = 100
            window.send([load()])

    with pytest.raises(metrics.CounterRestartedError) as caught:
        measure()
    assert caught.value.kind == "restarted"
    assert filed(life, PhaseEnded)[0].outcome == "aborted"


def test_timeout_of_a_living_process_is_a_hang(life: Life, engine: Engine) -> None:
    engine.failure = "timeout"
    with pytest.raises(EngineError) as caught, opened(life) as window:
        window.send([load()])
    assert (caught.value.kind, caught.value.log_tail) == ("hang", "the last lines")
    assert "a hang" in str(caught.value)
    assert filed(life, RequestDone)[0].error_kind == "timeout"
    assert filed(life, PhaseEnded)[0].outcome == "aborted"


def test_dropped_connection_of_a_living_process_is_no_hang(life: Life, engine: Engine) -> None:
    engine.failure = "connection"
    with pytest.raises(EngineError) as caught, opened(life) as window:
        window.send([load()])
    assert caught.value.kind == "connection"
    assert "hang" not in str(caught.value)


@pytest.mark.parametrize(
    ("failure", "status"), [("timeout", None), ("connection", None), ("http", 500)]
)
def test_dead_engine_is_named_before_any_other_reason(
    life: Life, engine: Engine, failure: ErrorKind, status: int | None
) -> None:
    engine.failure, engine.http_status = failure, status
    engine.death = EngineError("the engine ended", kind="out_of_memory")
    with pytest.raises(EngineError) as caught, opened(life) as window:
        window.send([load()])
    assert caught.value.kind == "out_of_memory"


def test_refused_request_of_a_living_engine_is_filed_and_the_window_goes_on(
    life: Life, engine: Engine
) -> None:
    engine.failure, engine.http_status = "http", 400
    with opened(life) as window:
        window.send([load()])
    assert filed(life, PhaseEnded)[0].outcome == "complete"


@pytest.mark.parametrize("edge", ["before", "after"])
def test_window_whose_snapshot_cannot_be_had_is_closed_as_aborted(
    life: Life, engine: Engine, edge: str
) -> None:
    engine.is_page_lost = edge == "before"
    engine.death = EngineError("the engine ended", kind="killed")
    with pytest.raises(EngineError) as caught, opened(life):
        engine.is_page_lost = True
    assert caught.value.kind == "killed"
    (ended,) = filed(life, PhaseEnded)
    assert ended.outcome == "aborted"


def test_interrupt_aborts_the_window(life: Life) -> None:
    with pytest.raises(KeyboardInterrupt), opened(life):
        raise KeyboardInterrupt
    (ended,) = filed(life, PhaseEnded)
    assert (ended.outcome, ended.reason) == ("aborted", "KeyboardInterrupt")


def phase(reset: str = "all", engines: tuple[int | None, ...] = (None,)) -> PlannedPhase:
    return PlannedPhase(
        stage="s",
        arm="a",
        name="fresh-1",
        kind="fresh",
        run=1,
        concurrency=1,
        reset=cast("Any", reset),
        sentinel_id="s/s1",
        waves=(),
        new_tokens=1,
        top_logprobs=1,
        engines=engines,
    )


def prove(
    life: Life,
    connector: NoConnector | SimpleConnector,
    reset: str = "all",
    engines: tuple[int | None, ...] = (None,),
) -> None:
    prove_reset(
        life,
        phase(reset, engines),
        tuple(range(10)),
        connector=connector,
        number=1,
        limits=LIMITS,
    )


def test_proof_sees_the_sentinel_hit_in_both_tiers_before_it_resets_all(
    life: Life, engine: Engine
) -> None:
    engine.hits = [(0, 0), (8, 0), (0, 8), (0, 0)]
    prove(life, SIMPLE)
    assert engine.resets == [False, True]
    assert [done.role for done in filed(life, RequestDone)] == ["sentinel"] * 4
    assert [done.scope for done in filed(life, ResetDone)] == ["local", "all"]


def test_proof_shows_the_sentinel_to_every_engine(life: Life, engine: Engine) -> None:
    engine.hits = [(0, 0), (0, 0), (8, 0), (8, 0), (0, 8), (0, 8), (0, 0), (0, 0)]
    prove(life, SIMPLE, engines=(0, 1))
    assert [sent.data_parallel_rank for sent in engine.sent] == [0, 1] * 4
    assert engine.resets == [False, True]


def test_tier_that_one_engine_does_not_serve_is_asked_again(life: Life, engine: Engine) -> None:
    engine.hits = [(0, 0), (0, 0), (8, 0), (8, 0), (0, 8), (0, 0), (0, 8), (0, 0), (0, 0), (0, 0)]
    prove(life, SIMPLE, engines=(0, 1))
    assert engine.resets == [False, False, True]


def test_proof_without_tier_resets_once(life: Life, engine: Engine) -> None:
    engine.hits = [(0, 0), (8, 0), (0, 0)]
    prove(life, NONE)
    assert len(engine.sent) == 3
    assert engine.resets == [True]


def test_proof_of_a_device_reset_leaves_the_tier_alone(life: Life, engine: Engine) -> None:
    engine.hits = [(0, 0), (8, 0), (0, 8)]
    prove(life, SIMPLE, "local")
    assert engine.resets == [False]


def test_sentinel_that_never_hits_ends_the_proof_after_its_tries(
    life: Life, engine: Engine
) -> None:
    prove(life, SIMPLE)
    assert len(engine.sent) == 1 + 4 + 2 + 1


def test_reset_without_an_answer_is_left_to_the_probe(life: Life, engine: Engine) -> None:
    engine.reset_success = None
    engine.hits = [(0, 0), (8, 0), (0, 0)]
    prove(life, NONE)
    (done,) = filed(life, ResetDone)
    assert (done.success, done.answers) == (None, ("HTTP 200",))


def test_refused_reset_aborts_the_proof(life: Life, engine: Engine) -> None:
    engine.reset_success = False
    engine.hits = [(0, 0), (8, 0)]
    with pytest.raises(ResetRefusedError, match="success: false"):
        prove(life, NONE)
    assert filed(life, PhaseEnded)[0].outcome == "aborted"


def test_requests_that_wait_on_an_engine_that_does_nothing_are_a_hang(
    life: Life, engine: Engine
) -> None:
    engine.is_hung = True
    no_progress = pytest.raises(EngineError, match=r"no progress for 4 s.*/health 200")
    with no_progress as caught, opened(life) as window:
        window.send([load()])
    assert caught.value.kind == "hang"
    assert caught.value.log_tail == "the last lines"


def test_memory_of_the_tree_is_filed_when_a_window_closes(life: Life) -> None:
    with opened(life) as window:
        window.send([load()])
    (sample,) = filed(life, MemorySampled)
    assert (sample.window, sample.processes, sample.rss_bytes) == ("w001", 0, 0)


def test_load_of_another_program_is_waited_for_and_parted_from_what_follows(
    life: Life, engine: Engine
) -> None:
    with opened(life) as window:
        engine.counters |= {"prompt_tokens": 300, "request_success": 3, "prefix_cache_hits": 64}
        window.settle(3, 300)
        window.send([load()])
    (done,) = filed(life, RequestDone)
    assert done.wave == 1
    snapshots = filed(life, Snapshot)
    assert [s.window for s in snapshots] == [
        "w001",
        "w001/load",
        f"w001/{done.request_id}",
        "w001",
    ]
    hits = [metrics.total(s.samples, "local_hits") for s in snapshots]
    assert hits == [0, 64, 64, 64]


def test_load_that_the_counters_never_show_is_filed(life: Life, engine: Engine) -> None:
    with opened(life) as window:
        engine.counters |= {"prompt_tokens": 299, "request_success": 3}
        window.settle(3, 300)
    (waited,) = filed(life, WaitDone)
    assert (waited.reached, waited.detail) == (False, "prompt_tokens 299 of 300")

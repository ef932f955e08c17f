"""The driver of rounds: what is in the record after whole, refused and lost ones."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gsm8k_script
import msgspec
import pytest

from kvbench.client import Client, ResetAnswer
from kvbench.engine.vllm import VllmServer
from kvbench.errors import EngineError, PrerequisiteError
from kvbench.events import (
    EvaluationDone,
    Event,
    PhaseEnded,
    RequestDone,
    SampleDone,
    Skipped,
    Snapshot,
    WaitDone,
)
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.progress import Silent
from kvbench.record import Record, StoredRecord
from kvbench.scenario.connectors import NoConnector
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.workloads import driving
from kvbench.workloads.gsm8k.driver import Gsm8kDriver, data_files, task_name
from kvbench.workloads.reset_proof import ResetRefusedError
from kvbench.workloads.window import Life

SCRIPT = (sys.executable, gsm8k_script.__file__)
FEW = {"kind": "gsm8k", "samples": 4, "rounds": 2}


@dataclass
class Engine:
    """Stands behind the faces of the client and of the server."""

    model_id: str = "fine"
    death: EngineError | None = None
    is_page_moving: bool = True
    max_model_len: int | None = 1000
    reset_success: bool = True
    url: str = "http://127.0.0.1:1"
    request_limit_s: float = 30.0
    pages: int = 0
    checks: int = 0

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self.model_id, "max_model_len": self.max_model_len}]

    def metrics_page(self) -> str:
        """Every page shows a whole round more than the one before."""
        self.pages += 1 if self.is_page_moving else 0
        counters = {
            "prompt_tokens": self.pages * gsm8k_script.SAMPLES * gsm8k_script.PROMPT_TOKENS,
            "request_success": self.pages * gsm8k_script.SAMPLES,
        }
        lines = [f'vllm:{name}_total{{engine="0"}} {value}' for name, value in counters.items()]
        gauges = ("num_requests_running", "num_requests_waiting")
        return "\n".join([*lines, *(f'vllm:{name}{{engine="0"}} 0' for name in gauges)]) + "\n"

    def reset_until(self, *, external: bool, limit_s: float) -> list[ResetAnswer]:
        return [ResetAnswer(200, "", self.reset_success)]

    def alive(self) -> bool:
        return True

    def check_alive(self) -> None:
        self.checks += 1
        if self.death is not None:
            raise self.death

    def log_tail(self) -> str:
        return "the last lines"

    def health(self) -> bool:
        return True

    def members(self) -> tuple[int, ...]:
        return ()


@dataclass
class Stand:
    """A driver on an engine, and what it has filed."""

    directory: Path
    engine: Engine
    data: Path
    workload: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = Record(self.directory)
        self.life = Life(
            life="life-1",
            server=cast("VllmServer", self.engine),
            client=cast("Client", self.engine),
            record=self.record,
            progress=Silent(),
            drain_limit_s=0.1,
            progress_limit_s=30,
        )
        files = {"kind": "files", "train": str(self.data), "test": str(self.data)}
        self.driver = Gsm8kDriver(
            self.life,
            Plan(scenario={}, lives=(), prompts={}),
            Gsm8kWorkload.model_validate(FEW | {"data": files} | self.workload),
            NoConnector(kind="none"),
            None,
            tokenizer=None,
            command=SCRIPT,
        )

    def run(self, *numbers: int, **changes: Any) -> None:
        for number in numbers:
            self.driver.run(msgspec.structs.replace(phase(number), **changes))

    def events(self, kind: type[Event]) -> list[Any]:
        lines = (self.directory / "journal.jsonl").read_bytes().splitlines()
        decoder = StoredRecord(self.directory)._decoder
        return [event for event in map(decoder.decode, lines) if isinstance(event, kind)]


def phase(number: int) -> PlannedPhase:
    return PlannedPhase(
        stage="accuracy",
        arm="simple",
        name=f"round-{number}",
        kind="round",
        run=number,
        concurrency=2,
        reset="none",
        sentinel_id=None,
        waves=(),
        new_tokens=8,
        top_logprobs=1,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.touch()
    return path


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def stand(run: Path, engine: Engine, data: Path, quick_disk: None) -> Stand:
    return Stand(run, engine, data)


def test_rounds_are_filed_window_by_window(stand: Stand) -> None:
    stand.run(1, 2)
    samples, done = stand.events(SampleDone), stand.events(EvaluationDone)
    assert [(each.window, each.round, each.doc_id) for each in samples] == [
        *(("w001", 1, doc) for doc in range(4)),
        *(("w002", 2, doc) for doc in range(4)),
    ]
    assert [(each.window, each.round, each.samples_answered) for each in done] == [
        ("w001", 1, 4),
        ("w002", 2, 4),
    ]
    requests = {each.request_id: each for each in stand.events(RequestDone)}
    assert [each.request_id for each in samples] == list(requests)
    assert all(requests[each.request_id].window == each.window for each in samples)
    assert [each.outcome for each in stand.events(PhaseEnded)] == ["complete", "complete"]
    assert samples[0].request_id == "w001-accuracy.q0-1"


def test_counters_are_waited_for_and_the_load_has_a_snapshot_of_its_own(stand: Stand) -> None:
    stand.run(1)
    windows = [(each.window, each.edge) for each in stand.events(Snapshot)]
    assert windows == [("w001", "before"), ("w001/load", "after"), ("w001", "after")]
    assert stand.events(WaitDone) == []


def test_counters_that_never_show_the_load_are_filed(stand: Stand, engine: Engine) -> None:
    engine.is_page_moving = False
    stand.run(1)
    (waited,) = stand.events(WaitDone)
    assert not waited.reached
    assert waited.detail == "requests_finished 0 of 4; prompt_tokens 0 of 400"


def test_equal_prompts_of_two_rounds_are_kept_once(stand: Stand) -> None:
    stand.run(1, 2)
    (kept,) = (stand.directory / "artifacts" / "gsm8k").iterdir()
    assert json.loads(gzip.decompress(kept.read_bytes())) == {"0": [1, 2], "1": [1, 3]}
    told = json.loads((stand.directory / "artifacts/life-1/w001-spec.json").read_text())
    assert (told["max_length_tokens"], told["concurrency"], told["max_new_tokens"]) == (1000, 2, 8)
    log = stand.directory / "artifacts/life-1/w001-lm-eval.log"
    assert "the last words of a tool" in log.read_text()


def test_refused_question_leaves_the_round_without_a_score(stand: Stand, engine: Engine) -> None:
    engine.model_id = "one_refused"
    stand.run(1)
    (done,) = stand.events(EvaluationDone)
    assert (done.samples_asked, done.samples_answered, done.scores) == (4, 3, {})
    lost = stand.events(SampleDone)[1]
    assert (lost.error, lost.strict_correct) == ("HTTP 400", None)
    assert engine.checks == 0


def test_engine_is_looked_at_after_an_answer_500(stand: Stand, engine: Engine) -> None:
    engine.model_id = "one_broken"
    engine.death = EngineError("EngineCore ended", kind="died")
    with pytest.raises(EngineError, match="EngineCore ended"):
        stand.run(1)
    assert stand.events(EvaluationDone) == []


def test_server_that_died_aborts_the_round_and_keeps_what_was_finished(
    stand: Stand, engine: Engine
) -> None:
    engine.model_id = "lost"
    engine.death = EngineError("the engine ended with status -9", kind="died")
    with pytest.raises(EngineError, match="status -9"):
        stand.run(1)
    samples = stand.events(SampleDone)
    assert [(each.doc_id, each.answer, each.strict_correct) for each in samples] == [
        (0, "#### 0", None),
        (1, "#### 1", None),
        (2, None, None),
    ]
    (ended,) = stand.events(PhaseEnded)
    assert (ended.outcome, "status -9" in ended.reason) == ("aborted", True)
    assert stand.events(EvaluationDone) == []


@pytest.mark.parametrize(("mode", "kind"), [("lost", "connection"), ("timeout", "hang")])
def test_living_server_that_gives_no_answer_is_an_engine_error(
    stand: Stand, engine: Engine, mode: str, kind: str
) -> None:
    engine.model_id = mode
    with pytest.raises(EngineError) as raised:
        stand.run(1)
    assert (raised.value.kind, raised.value.log_tail) == (kind, "the last lines")


@pytest.mark.parametrize(
    ("mode", "words", "kept"),
    [("killed", "status -9", 2), ("too_long", "do not fit", 0), ("crash", "status 1", 0)],
)
def test_tool_that_fails_ends_the_rounds_but_not_the_life(
    stand: Stand, engine: Engine, mode: str, words: str, kept: int
) -> None:
    engine.model_id = mode
    stand.run(1, 2)
    (ended,) = stand.events(PhaseEnded)
    assert (ended.window, ended.outcome) == ("w001", "aborted")
    assert words in ended.reason
    assert len(stand.events(SampleDone)) == kept
    (skipped,) = stand.events(Skipped)
    assert skipped.phase == "round-2"
    assert skipped.reason.startswith("round-1 was aborted: ")
    assert "\n" not in skipped.reason
    assert stand.events(EvaluationDone) == []


def test_server_that_does_not_say_its_limit_is_not_asked(stand: Stand, engine: Engine) -> None:
    engine.max_model_len = None
    stand.run(1)
    (ended,) = stand.events(PhaseEnded)
    assert "does not say max_model_len" in ended.reason
    assert stand.events(RequestDone) == []


def test_refused_reset_skips_this_round_and_those_after_it(
    run: Path, engine: Engine, data: Path, quick_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ResetRefusedError("refused")

    monkeypatch.setattr(driving, "prove_reset", refuse)
    stand = Stand(run, engine, data)
    stand.driver._prompts = {"accuracy/s1": (1, 2)}
    stand.run(1, reset="all", sentinel_id="accuracy/s1")
    stand.run(2)
    reasons = [(each.phase, each.reason) for each in stand.events(Skipped)]
    assert reasons == [("round-1", "refused"), ("round-2", "round-1 was skipped: refused")]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"data": {"kind": "hub"}}, "gsm8k"),
        ({"data": {"kind": "hub"}, "shots_kind": "first_n"}, "gsm8k_first_n"),
        ({"data": {"kind": "own"}}, "gsm8k_own"),
        ({"data": {"kind": "own"}, "shots_kind": "first_n"}, "gsm8k_own_first_n"),
    ],
)
def test_only_the_stock_task_is_called_gsm8k(changes: dict[str, Any], name: str) -> None:
    assert task_name(Gsm8kWorkload.model_validate(FEW | changes)) == name


def test_missing_data_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "no.jsonl")
    data = {"kind": "files", "train": path, "test": path}
    with pytest.raises(PrerequisiteError, match=r"no\.jsonl"):
        data_files(Gsm8kWorkload.model_validate(FEW | {"data": data}))

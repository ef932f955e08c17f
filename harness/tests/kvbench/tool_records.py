"""Records of runs in which another program sent the requests: an evaluation, or AIPerf.

The server's counters move by what the windows say that they served, so that a test can let the tool
and the server disagree.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from records import planned

from kvbench.events import (
    AgentRunDone,
    EvaluationDone,
    Event,
    LifeEnded,
    LifeReady,
    LifeStarted,
    PhaseEnded,
    PhaseStarted,
    ReportedScore,
    RunEnded,
    RunStarted,
    Sample,
    SampleDone,
    Snapshot,
)
from kvbench.judge import judge
from kvbench.plan_types import PlannedLife
from kvbench.record import Record
from kvbench.verdict import Verdict

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
GOLDEN = ROOT / "harness" / "tests" / "golden" / "aiperf"
STAGE = "replay"
START_S = 1_700_000_000.0
LENGTH_TOKENS = 100
QUESTIONS = 40
SMOKE_COMMAND = ("aiperf", "profile", "--scenario", "inferencex-agentx-mvp", "--unsafe-override")


@dataclass
class Played:
    """One window: what its tool filed, and what the server counted."""

    events: list[Event]
    finished: int
    prompt_tokens: int | None = None
    """None: LENGTH_TOKENS a request"""
    cached_tokens: int = 0
    external_tokens: int = 0
    artifacts: Path | None = None
    """copied to where the AgentRunDone event says"""


# ---- an evaluation ---------------------------------------------------------------------------


def digest(text: str) -> str:
    """What the prompt's hash would be."""
    return hashlib.sha256(text.encode()).hexdigest()


def sample(doc_id: int, *, right: bool = True, number: int = 1, **changes: Any) -> SampleDone:
    """A whole answer to one question."""
    text = "42" if right else "41"
    whole = SampleDone(
        time_s=START_S,
        life="",
        window="",
        round=number,
        doc_id=doc_id,
        prompt_sha256=digest(f"question {doc_id}"),
        prompt_tokens=LENGTH_TOKENS,
        cached_tokens=0,
        completion_tokens=8,
        finish_reason="stop",
        answer=f"The answer is {text}. #### {text}",
        strict_answer=text,
        flexible_answer=text,
        strict_correct=right,
        flexible_correct=right,
    )
    return msgspec.structs.replace(whole, **changes)


def samples(wrong: Sequence[int] = (), *, count: int = QUESTIONS, number: int = 1) -> list[Event]:
    """Answers to `count` questions, all right but those in `wrong`."""
    return [sample(doc, right=doc not in wrong, number=number) for doc in range(count)]


def done(answers: Sequence[Event], *, number: int = 1, **changes: Any) -> EvaluationDone:
    """The end of a round, with the score that its samples add up to."""
    whole = [each for each in answers if isinstance(each, SampleDone) and each.answer is not None]
    scores: dict[Any, ReportedScore] = {}
    for name in ("strict", "flexible"):
        right = [getattr(each, f"{name}_correct") for each in whole]
        scores[name] = ReportedScore(sum(map(bool, right)) / len(right) if right else None, 0.05)
    event = EvaluationDone(
        time_s=START_S,
        life="",
        window="",
        round=number,
        task="gsm8k",
        task_version="3.0",
        shots=5,
        shots_kind="stock",
        samples_asked=len(answers),
        samples_answered=len(whole),
        scores=scores,
        tool="lm-eval",
        tool_version="0.4.13",
    )
    return msgspec.structs.replace(event, **changes)


def evaluated(
    answers: Sequence[Event], *, number: int = 1, finished: int | None = None, **changes: Any
) -> Played:
    """A window with one round; the server finished one request an answer, or `finished`."""
    whole = [each for each in answers if isinstance(each, SampleDone) and each.answer is not None]
    tokens = sum(each.prompt_tokens or 0 for each in whole)
    return Played(
        [*answers, done(answers, number=number, **changes)],
        len(whole) if finished is None else finished,
        tokens,
    )


def change(answers: Sequence[Event], doc_id: int, **changes: Any) -> list[Event]:
    """The same answers with one of them changed."""
    return [
        msgspec.structs.replace(each, **changes)
        if isinstance(each, SampleDone) and each.doc_id == doc_id
        else each
        for each in answers
    ]


# ---- AIPerf ----------------------------------------------------------------------------------


def agent_run(directory: Path, *, finished: int, **changes: Any) -> Played:
    """A window in which AIPerf ran and left the files of `directory`."""
    event = AgentRunDone(
        time_s=START_S,
        life="",
        window="",
        artifacts="",
        exit_status=0,
        command=SMOKE_COMMAND,
        tool_version="0.13.0",
        preset="smoke",
    )
    return Played([msgspec.structs.replace(event, **changes)], finished, artifacts=directory)


def golden(name: str, directory: Path) -> Path:
    """A copy of captured artifacts, to be edited."""
    return Path(shutil.copytree(GOLDEN / name, directory / name))


# ---- the record ------------------------------------------------------------------------------


class _Writer:
    """Writes one life with its windows."""

    def __init__(self, record: Record, life: PlannedLife, numbers: Iterator[int]) -> None:
        self.record = record
        self.life = life
        self.numbers = numbers
        self.has_tier = life.connector["kind"] != "none"
        names = ["local_queries", "local_hits", "prompt_tokens", "generation_tokens"]
        names += ["requests_finished", "external_queries", "external_hits"]
        self.counters = dict.fromkeys(names, 0.0)
        if not self.has_tier:
            del self.counters["external_queries"], self.counters["external_hits"]

    def snapshot(self, window: str, edge: Any, missing: Sequence[str]) -> None:
        found = {name: value for name, value in self.counters.items() if name not in missing}
        self.record.write(
            Snapshot(
                time_s=START_S,
                life=self.life.life,
                window=window,
                edge=edge,
                samples=tuple(Sample(name, "0", {}, value) for name, value in found.items()),
                missing=tuple(missing),
            )
        )

    def count(self, played: Played) -> None:
        tokens = played.prompt_tokens
        if tokens is None:
            tokens = LENGTH_TOKENS * played.finished
        for name in ("local_queries", "prompt_tokens", "external_queries"):
            if name in self.counters:
                self.counters[name] += tokens
        self.counters["local_hits"] += played.cached_tokens
        if "external_hits" in self.counters:
            self.counters["external_hits"] += played.external_tokens
        self.counters["requests_finished"] += played.finished

    def play(self, played: Played, phase: str, arm: str, missing: Sequence[str]) -> None:
        window = f"w{next(self.numbers):03d}"
        life = self.life.life
        self.record.write(
            PhaseStarted(
                time_s=START_S,
                life=life,
                stage=STAGE,
                arm=arm,
                window=window,
                phase=phase,
                kind="evaluation",
                run=1,
                concurrency=4,
            )
        )
        self.snapshot(window, "before", missing)
        for event in played.events:
            found = msgspec.structs.replace(event, life=life, window=window)
            if isinstance(found, AgentRunDone) and played.artifacts is not None:
                place = self.record.artifact(f"{life}/{window}-aiperf")
                shutil.copytree(played.artifacts, place)
                found = msgspec.structs.replace(found, artifacts=self.record.relative(place))
            self.record.write(found)
        self.count(played)
        self.snapshot(window, "after", missing)
        self.record.write(PhaseEnded(time_s=START_S, window=window, outcome="complete"))

    def started(self) -> None:
        life = self.life
        self.record.write(
            LifeStarted(
                time_s=START_S,
                life=life.life,
                argv=life.argv,
                env=life.env,
                python="managed:cpu",
                vllm_version="0.32.0",
                start_mode="plain",
                url="http://127.0.0.1:8000",
                pid=1,
                log=f"artifacts/{life.life}/server.log",
            )
        )
        self.record.write(
            LifeReady(
                time_s=START_S,
                life=life.life,
                start_s=30.0,
                model_id="tiny-qwen3",
                process_start_time_s=START_S,
                effective=dict(life.asked),
                asked=life.asked,
            )
        )

    def ended(self) -> None:
        self.record.write(
            LifeEnded(
                time_s=START_S,
                life=self.life.life,
                orderly=True,
                exit_status=0,
                stop_s=1.0,
                survivors=(),
            )
        )


def write(
    directory: Path,
    windows: Mapping[str, Sequence[Played]],
    *,
    claim: str = "score",
    missing: Sequence[str] = (),
) -> Path:
    """Write a sealed record with these windows per arm; `missing` counters are on no page."""
    sets = (f"stages.{STAGE}.claims=[{claim}]",)
    plan = planned(QUICKSTART, sets, tuple(windows))
    lives = tuple(msgspec.structs.replace(life, phases=()) for life in plan.lives)
    plan = msgspec.structs.replace(plan, lives=lives)
    record = Record(directory)
    record.write_plan(plan)
    record.write(
        RunStarted(
            time_s=START_S,
            schema=1,
            kvbench_version="0.1.0",
            run_id=directory.name,
            scenario_name=plan.scenario["name"],
            command=("kvbench", "run"),
            source={"commit": None, "dirty": None, "path": None},
            machine={},
        )
    )
    numbers = itertools.count(1)
    for life in plan.lives:
        writer = _Writer(record, life, numbers)
        writer.started()
        for arm in life.arms:
            for number, played in enumerate(windows[arm], 1):
                writer.play(played, f"round-{number}", arm, missing)
        writer.ended()
    record.close(RunEnded(time_s=START_S, outcome="complete"))
    return directory


def judged(directory: Path, windows: Mapping[str, Sequence[Played]], **options: Any) -> Verdict:
    """Write a record and judge it."""
    return judge(write(directory, windows, **options))

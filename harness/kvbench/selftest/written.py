"""Rows about the results of other programs: records that are written, with no engine behind them.

What an evaluation or AIPerf gets wrong stands in its result files, so that is where these faults
are put (F33, F34): samples of a made-up evaluation, and the files of real AIPerf 0.13 runs against
a small server, edited. The judging half reads them as it reads those of any run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench import __version__, clock
from kvbench.events import (
    SCHEMA_VERSION,
    AgentRunDone,
    EvaluationDone,
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
from kvbench.plan_types import Plan, PlannedLife
from kvbench.record import Record

FOLDER: Final = Path(__file__).parent
QUESTIONS: Final = 60
PROMPT_TOKENS: Final = 100
STAGE: Final = "replay"
_COMMAND: Final = ("aiperf", "profile", "--scenario", "inferencex-agentx-mvp", "--unsafe-override")
_SUMMARY: Final = "profile_export_aiperf.json"
_RECORDS: Final = "profile_export.jsonl"

Samples = list[SampleDone]


def _sample(doc_id: int, *, right: bool) -> SampleDone:
    text = "42" if right else "41"
    return SampleDone(
        time_s=clock.now_s(),
        life="",
        window="",
        round=1,
        doc_id=doc_id,
        prompt_sha256=hashlib.sha256(f"question {doc_id}".encode()).hexdigest(),
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=8,
        finish_reason="stop",
        answer=f"So it is {text}. #### {text}",
        strict_answer=text,
        flexible_answer=text,
        strict_correct=right,
        flexible_correct=right,
    )


def _samples(wrong: Sequence[int]) -> Samples:
    return [_sample(doc_id, right=doc_id not in wrong) for doc_id in range(QUESTIONS)]


def _changed(samples: Samples, count: int, **changes: Any) -> Samples:
    first = [msgspec.structs.replace(each, **changes) for each in samples[:count]]
    return [*first, *samples[count:]]


_NONE: Final[dict[str, Any]] = {"strict_answer": None, "strict_correct": False}
_FLEXIBLE: Final[dict[str, Any]] = {"flexible_answer": None, "flexible_correct": False}
EVALUATIONS: Final[dict[str, Callable[[Samples], Samples]]] = {
    "healthy": lambda samples: samples,
    "truncated": lambda s: _changed(s, 6, finish_reason="length", **_NONE, **_FLEXIBLE),
    "empty": lambda s: _changed(s, 6, answer="", **_NONE, **_FLEXIBLE),
    "missing": lambda samples: samples[6:],
    "strict_zero": lambda s: _changed(s, QUESTIONS, **_NONE),
    "other_template": lambda s: _changed(s, QUESTIONS, prompt_sha256="0" * 64),
    "wrong_answers": lambda _: _samples(range(20)),
    # As many right as in the control, and some that the control has wrong.
    "other_flips": lambda _: _samples(range(4, 12)),
}
"""What the tested arm's samples look like; the control's are `healthy`, but for `_IN_BOTH`."""
_IN_BOTH: Final = frozenset({"strict_zero"})
"""faults of the evaluation itself, which no connector has brought about"""


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / _SUMMARY
    summary = json.loads(file.read_text())
    change(summary)
    file.write_text(json.dumps(summary))


def _without_cached_field(folder: Path) -> None:
    _edit(folder, lambda summary: summary.pop("total_usage_prompt_cache_read_tokens"))
    file = folder / _RECORDS
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["metrics"].pop("usage_prompt_cache_read_tokens", None)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


AGENT_RUNS: Final[dict[str, tuple[str, Callable[[Path], object]]]] = {
    "healthy": ("aiperf", lambda _: None),
    "no_cached_field": ("aiperf", _without_cached_field),
    "no_validity": ("aiperf", lambda f: _edit(f, lambda s: s.pop("metadata"))),
    "other_reason": (
        "aiperf",
        lambda f: _edit(
            f,
            lambda s: s["metadata"].update(
                submission_invalid_reasons=["unsafe_override", "context_overflow_rate_exceeded"]
            ),
        ),
    ),
    "cancelled": ("aiperf_cancelled", lambda _: None),
    "no_records": ("aiperf", lambda f: (f / _RECORDS).write_text("")),
    "cut_tail": ("aiperf_cut_tail", lambda _: None),
}
"""Captured files, and what is done to them."""


class WrittenRecord:
    """Writes a whole record of two arms in which another program sent the requests."""

    def __init__(self, record: Record, plan: Plan) -> None:
        self._record = record
        lives = tuple(msgspec.structs.replace(life, phases=()) for life in plan.lives)
        self._plan = msgspec.structs.replace(plan, lives=lives)

    def evaluation(self, damage: str) -> None:
        """Write an evaluation whose tested arm is damaged as `EVALUATIONS` says."""
        control = _samples(range(8))
        damaged = EVALUATIONS[damage](control)
        by_arm = {"tested": damaged, "control": damaged if damage in _IN_BOTH else control}
        self._write(lambda arm, life, window: self._evaluate(life, window, by_arm[arm]))

    def agent_run(self, damage: str) -> None:
        """Write a run of AIPerf in the tested arm, with files as `AGENT_RUNS` says."""
        self._write(
            lambda arm, life, window: (
                self._run_agent(life, window, *AGENT_RUNS[damage]) if arm == "tested" else 0
            )
        )

    def _evaluate(self, life: str, window: str, samples: Samples) -> int:
        for sample in samples:
            self._record.write(msgspec.structs.replace(sample, life=life, window=window))
        right = (
            [each.strict_correct for each in samples],
            [each.flexible_correct for each in samples],
        )
        strict, flexible = (sum(map(bool, each)) / len(each) for each in right)
        self._record.write(
            EvaluationDone(
                time_s=clock.now_s(),
                life=life,
                window=window,
                round=1,
                task="gsm8k",
                task_version="3.0",
                shots=5,
                shots_kind="stock",
                samples_asked=QUESTIONS,
                samples_answered=len(samples),
                scores={
                    "strict": ReportedScore(strict, 0.05),
                    "flexible": ReportedScore(flexible, 0.05),
                },
                tool="lm-eval",
                tool_version="0.4.13",
            )
        )
        return len(samples)

    def _run_agent(
        self, life: str, window: str, source: str, damage: Callable[[Path], object]
    ) -> int:
        folder = self._record.artifact(f"{life}/{window}-aiperf")
        shutil.copytree(FOLDER / source, folder)
        finished = len((folder / _RECORDS).read_text().splitlines())
        damage(folder)
        self._record.write(
            AgentRunDone(
                time_s=clock.now_s(),
                life=life,
                window=window,
                artifacts=self._record.relative(folder),
                exit_status=0,
                command=_COMMAND,
                tool_version="0.13.0",
                preset="smoke",
            )
        )
        return finished

    def _write(self, fill: Callable[[str, str, str], int]) -> None:
        """Write lives and windows; `fill` files what the tool did and returns the requests."""
        self._record.write_plan(self._plan)
        self._record.write(
            RunStarted(
                time_s=clock.now_s(),
                schema=SCHEMA_VERSION,
                kvbench_version=__version__,
                run_id=self._record.run_id,
                scenario_name=self._plan.scenario["name"],
                command=("kvbench", "selftest"),
                source={"commit": None, "dirty": None, "path": None},
                machine={},
            )
        )
        for number, life in enumerate(self._plan.lives, start=1):
            self._begin(life)
            window = f"w{number:03d}"
            arm = life.arms[0]
            self._open(life, arm, window)
            self._snapshot(life, window, "before", 0)
            self._snapshot(life, window, "after", fill(arm, life.life, window))
            self._record.write(PhaseEnded(time_s=clock.now_s(), window=window, outcome="complete"))
            self._end(life)
        self._record.close(RunEnded(time_s=clock.now_s(), outcome="complete"))

    def _begin(self, life: PlannedLife) -> None:
        self._record.write(
            LifeStarted(
                time_s=clock.now_s(),
                life=life.life,
                argv=life.argv,
                env={},
                python="",
                vllm_version="none: written record",
                start_mode="fake",
                url="",
                pid=None,
                log="",
            )
        )
        self._record.write(
            LifeReady(
                time_s=clock.now_s(),
                life=life.life,
                start_s=0.0,
                model_id=str(life.asked["model_id"]),
                process_start_time_s=1.0,
                effective=dict(life.asked),
                asked=life.asked,
            )
        )

    def _open(self, life: PlannedLife, arm: str, window: str) -> None:
        self._record.write(
            PhaseStarted(
                time_s=clock.now_s(),
                life=life.life,
                stage=STAGE,
                arm=arm,
                window=window,
                phase="round-1",
                kind="evaluation",
                run=1,
                concurrency=4,
            )
        )

    def _snapshot(self, life: PlannedLife, window: str, edge: Any, finished: int) -> None:
        tokens = finished * PROMPT_TOKENS
        counted = {
            "local_queries": tokens,
            "local_hits": 0,
            "prompt_tokens": tokens,
            "generation_tokens": finished * 8,
            "requests_finished": finished,
        }
        if life.connector["kind"] != "none":
            counted |= {"external_queries": tokens, "external_hits": 0}
        samples = [Sample(name, "0", {}, float(value)) for name, value in counted.items()]
        self._record.write(
            Snapshot(
                time_s=clock.now_s(),
                life=life.life,
                window=window,
                edge=edge,
                samples=tuple(samples),
                missing=(),
            )
        )

    def _end(self, life: PlannedLife) -> None:
        self._record.write(
            LifeEnded(
                time_s=clock.now_s(),
                life=life.life,
                orderly=True,
                exit_status=0,
                stop_s=0.0,
                survivors=(),
            )
        )

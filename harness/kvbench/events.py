"""What a journal holds: one struct per kind of observation.

These are facts only. No threshold, no expectation and no verdict is ever written here: the record
is the wall between measuring and judging. A value that could not be read is None, never 0.
Times ending in `_s` are seconds; `time_s` is seconds since the epoch, on the harness' clock.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Role = Literal["scored", "prime", "filler", "sentinel", "nudge", "probe", "sample"]
ResetScope = Literal["none", "local", "all"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all journal lines."""

    time_s: float


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """First line of every journal."""

    schema: int
    kvbench_version: str
    run_id: str
    scenario_name: str
    command: tuple[str, ...]
    source: dict[str, Any]
    """commit, dirty flag and path of the kvbench checkout; None where unknown"""
    machine: dict[str, Any]
    """cpu, cores, memory_bytes, gpus, os, python"""


class LifeStarted(Event, frozen=True, kw_only=True, tag="life_started"):
    """A server process was started (it may never become ready)."""

    life: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """masked"""
    python: str
    vllm_version: str | None
    start_mode: str
    url: str
    pid: int | None
    log: str
    """artifact path"""


class LifeReady(Event, frozen=True, kw_only=True, tag="life_ready"):
    """A real generation came back from the process that we started."""

    life: str
    start_s: float
    model_id: str
    process_start_time_s: float | None
    effective: dict[str, Any]
    """settings read back from the engine; a key that could not be read is absent"""
    asked: dict[str, Any]
    """the same keys, as the plan wants them"""


class LifeFailed(Event, frozen=True, kw_only=True, tag="life_failed"):
    """A start that did not become ready, or an engine that died or hung."""

    life: str
    kind: str
    message: str
    log_tail: str
    exit_status: int | None
    phase: str | None


class LifeEnded(Event, frozen=True, kw_only=True, tag="life_ended"):
    """The process tree was stopped; `survivors` are processes that could not be ended."""

    life: str
    orderly: bool
    exit_status: int | None
    stop_s: float
    survivors: tuple[int, ...]
    killed: tuple[int, ...] = ()
    """processes that were left after an orderly end of the main one, and had to be killed"""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One time series of a `/metrics` page: canonical name, engine label, other labels, value."""

    name: str
    engine: str
    labels: dict[str, str]
    value: float


class Snapshot(Event, frozen=True, kw_only=True, tag="snapshot"):
    """Counters of the engine at one moment; the full page is an artifact where `page` is set."""

    life: str
    window: str
    """id of the window that this snapshot opens or closes"""
    edge: Literal["before", "after"]
    samples: tuple[Sample, ...]
    missing: tuple[str, ...]
    """canonical names that the page did not have"""
    page: str | None = None


class PhaseStarted(Event, frozen=True, kw_only=True, tag="phase_started"):
    """A window opens."""

    life: str
    stage: str
    arm: str
    window: str
    """unique in the run"""
    phase: str
    """name, for example replay-2; or reset-3 for the proof of a reset"""
    kind: str
    """a PhaseKind, or reset_proof"""
    run: int
    concurrency: int


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One generated position: token id, its log-probability (nats), top-k as {token id: nats}."""

    token_id: int
    logprob: float | None
    top: dict[str, float | None]


class RequestDone(Event, frozen=True, kw_only=True, tag="request_done"):
    """One answered (or failed) request."""

    life: str
    window: str
    request_id: str
    prompt_id: str
    role: Role
    wave: int
    sent_s: float
    ttft_s: float | None
    latency_s: float
    http_status: int | None
    error: str | None
    """None when the answer is complete"""
    error_kind: str | None
    """nan, timeout, connection, http, truncated"""
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    tokens: tuple[Token, ...]
    engine: int | None = None
    """data-parallel engine that was asked for; None: the server chose"""


class ResetDone(Event, frozen=True, kw_only=True, tag="reset_done"):
    """Every answer to the reset calls of one reset, in order."""

    life: str
    window: str
    scope: ResetScope
    answers: tuple[str, ...]
    """raw body of each try, or `HTTP <status>`"""
    success: bool | None
    """None when the body said nothing"""
    waited_s: float


class WaitDone(Event, frozen=True, kw_only=True, tag="wait_done"):
    """A condition that was waited for."""

    life: str
    window: str
    condition: str
    reached: bool
    waited_s: float
    detail: str


class FaultSwitched(Event, frozen=True, kw_only=True, tag="fault_switched"):
    """A faulty twin was told what to damage, or (mode none) to stop."""

    life: str
    window: str
    mode: str
    prompt_id: str | None
    detail: dict[str, Any]


class FaultApplied(Event, frozen=True, kw_only=True, tag="fault_applied"):
    """The twin's own journal says that it damaged something."""

    life: str
    window: str
    detail: dict[str, Any]


class MemorySampled(Event, frozen=True, kw_only=True, tag="memory_sampled"):
    """What the server's process tree used when a window closed; None where it is not told."""

    life: str
    window: str
    processes: int
    rss_bytes: int
    """counts shared pages once per process"""
    pss_bytes: int | None
    gpu_bytes: int | None


class SampleDone(Event, frozen=True, kw_only=True, tag="sample_done"):
    """One question of an evaluation, answered or failed."""

    life: str
    window: str
    round: int
    """counted from 1"""
    doc_id: int
    """the tool's number of the question, the same in every round and arm"""
    prompt_sha256: str | None
    """of the prompt as it was sent, few-shot examples and template included"""
    prompt_tokens: int | None
    """as the server counted them"""
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    answer: str | None
    """the visible text; None when there was no answer at all"""
    strict_answer: str | None
    """what the strict filter took out of the text; None where it found nothing"""
    flexible_answer: str | None
    strict_correct: bool | None
    """None: not scored by this filter"""
    flexible_correct: bool | None
    error: str | None = None
    """None when the answer is complete"""
    request_id: str | None = None
    """of the RequestDone that holds the same answer's tokens, where there is one"""


class ReportedScore(msgspec.Struct, frozen=True, array_like=True):
    """A score as the tool reports it, with the tool's own standard error (both 0 to 1)."""

    value: float | None
    stderr: float | None


class EvaluationDone(Event, frozen=True, kw_only=True, tag="evaluation_done"):
    """A round of an evaluation came to its end, and what its tool says about it."""

    life: str
    window: str
    round: int
    task: str
    task_version: str | None
    shots: int | None
    shots_kind: str | None
    """how the few-shot examples were drawn: stock, or first_n (a shared prefix)"""
    samples_asked: int | None
    samples_answered: int | None
    """by the tool's own count"""
    scores: dict[Literal["strict", "flexible"], ReportedScore]
    tool: str
    tool_version: str | None


class AgentRunDone(Event, frozen=True, kw_only=True, tag="agent_run_done"):
    """AIPerf ended; what it found stands in its own files."""

    life: str
    window: str
    artifacts: str
    """artifact path of the directory with its files"""
    exit_status: int | None
    command: tuple[str, ...]
    """masked"""
    tool_version: str | None
    preset: str | None = None
    """as the scenario declares it: smoke, fast or full"""


class PhaseEnded(Event, frozen=True, kw_only=True, tag="phase_ended"):
    """A window closes; `aborted` says that its numbers must not be used."""

    window: str
    outcome: Literal["complete", "aborted"]
    reason: str | None = None


class Skipped(Event, frozen=True, kw_only=True, tag="skipped"):
    """Something planned that was not run."""

    stage: str
    arm: str
    phase: str | None
    reason: str


class Note(Event, frozen=True, kw_only=True, tag="note"):
    """A sentence for the report, with where it came from."""

    life: str | None
    text: str


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """Last line; a journal without it was interrupted."""

    outcome: Literal["complete", "interrupted", "error"]
    reason: str | None = None


AnyEvent = (
    RunStarted
    | LifeStarted
    | LifeReady
    | LifeFailed
    | LifeEnded
    | Snapshot
    | PhaseStarted
    | RequestDone
    | ResetDone
    | WaitDone
    | FaultSwitched
    | FaultApplied
    | MemorySampled
    | SampleDone
    | EvaluationDone
    | AgentRunDone
    | PhaseEnded
    | Skipped
    | Note
    | RunEnded
)

"""Turns what the sender saw and what lm-eval scored into the events of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvbench import clock
from kvbench.events import EvaluationDone, ReportedScore, RequestDone, SampleDone
from kvbench.workloads.gsm8k.spec import Answered, FilterName, Result, ScoredRow, Spec

TOOL = "lm-eval"
Scored = Mapping[tuple[int, FilterName], ScoredRow]


def request_done(answer: Answered, *, life: str, window: str, stage: str) -> RequestDone:
    """The request behind an answer, with its tokens and log-probabilities."""
    return RequestDone(
        time_s=clock.now_s(),
        life=life,
        window=window,
        request_id=answer.request_id,
        prompt_id=f"{stage}/q{answer.doc_id}",
        role="sample",
        wave=0,
        sent_s=answer.sent_s,
        ttft_s=None,
        latency_s=answer.latency_s,
        http_status=answer.http_status,
        error=answer.error,
        error_kind=answer.error_kind,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        tokens=answer.tokens,
        engine=answer.engine,
    )


def sample_events(
    answers: Sequence[Answered], result: Result | None, *, life: str, window: str, number: int
) -> list[SampleDone]:
    """One event per question, by its number; without a result nothing is scored."""
    rows: Scored = {(row.doc_id, row.filter): row for row in result.rows} if result else {}
    return [
        _sample(answer, rows, life=life, window=window, number=number)
        for answer in sorted(answers, key=lambda answer: answer.doc_id)
    ]


def _sample(answer: Answered, rows: Scored, *, life: str, window: str, number: int) -> SampleDone:
    strict, flexible = rows.get((answer.doc_id, "strict")), rows.get((answer.doc_id, "flexible"))
    return SampleDone(
        time_s=clock.now_s(),
        life=life,
        window=window,
        round=number,
        doc_id=answer.doc_id,
        prompt_sha256=answer.prompt_sha256,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        answer=answer.text,
        strict_answer=None if strict is None else strict.answer,
        flexible_answer=None if flexible is None else flexible.answer,
        strict_correct=None if strict is None else strict.correct,
        flexible_correct=None if flexible is None else flexible.correct,
        error=answer.error,
        request_id=answer.request_id,
    )


def evaluation_done(
    result: Result, spec: Spec, *, life: str, window: str, number: int
) -> EvaluationDone:
    """What the tool says about the whole round."""
    return EvaluationDone(
        time_s=clock.now_s(),
        life=life,
        window=window,
        round=number,
        task=result.task,
        task_version=result.task_version,
        shots=result.shots,
        shots_kind=spec.shots_kind,
        samples_asked=result.asked,
        samples_answered=result.answered,
        scores={name: ReportedScore(*score) for name, score in result.scores.items()},
        tool=TOOL,
        tool_version=result.tool_version,
    )

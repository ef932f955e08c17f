"""A stand-in for the lm-eval process: says what the model id of its spec tells it to.

Run as a script, so that tests of the parent need no lm_eval. Modes: see MODES.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from kvbench.events import Token
from kvbench.workloads.gsm8k import spec as files
from kvbench.workloads.gsm8k.spec import (
    Answered,
    Asking,
    Ended,
    Lines,
    Loaded,
    Result,
    ScoredRow,
    Spec,
)

MODES = {
    "fine",
    "one_refused",  # HTTP 400 for question 1
    "one_broken",  # HTTP 500 for question 1
    "lost",  # the connection drops at question 2
    "timeout",
    "too_long",
    "killed",  # after question 1
    "crash",  # before the first question
    "stuck",  # never says anything
    "slow",  # says everything, but waits after question 1
    "stubborn",  # as slow, and ignores SIGTERM
}
PROMPT_TOKENS = 100
SAMPLES = 4


def answered(spec: Spec, doc_id: int, **changes: object) -> Answered:
    whole = Answered(
        doc_id=doc_id,
        request_id=f"{spec.id_prefix}q{doc_id}-1",
        engine=None,
        prompt_sha256=f"{doc_id:064x}",
        sent_s=1.0,
        latency_s=0.1,
        http_status=200,
        error=None,
        error_kind=None,
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=16,
        completion_tokens=1,
        finish_reason="stop",
        text=f"#### {doc_id}",
        tokens=(Token(7, -0.5, {"7": -0.5}),),
    )
    return msgspec.structs.replace(whole, **changes)


def failed(spec: Spec, doc_id: int, status: int | None, kind: str) -> Answered:
    nothing = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason", "text")
    )
    error = f"HTTP {status}" if status else "ServerDisconnectedError"
    return answered(
        spec, doc_id, http_status=status, error=error, error_kind=kind, tokens=(), **nothing
    )


def answer(spec: Spec, mode: str, doc_id: int) -> Answered:
    if mode == "one_refused" and doc_id == 1:
        return failed(spec, doc_id, 400, "http")
    if mode == "one_broken" and doc_id == 1:
        return failed(spec, doc_id, 500, "http")
    if mode in {"lost", "timeout"} and doc_id == 2:
        return failed(spec, doc_id, None, "timeout" if mode == "timeout" else "connection")
    return answered(spec, doc_id)


def result(spec: Spec, answers: list[Answered]) -> Result:
    whole = [each.doc_id for each in answers if each.error is None]
    rows = [ScoredRow(doc, "strict", str(doc), doc == 0) for doc in whole]
    rows += [ScoredRow(doc, "flexible", str(doc), True) for doc in whole]
    lost = len(whole) < len(answers)
    return Result(
        task=spec.task,
        task_version="3.0",
        task_hash="hash",
        tool_version="0.4.13",
        versions={},
        shots=spec.shots,
        asked=len(answers),
        answered=len(whole),
        scores={} if lost else {"strict": (0.25, 0.1), "flexible": (1.0, 0.0)},
        rows=tuple(rows),
        generation={},
        seeds={},
    )


def main(folder: Path) -> int:
    spec = msgspec.json.decode((folder / files.SPEC).read_bytes(), type=Spec)
    mode = spec.model_id
    assert mode in MODES
    sys.stderr.write("the last words of a tool\n")
    if mode == "crash":
        return 1
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "stuck":
        time.sleep(60)
    with (folder / files.LINES).open("ab") as file:
        lines = Lines(file)
        lines.write(Loaded(tool_version="0.4.13"))
        if mode == "too_long":
            lines.write(Ended(kind="prompt_too_long", message="1 of 4 prompts do not fit"))
            return 3
        lines.write(Asking(prompts=SAMPLES, longest_tokens=PROMPT_TOKENS))
        (folder / files.PROMPTS).write_bytes(msgspec.json.encode({0: [1, 2], 1: [1, 3]}))
        answers = []
        for doc_id in range(SAMPLES):
            answers.append(answer(spec, mode, doc_id))
            lines.write(answers[-1])
            if answers[-1].error_kind in {"connection", "timeout"}:
                lines.write(Ended(kind="server_lost", message=f"q{doc_id}: no answer"))
                return 3
            if mode == "killed" and doc_id == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if mode in {"slow", "stubborn"} and doc_id == 1:
                time.sleep(60)
        files.write(folder / files.RESULT, result(spec, answers))
        lines.write(Ended(kind="complete"))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

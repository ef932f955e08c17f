"""What kvbench tells the lm-eval process, and what it says back: files of JSON, no pipe.

The process gets one folder: `spec.json` (a Spec) is there before it starts; it writes `lines.jsonl`
(one Line each, as things happen), and at its end `result.json` (a Result) and `prompts.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from kvbench.events import Token

SPEC = "spec.json"
LINES = "lines.jsonl"
RESULT = "result.json"
PROMPTS = "prompts.json"
TASKS = "tasks"
"""folder of the task's YAML"""

FilterName = Literal["strict", "flexible"]
ShotsKind = Literal["stock", "first_n"]
EndKind = Literal["complete", "server_lost", "prompt_too_long", "data"]


class DataFiles(msgspec.Struct, frozen=True):
    """Files in place of the hub's data set; `builder` is their format, as `datasets` names it."""

    builder: Literal["json", "parquet"]
    train: str
    test: str


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One round: everything that the process is told."""

    url: str
    """base address of the server"""
    model_id: str
    tokenizer: str | None
    """directory or hub name; None: the prompts are sent as text and the server tokenizes"""
    trust_remote_code: bool = False
    """of the tokenizer"""
    max_length_tokens: int
    """of prompt and answer, as the server says it"""
    task: str
    """name of the task, which says what is not stock about it"""
    data: DataFiles | None
    """None: the stock task's own data set"""
    samples: int | None
    """None: all"""
    shots: int
    shots_kind: ShotsKind
    concurrency: int
    max_new_tokens: int
    top_logprobs: int
    seed: int
    request_limit_s: float
    id_prefix: str
    """what all X-Request-Id of this round begin with"""
    engines: int = 1
    """data-parallel engines; with several, a question always goes to the same one"""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The tool is up and reads its data."""

    tool_version: str


class Asking(msgspec.Struct, frozen=True, kw_only=True, tag="asking"):
    """All prompts are made and fit; the first request is about to be sent."""

    prompts: int
    longest_tokens: int | None
    """None where the server tokenizes"""


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """One request that was answered or failed; what the server did not say is None."""

    doc_id: int
    request_id: str
    engine: int | None
    prompt_sha256: str
    """of the prompt's text"""
    sent_s: float
    """seconds since the epoch"""
    latency_s: float
    http_status: int | None
    error: str | None
    error_kind: str | None
    """a client.ErrorKind"""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    text: str | None = None
    tokens: tuple[Token, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Last line; a process that ends without it was killed or broke."""

    kind: EndKind
    message: str = ""


Line = Loaded | Asking | Answered | Ended


class ScoredRow(msgspec.Struct, frozen=True, array_like=True):
    """What one filter made of one answer, by the tool's own metric."""

    doc_id: int
    filter: FilterName
    answer: str | None
    correct: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the tool says about a whole round."""

    task: str
    task_version: str | None
    task_hash: str
    """digest over questions, prompts and targets; it does not change with the answers"""
    tool_version: str
    versions: dict[str, str]
    """of packages that can change a prompt or a score"""
    shots: int | None
    """as the tool counted them"""
    asked: int
    answered: int
    scores: dict[FilterName, tuple[float | None, float | None]]
    """value and the tool's standard error; empty unless every question was answered"""
    rows: tuple[ScoredRow, ...]
    generation: dict[str, object]
    """stop strings, temperature and what else the task asks of a generation"""
    seeds: dict[str, int]


def write(path: Path, value: msgspec.Struct) -> None:
    """Write a document so that it is whole or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(value) + b"\n")
    temporary.replace(path)


class Lines:
    """The file that the parent reads while it grows: one whole line at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, line: Line) -> None:
        """Append a line; it can be read when this returns."""
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

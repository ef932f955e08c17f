"""What AIPerf 0.13 left in its artifact directory, as facts.

Its exit status says little (0 with 91 % failed requests, 0 after a cancel), and its summary leaves
out what it has not measured, so everything here carries the state in which it was found. Requests
that were still running when the window closed leave no trace in summary or records at all: only its
log and the server's counters know of them.

Keys are those of JSON schema 1.4 (`aiperf/common/models/export_models.py`, `record_models.py`), and
lines of `logs/aiperf.log` those of `aiperf/timing/phase/runner.py`; other versions are read by the
same names, so a renamed field shows as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kvbench.events import AgentRunDone
from kvbench.ledger import fields
from kvbench.ledger.fields import Field, State, Tree

SUMMARY: Final = "profile_export_aiperf.json"
RECORDS: Final = "profile_export.jsonl"
LOG: Final = "logs/aiperf.log"
SCHEMA: Final = "1.4"

CACHED_TOTAL: Final = "total_usage_prompt_cache_read_tokens"
PROMPT_TOTAL: Final = "total_usage_prompt_tokens"
CACHED: Final = "usage_prompt_cache_read_tokens"
PROMPT: Final = "usage_prompt_tokens"

_SENT = re.compile(r"Phase (\S+) \(profiling\) sending complete \| sent=(\d+)")
_ENDED = re.compile(r"Phase (\S+) \(profiling\) complete \| completed=(\d+), cancelled=(\d+)")
_WARMUP: Final = "warmup"


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One line of `profile_export.jsonl`: a request that AIPerf saw to its end."""

    line: int
    phase: Literal["warmup", "profiling"]
    turn: int | None
    """index in its conversation; 0 begins one, also that of a sub-agent"""
    depth: int | None
    """0: main agent; above: a sub-agent"""
    was_cancelled: bool
    error: str | None
    """code, type and message, as AIPerf files them"""
    prompt_tokens: Field[float]
    cached_tokens: Field[float]

    @property
    def is_success(self) -> bool:
        """True where the request counts in AIPerf's metrics."""
        return self.error is None and not self.was_cancelled


@dataclass(frozen=True, slots=True)
class TurnRow:
    """Profiled requests with one turn index; sums over those that carry the cached field."""

    turn: int | None
    requests: int
    with_field: int
    prompt_tokens: float
    cached_tokens: float


@dataclass(frozen=True, slots=True)
class TailCount:
    """What AIPerf's log says about the profiling phases, in requests."""

    sent: int
    completed: int | None
    cancelled: int | None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class AgentRun:
    """One run of AIPerf: how it was started, and what its files say."""

    done: AgentRunDone
    line: int
    summary: Field[Tree]
    """state of the file; absent where no request succeeded"""
    records: Field[tuple[AgentRecord, ...]]
    torn_lines: tuple[int, ...]
    """lines of the records that could not be read"""
    tail: Field[TailCount]

    # ---- what was asked for ------------------------------------------------------------------

    @property
    def scenario(self) -> Field[str]:
        """The locked scenario: as the summary repeats it, or else as the command asked for it."""
        found = fields.text(self.summary, "input_config", "scenario")
        if found.is_present:
            return found
        asked = _option(self.done.command, "--scenario")
        return found if asked is None else Field("--scenario", State.PRESENT, asked)

    @property
    def requests_asked(self) -> Field[float]:
        """Number of requests that the profiling phases were to send; absent in a timed run."""
        phases = fields.items(self.summary, "input_config", "phases")
        counts = [
            fields.number(Field("phase", State.PRESENT, phase), "requests")
            for phase in phases.value or ()
            if isinstance(phase, dict) and phase.get("kind") == "profiling"
        ]
        name = "input_config.phases.requests"
        if not counts or not all(count.is_present for count in counts):
            return Field(name, State.ABSENT)
        return Field(name, State.PRESENT, sum(count.value or 0.0 for count in counts))

    # ---- what it says about itself -----------------------------------------------------------

    @property
    def schema(self) -> Field[str]:
        """Version of the summary's keys."""
        return fields.text(self.summary, "schema_version")

    @property
    def was_cancelled(self) -> Field[bool]:
        """True after Ctrl-C, or where it stopped by its own threshold."""
        return fields.flag(self.summary, "was_cancelled")

    @property
    def is_complete(self) -> Field[bool]:
        """False where it gave up waiting for records."""
        return fields.flag(self.summary, "is_complete")

    @property
    def incomplete_reason(self) -> Field[str]:
        """Its own words for an incomplete result."""
        return fields.text(self.summary, "incomplete_reason")

    @property
    def submission_valid(self) -> Field[bool]:
        """Whether it saw a rule of the scenario broken; absent is not false."""
        return fields.flag(self.summary, "metadata", "submission_valid")

    @property
    def submission_reasons(self) -> Field[tuple[str, ...]]:
        """Why it is no submission, in its own words."""
        return fields.words(self.summary, "metadata", "submission_invalid_reasons")

    def metric(self, tag: str, statistic: str = "avg") -> Field[float]:
        """A statistic of a metric; totals, counts and rates only have `avg`."""
        return fields.number(self.summary, tag, statistic)

    # ---- its requests ------------------------------------------------------------------------

    @property
    def warmup(self) -> tuple[AgentRecord, ...]:
        """Records of the warm-up."""
        return tuple(each for each in self.records.value or () if each.phase == _WARMUP)

    @property
    def profiled(self) -> tuple[AgentRecord, ...]:
        """Records of the profiling phases, failed ones included."""
        return tuple(each for each in self.records.value or () if each.phase != _WARMUP)

    @property
    def succeeded(self) -> tuple[AgentRecord, ...]:
        """Profiled requests that AIPerf's metrics are made of."""
        return tuple(each for each in self.profiled if each.is_success)

    @property
    def turns(self) -> tuple[TurnRow, ...]:
        """Successful profiled requests by turn index, the unknown one last."""
        indices = {record.turn for record in self.succeeded}
        ordered = sorted(indices, key=lambda turn: (turn is None, turn or 0))
        return tuple(_turn(turn, self.succeeded) for turn in ordered)


def _turn(turn: int | None, records: Iterable[AgentRecord]) -> TurnRow:
    chosen = [record for record in records if record.turn == turn]
    carrying = [record for record in chosen if record.cached_tokens.is_present]
    return TurnRow(
        turn=turn,
        requests=len(chosen),
        with_field=len(carrying),
        prompt_tokens=sum(record.prompt_tokens.value or 0.0 for record in carrying),
        cached_tokens=sum(record.cached_tokens.value or 0.0 for record in carrying),
    )


def _option(command: tuple[str, ...], name: str) -> str | None:
    """Value of an option of a command line, in either of its forms."""
    for word, following in zip(command, (*command[1:], ""), strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _error(record: Field[Tree]) -> str | None:
    error = fields.branch(record, "error")
    if error.state in (State.ABSENT, State.NULL):
        return None
    if not error.is_present:
        return error.gap
    words = error.value or {}
    parts = [str(words[key]) for key in ("code", "type", "message") if words.get(key)]
    return " ".join(parts) or "an error without words"


def _whole(field: Field[float]) -> int | None:
    return None if field.value is None else round(field.value)


def _record(line: int, record: Field[Tree]) -> AgentRecord | None:
    """A record from its line; None where it does not say to which phase it belongs."""
    phase = fields.text(record, "metadata", "benchmark_phase")
    if phase.value not in ("warmup", "profiling"):
        return None
    return AgentRecord(
        line=line,
        phase="warmup" if phase.value == _WARMUP else "profiling",
        turn=_whole(fields.number(record, "metadata", "turn_index")),
        depth=_whole(fields.number(record, "metadata", "agent_depth")),
        was_cancelled=fields.flag(record, "metadata", "was_cancelled").value is True,
        error=_error(record),
        prompt_tokens=fields.number(record, "metrics", PROMPT, "value"),
        cached_tokens=fields.number(record, "metrics", CACHED, "value"),
    )


def _records(path: Path) -> tuple[Field[tuple[AgentRecord, ...]], tuple[int, ...]]:
    if not path.is_file():
        return Field(path.name, State.ABSENT), ()
    found: list[AgentRecord] = []
    torn: list[int] = []
    for line, data in enumerate(path.read_bytes().splitlines(), 1):
        if not data.strip():
            continue
        record = _record(line, fields.parse(f"{path.name}:{line}", data))
        if record is None:
            torn.append(line)
        else:
            found.append(record)
    return Field(path.name, State.PRESENT, tuple(found)), tuple(torn)


def _tail(path: Path) -> Field[TailCount]:
    if not path.is_file():
        return Field(LOG, State.ABSENT)
    text = path.read_text(errors="replace")
    sent = {phase: int(count) for phase, count in _SENT.findall(text)}
    ended = {phase: (int(done), int(cut)) for phase, done, cut in _ENDED.findall(text)}
    if not sent:
        return Field(LOG, State.ABSENT)
    is_ended = sent.keys() == ended.keys()
    return Field(
        LOG,
        State.PRESENT,
        TailCount(
            sent=sum(sent.values()),
            completed=sum(done for done, _ in ended.values()) if is_ended else None,
            cancelled=sum(cut for _, cut in ended.values()) if is_ended else None,
        ),
    )


def read_agent_run(directory: Path, done: AgentRunDone, line: int) -> AgentRun:
    """Read the artifacts in `directory`; never fails, because a gap is a fact as well."""
    records, torn = _records(directory / RECORDS)
    return AgentRun(
        done=done,
        line=line,
        summary=fields.read(directory / SUMMARY),
        records=records,
        torn_lines=torn,
        tail=_tail(directory / LOG),
    )


__all__ = ["AgentRecord", "AgentRun", "TailCount", "TurnRow", "read_agent_run"]

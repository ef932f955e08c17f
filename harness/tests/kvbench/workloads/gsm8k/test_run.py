"""The parent of the lm-eval process: what it hears, and how every end is told apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gsm8k_script
import msgspec
import psutil
import pytest
from gsm8k_spec import spec

from kvbench.errors import EngineError
from kvbench.events import Token
from kvbench.workloads.gsm8k import run as run_module
from kvbench.workloads.gsm8k.run import (
    Limits,
    Round,
    ServerLostError,
    Tail,
    ToolError,
    Watching,
    child_env,
)
from kvbench.workloads.gsm8k.spec import Answered, Ended, Loaded

SCRIPT = (sys.executable, gsm8k_script.__file__)


@dataclass
class Seen:
    """Looks at nothing; counts."""

    pause_s: float = 0.0
    answers: list[int] = field(default_factory=list)
    asked: int | None = None
    watches: int = 0
    looks: int = 0
    error: BaseException | None = None
    """raised at the first look after question 1 was answered"""

    def look(self) -> None:
        self.looks += 1

    def watching(self) -> Watching:
        return Watching(
            on_answer=lambda answer: self.answers.append(answer.doc_id),
            on_asking=lambda line: setattr(self, "asked", line.prompts),
            look=self._look,
            make_watch=self._watch,
        )

    def _look(self) -> None:
        if self.error is not None and 1 in self.answers:
            raise self.error

    def _watch(self) -> Seen:
        self.watches += 1
        return self


def a_round(tmp_path: Path, mode: str, seen: Seen | None = None, **changes: Any) -> Round:
    folder = tmp_path / "folder"
    folder.mkdir()
    return Round(
        spec=spec(mode, **changes),
        folder=folder,
        log=tmp_path / "child.log",
        limits=Limits(silence_s=20, round_s=20),
        watching=(seen or Seen()).watching(),
        command=SCRIPT,
    )


def left_over(tmp_path: Path) -> list[int]:
    """Processes that still work in the folder of the round."""
    folder = str(tmp_path / "folder")
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if folder in (process.info["cmdline"] or [])
    ]


def test_complete_round_is_heard_and_its_result_read(tmp_path: Path) -> None:
    seen = Seen()
    played = a_round(tmp_path, "fine", seen)
    result = played.run()
    assert (result.asked, result.answered, result.scores["strict"]) == (4, 4, (0.25, 0.1))
    assert [answer.doc_id for answer in played.answers] == [0, 1, 2, 3]
    assert (seen.asked, seen.answers) == (4, [0, 1, 2, 3])
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(("mode", "is_timeout"), [("lost", False), ("timeout", True)])
def test_lost_server_keeps_the_answers_that_came(
    tmp_path: Path, mode: str, is_timeout: bool
) -> None:
    played = a_round(tmp_path, mode)
    with pytest.raises(ServerLostError, match="q2: no answer") as raised:
        played.run()
    assert raised.value.is_timeout is is_timeout
    assert [answer.doc_id for answer in played.answers if answer.error is None] == [0, 1]


def test_killed_process_is_an_error_of_the_tool_with_its_last_words(tmp_path: Path) -> None:
    played = a_round(tmp_path, "killed")
    with pytest.raises(ToolError, match=r"status -9(?s:.*)the last words of a tool"):
        played.run()
    assert len(played.answers) == 2


def test_crash_before_the_first_question(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="status 1 before its round was complete"):
        a_round(tmp_path, "crash").run()


def test_prompt_that_would_be_cut_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^1 of 4 prompts do not fit$"):
        a_round(tmp_path, "too_long").run()


def test_command_that_cannot_be_started(tmp_path: Path) -> None:
    played = a_round(tmp_path, "fine")
    played.command = (str(tmp_path / "nothing"),)
    with pytest.raises(ToolError, match="could not be started"):
        played.run()


def test_silence_of_the_tool_ends_it(tmp_path: Path) -> None:
    played = a_round(tmp_path, "stuck")
    played.limits = Limits(silence_s=0.3, round_s=20)
    with pytest.raises(ToolError, match="said nothing"):
        played.run()
    assert left_over(tmp_path) == []


def at_question_1(played: Round, do: Callable[[], None]) -> None:
    say = played.watching.on_answer

    def on_answer(answer: Answered) -> None:
        say(answer)
        if answer.doc_id == 1:
            do()

    played.watching.on_answer = on_answer


def test_silence_under_load_has_the_limit_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SLACK_S", 0.1)
    played = a_round(tmp_path, "slow")
    at_question_1(played, lambda: setattr(played, "spec", spec("slow", request_limit_s=0.1)))
    with pytest.raises(ToolError, match="said nothing"):
        played.run()
    assert len(played.answers) == 2


def test_round_that_takes_too_long_says_how_far_it_came(tmp_path: Path) -> None:
    played = a_round(tmp_path, "slow")
    at_question_1(played, lambda: setattr(played, "limits", Limits(silence_s=20, round_s=0)))
    with pytest.raises(ToolError, match=r"round_limit_s \(0 s\): 2 of 4 questions"):
        played.run()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineError("a hang", kind="hang")])
def test_interrupt_and_dead_engine_end_the_process(tmp_path: Path, error: BaseException) -> None:
    seen = Seen(error=error)
    played = a_round(tmp_path, "slow", seen)
    with pytest.raises(type(error)):
        played.run()
    assert [answer.doc_id for answer in played.answers] == [0, 1]
    assert left_over(tmp_path) == []


def test_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STOP_LIMIT_S", 0.2)
    seen = Seen(error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        a_round(tmp_path, "stubborn", seen).run()
    assert left_over(tmp_path) == []


def test_server_is_watched_only_while_requests_wait(tmp_path: Path) -> None:
    seen = Seen()
    played = a_round(tmp_path, "stuck", seen)
    played.limits = Limits(silence_s=0.3, round_s=20)
    with pytest.raises(ToolError):
        played.run()
    assert (seen.watches, seen.looks) == (0, 0)


def test_server_is_watched_while_requests_wait(tmp_path: Path) -> None:
    seen = Seen(error=KeyboardInterrupt())
    played = a_round(tmp_path, "slow", seen)
    played.watching.look = lambda: seen._look() if seen.looks > 2 else None
    with pytest.raises(KeyboardInterrupt):
        played.run()
    assert (seen.watches, seen.looks) == (1, 3)


def test_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.lines() == []
    whole = msgspec.json.encode(Ended(kind="complete"))
    path.write_bytes(msgspec.json.encode(Loaded(tool_version="1")) + b"\n" + whole[:5])
    assert tail.lines() == [Loaded(tool_version="1")]
    with path.open("ab") as file:
        file.write(whole[5:] + b"\n")
    assert tail.lines() == [Ended(kind="complete")]
    assert tail.lines() == []


def test_nan_in_an_answer_reads_as_missing() -> None:
    bad = (Token(7, math.nan, {"7": math.inf}),)
    answer = gsm8k_script.answered(spec("fine"), 0, tokens=bad)
    read = msgspec.json.decode(msgspec.json.encode(answer), type=Answered)
    assert read.tokens == (Token(7, None, {"7": None}),)


def test_local_data_is_read_offline_and_with_a_cache_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    local = child_env(spec("fine"), tmp_path)
    assert (local["HF_HUB_OFFLINE"], local["HF_DATASETS_OFFLINE"]) == ("1", "1")
    assert local["HF_DATASETS_CACHE"].startswith(str(tmp_path))
    assert "HTTPS_PROXY" not in local
    hub = child_env(spec("fine", data=None), tmp_path)
    assert hub["HTTPS_PROXY"] == "http://proxy"
    assert "HF_DATASETS_OFFLINE" not in hub
    assert "OPENAI_API_KEY" not in local.keys() | hub.keys()

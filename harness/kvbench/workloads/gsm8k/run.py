"""Runs the lm-eval process of one round: starts it, reads along, ends all of it.

The process can hang in a download, be killed, or die of its data, while the server is well; and it
can lose the server. These must never be taken for each other, so what it says (its last line) and
how it ended are both looked at, and an end without a word is an error of the tool.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kvbench import clock, masking
from kvbench.client import Watch
from kvbench.engine.fork import base_env
from kvbench.engine.process import ProcessTree
from kvbench.errors import LaunchError
from kvbench.workloads.gsm8k import spec as files
from kvbench.workloads.gsm8k.spec import Answered, Asking, Ended, Line, Result, Spec

CHILD_COMMAND: Final = (sys.executable, "-m", "kvbench.workloads.gsm8k.child")
POLL_S: Final = 0.05
STOP_LIMIT_S: Final = 5.0
SLACK_S: Final = 10.0
"""added to the limit of a request before its silence is the tool's"""
TAIL_CHARACTERS: Final = 2000
TAIL_LINES: Final = 6
_HUB_VARIABLES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN")
_ONLINE_VARIABLES: Final = (
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_CACHE",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
)


class ToolError(Exception):
    """The evaluation could not be made, and the server is not to blame."""


class ServerLostError(Exception):
    """The tool lost the server; `is_timeout`: a request ran into its limit."""

    def __init__(self, message: str, *, is_timeout: bool) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds: silence while it loads or scores, and the whole round."""

    silence_s: float
    round_s: float


@dataclass(slots=True)
class Watching:
    """What the parent does while the process works."""

    on_answer: Callable[[Answered], None]
    on_asking: Callable[[Asking], None]
    look: Callable[[], None]
    """called at every poll; an error that it raises ends the process and goes on"""
    make_watch: Callable[[], Watch]
    """called when the load begins: looks at the server as long as answers are waited for"""


class Tail:
    """Reads the whole lines that a growing file has got since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)

    def lines(self) -> list[Line]:
        """Return what is new; a line without its end waits for the next look."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            unread = file.read()
        whole = unread[: unread.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [self._decoder.decode(line) for line in whole.splitlines()]


@dataclass
class Round:
    """One run of the process in `folder`; both its output streams go to `log`."""

    spec: Spec
    folder: Path
    log: Path
    limits: Limits
    watching: Watching
    command: Sequence[str] = CHILD_COMMAND
    """the folder is its last argument"""
    answers: list[Answered] = field(default_factory=list)
    """what has come so far, whatever becomes of the round"""
    _ended: Ended | None = None
    _asked: int | None = None
    _watch: Watch | None = None
    _moved_s: float = 0.0
    _looked_s: float = 0.0

    def run(self) -> Result:
        """Run to the end; the process and all that it started is gone when this returns.

        Raises ServerLostError, ToolError, and whatever `watching` raises.
        """
        files.write(self.folder / files.SPEC, self.spec)
        tail = Tail(self.folder / files.LINES)
        tree = ProcessTree(
            [*self.command, str(self.folder)],
            log=self.log,
            env=child_env(self.spec, self.folder),
        )
        try:
            tree.start()
        except LaunchError as error:
            raise ToolError(f"lm-eval's process could not be started: {error}") from error
        status = None
        try:
            begin_s = self._moved_s = clock.monotonic_s()
            while (status := tree.poll()) is None:
                self._hear(tail)
                self._look()
                self._check_limits(clock.monotonic_s() - begin_s)
                clock.sleep_s(POLL_S)
        finally:
            tree.stop(STOP_LIMIT_S)
            self._hear(tail)  # what came in before the end counts, however it ended
        self.watching.look()
        return self._outcome(status)

    def _hear(self, tail: Tail) -> None:
        for line in tail.lines():
            self._moved_s = clock.monotonic_s()
            match line:
                case Asking():
                    self._asked = line.prompts
                    self.watching.on_asking(line)
                case Answered():
                    self.answers.append(line)
                    self.watching.on_answer(line)
                case Ended():
                    self._ended = line

    @property
    def _is_loading_server(self) -> bool:
        """True while requests wait for the server; before and after, only the tool works."""
        return self._asked is not None and len(self.answers) < self._asked and self._ended is None

    def _look(self) -> None:
        self.watching.look()
        if not self._is_loading_server:
            self._watch = None
            return
        if self._watch is None:
            self._watch = self.watching.make_watch()
            self._looked_s = clock.monotonic_s()
        if clock.monotonic_s() - self._looked_s >= self._watch.pause_s:
            self._watch.look()
            self._looked_s = clock.monotonic_s()

    def _check_limits(self, spent_s: float) -> None:
        silent_s = clock.monotonic_s() - self._moved_s
        limit_s = self.limits.silence_s
        if self._is_loading_server:
            limit_s = self.spec.request_limit_s + SLACK_S
        if silent_s > limit_s:
            raise ToolError(f"lm-eval said nothing for {silent_s:.0f} s: {self._last_words()}")
        if spent_s > self.limits.round_s:
            raise ToolError(
                f"the round took longer than round_limit_s ({self.limits.round_s:g} s): "
                f"{len(self.answers)} of {self._asked or 'n/a'} questions were answered"
            )

    def _outcome(self, status: int | None) -> Result:
        ended = self._ended
        if ended is not None and ended.kind == "server_lost":
            kinds = {answer.error_kind for answer in self.answers}
            raise ServerLostError(ended.message, is_timeout="timeout" in kinds)
        if ended is not None and ended.kind != "complete":
            raise ToolError(ended.message)
        path = self.folder / files.RESULT
        if ended is None or status != 0 or not path.is_file():
            raise ToolError(
                f"lm-eval's process ended with status {'n/a' if status is None else status} "
                f"before its round was complete: {self._last_words()}"
            )
        return msgspec.json.decode(path.read_bytes(), type=Result)

    def _last_words(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        lines = text[-TAIL_CHARACTERS:].strip().splitlines()[-TAIL_LINES:]
        return masking.mask_text("\n".join(lines)) or "it wrote nothing"


def child_env(spec: Spec, folder: Path) -> dict[str, str]:
    """Return the whole environment of the process: small, quiet, and offline for local data."""
    names = _HUB_VARIABLES if spec.data is not None else (*_HUB_VARIABLES, *_ONLINE_VARIABLES)
    env = base_env() | {name: os.environ[name] for name in names if name in os.environ}
    env |= {
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "LMEVAL_LOG_LEVEL": "WARNING",
    }
    if spec.data is not None:
        # A cache of its own: one under the user's home could answer with other rows.
        cache = str(folder / "datasets")
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": cache}
    return env

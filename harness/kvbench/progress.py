"""What a person sees while a run is measured: stage, arm, phase, requests done, time left.

On a terminal one live line; elsewhere (CI logs) one line a phase. Nothing here is recorded.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kvbench import clock


class Reporter(Protocol):
    """What the runner tells while it works."""

    def life(self, text: str) -> None:
        """A server is being started or stopped."""

    def detail(self, text: str) -> None:
        """What a server that is being started says; worth a look, not a line that stays."""

    def phase(self, stage: str, arm: str, name: str, concurrency: int) -> None:
        """A phase begins."""

    def done(self, requests: int) -> None:
        """Some requests were answered."""

    def say(self, text: str, *, style: str = "") -> None:
        """A line that stays."""


class Silent:
    """Says nothing: for runs inside of another program."""

    def life(self, text: str) -> None:
        """Nothing."""

    def detail(self, text: str) -> None:
        """Nothing."""

    def phase(self, stage: str, arm: str, name: str, concurrency: int) -> None:
        """Nothing."""

    def done(self, requests: int) -> None:
        """Nothing."""

    def say(self, text: str, *, style: str = "") -> None:
        """Nothing."""


class TerminalProgress:
    """Live progress with an estimate of the time left; use as a context manager."""

    def __init__(self, console: Console, total_requests: int) -> None:
        self._console = console
        self._live = console.is_terminal
        self._started_s = clock.monotonic_s()
        self._total = total_requests
        self._done = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task: TaskID = self._progress.add_task("starting", total=total_requests)

    def __enter__(self) -> TerminalProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._progress.stop()

    def life(self, text: str) -> None:
        """A server is being started or stopped: on a terminal only the live line changes."""
        self._describe(text)
        if not self._live:
            self.say(text)

    def detail(self, text: str) -> None:
        """Show the server's last log line in the live line; nothing in a CI log."""
        self._describe(text)

    def phase(self, stage: str, arm: str, name: str, concurrency: int) -> None:
        """A phase begins."""
        text = f"{stage} / {arm} / {name} (concurrency {concurrency})"
        self._describe(text)
        if not self._live:
            self.say(f"{text}: {self._done} of {self._total} requests done")

    def done(self, requests: int) -> None:
        """Count answered requests."""
        self._done += requests
        self._progress.advance(self._task, requests)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line that stays, with the seconds since the start; `style` is a colour.

        The text may come from a server, so brackets in it are no markup.
        """
        elapsed_s = clock.monotonic_s() - self._started_s
        line = Text.assemble((f"{elapsed_s:6.1f} s", "dim"), "  ", (text, style))
        self._console.print(line, soft_wrap=True)

    def _describe(self, text: str) -> None:
        self._progress.update(self._task, description=text)

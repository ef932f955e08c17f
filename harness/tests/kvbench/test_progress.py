"""What a person sees of a run: a live line on a terminal, one line a phase elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvbench import clock
from kvbench.progress import TerminalProgress


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    now = iter(range(1000))
    monkeypatch.setattr(clock, "monotonic_s", lambda: float(next(now)))
    return io.StringIO()


def progress(output: io.StringIO, *, terminal: bool) -> TerminalProgress:
    console = Console(file=output, force_terminal=terminal, width=200, color_system=None)
    return TerminalProgress(console, total_requests=8)


def work(shown: TerminalProgress) -> None:
    shown.life("starting life-1")
    shown.detail("loading weights")
    shown.phase("replay", "simple", "cold-1", 1)
    shown.done(3)
    shown.phase("replay", "simple", "reload-1", 4)
    shown.done(1)


def test_log_gets_one_line_for_each_life_and_phase(output: io.StringIO) -> None:
    with progress(output, terminal=False) as shown:
        work(shown)
    lines = [line.split(" s  ", 1)[1] for line in output.getvalue().splitlines()]
    assert lines == [
        "starting life-1",
        "replay / simple / cold-1 (concurrency 1): 0 of 8 requests done",
        "replay / simple / reload-1 (concurrency 4): 3 of 8 requests done",
    ]


def test_log_lines_carry_the_seconds_since_the_start(output: io.StringIO) -> None:
    with progress(output, terminal=False) as shown:
        shown.say("first")
        shown.say("second")
    assert [line.split()[0] for line in output.getvalue().splitlines()] == ["1.0", "2.0"]


def test_log_holds_no_control_characters(output: io.StringIO) -> None:
    with progress(output, terminal=False) as shown:
        work(shown)
    assert "\x1b" not in output.getvalue()


def test_terminal_shows_the_phase_in_the_live_line_only(output: io.StringIO) -> None:
    with progress(output, terminal=True) as shown:
        work(shown)
        shown.say("a line that stays")
    assert "reload-1 (concurrency 4)" in output.getvalue()
    assert "4/8" in output.getvalue()
    assert " s  replay" not in output.getvalue()
    assert " s  a line that stays" in output.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_more_requests_than_planned_are_counted_and_do_no_harm(
    output: io.StringIO, terminal: bool
) -> None:
    with progress(output, terminal=terminal) as shown:
        shown.done(20)
        shown.phase("replay", "simple", "cold-1", 1)
    assert "20" in output.getvalue()


def test_log_line_with_brackets_is_printed_as_it_is(output: io.StringIO) -> None:
    """Server messages hold brackets, which rich would take for markup."""
    with progress(output, terminal=False) as shown:
        shown.life("starting [/model] life-1")
    assert "[/model]" in output.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_detail_with_brackets_does_no_harm(output: io.StringIO, terminal: bool) -> None:
    with progress(output, terminal=terminal) as shown:
        shown.detail("starting: ERROR [core.py:12] x[/0]")

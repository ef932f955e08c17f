from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvbench.ledger import Ledger
from kvbench.report import terminal
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.verdict import Verdict


@pytest.mark.parametrize("width", [60, 80, 160])
def test_verdict_comes_first_at_any_width(
    healthy: Ledger, healthy_verdict: Verdict, width: int
) -> None:
    text = io.StringIO()
    terminal.show(healthy, healthy_verdict, Console(file=text, width=width))
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    assert lines[0].startswith("PASS quickstart (exit code 0)")
    assert HOST_COPY_NOTE in lines[1]
    assert all(len(line) <= width for line in lines)
    assert "replay-1" in text.getvalue() or width < 80

"""Pages that tell a story: their commands in order, as they are printed, and what they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import records
from command_line import Done, kvbench
from records import Sent

from kvbench.checks.finding import Finding, Outcome
from kvbench.errors import ExitCode
from kvbench.ledger import Ledger

DOCS = Path(__file__).parents[3] / "docs"
COMMANDS = re.compile(r"^\.venv/bin/kvbench (.+)$", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_in_order(page: str) -> dict[str, Done]:
    """Run every command of a page in this folder; RUN is the first record there is."""
    done = {}
    text = (DOCS / page).read_text()
    for line in COMMANDS.findall("".join(SHELL.findall(text))):
        run = min((path.name for path in Path().glob("results/*/*")), default="RUN")
        done[line] = kvbench(*(word.replace("RUN", run) for word in shlex.split(line)))
        assert done[line].returncode == ExitCode.PASS, (line, done[line].stderr)
    return done


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.e2e
def test_first_scenario_page_works_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = list(run_in_order("first_scenario.md").values())
    made, plan, run, report, _again = (squeezed(each.stdout) for each in done)
    shown_made, shown_plan, shown_run, _ = TEXT.findall((DOCS / "first_scenario.md").read_text())
    assert squeezed(shown_made).replace(".venv/bin/", "") == made
    assert squeezed(shown_plan) in plan
    for line in shown_run.splitlines():
        words = re.sub(r"\d+\.\d ms", "", squeezed(line))  # times are those of one machine
        assert words in re.sub(r"\d+\.\d ms", "", run), line
    assert "PASS" in report or "pass" in report
    assert len(list(Path("results/first").iterdir())) == 2


def test_node_page_plans_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "nodes.md").read_text()
    lines = [line for line in COMMANDS.findall(page) if "node.yaml" in line]
    outputs = [kvbench(*shlex.split(line)) for line in lines]
    assert [each.returncode for each in outputs] == [0, 0]
    assert "/opt/vllm/bin/python" in outputs[1].stdout
    assert "--tensor-parallel-size 2" in outputs[1].stdout
    plan = kvbench("plan", str(DOCS.parent / "scenarios/kimi_dcp8.yaml")).stdout
    assert str(128 << 30) in plan.replace(",", "")  # the table: 16 GiB per rank under TP 8


@pytest.fixture(scope="module")
def example() -> Callable[[Ledger], list[Finding]]:
    """The check that docs/checks.md prints."""
    (code,) = PYTHON.findall((DOCS / "checks.md").read_text())
    names: dict[str, Callable[[Ledger], list[Finding]]] = {}
    exec(compile(code, "docs/checks.md", "exec"), names)
    return names["check"]


def test_example_check_stays_silent_on_a_healthy_record(
    example: Callable[[Ledger], list[Finding]], tmp_path: Path
) -> None:
    (finding,) = example(records.ledger(tmp_path / "run"))
    assert finding.outcome is Outcome.PASS
    assert finding.reason.startswith("12 hits compared")


def test_example_check_fires_on_its_fault(
    example: Callable[[Ledger], list[Finding]], tmp_path: Path
) -> None:
    def damage(sent: Sent) -> None:
        if (sent.arm, sent.phase, sent.name) == ("simple", "reload-1", "p2"):
            sent.tokens = records.flip(sent.tokens, 0)

    (finding,) = example(records.ledger(tmp_path / "run", on_request=damage))
    assert finding.outcome is Outcome.FAIL
    assert (finding.phase, finding.prompts) == ("reload-1", ("replay/p2",))

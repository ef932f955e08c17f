"""Every command printed in the documentation is run by a test, here or in the whole-run tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import kvbench

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")

HERE = {
    ".venv/bin/kvbench plan scenarios/kimi_dcp8.yaml",
    ".venv/bin/kvbench plan scenarios/replay_cpu.yaml --set engine.dtype=bfloat16",
    (
        ".venv/bin/kvbench plan scenarios/replay_cpu.yaml"
        " --set arms.tested.connector.extends=connectors/native_host"
    ),
    ".venv/bin/kvbench plan scenarios/replay_cpu.yaml --stage replay --arm tested",
    ".venv/bin/kvbench schema",
}
"""run by `test_printed_command_works`"""

ELSEWHERE = {
    "./scripts/quickstart": "test_quickstart_passes_with_the_plain_start",
    "./scripts/quickstart --broken": "test_one_damaged_block_fails_and_names_its_prompt",
    ".venv/bin/kvbench run scenarios/replay_cpu.yaml --set engine.gpu_blocks=24": (
        "test_full_recipe_passes_at_24_blocks"
    ),
    ".venv/bin/kvbench run scenarios/hybrid_cpu.yaml"
    " --set stages.k1.workload.prompts.lengths_tokens=[3000]": (
        "test_device_hit_from_a_wrong_state_is_a_broken_baseline_and_no_fail"
    ),
    ".venv/bin/kvbench report results/replay_cpu/RUN": (
        "test_judge_and_report_give_the_same_bytes_again"
    ),
    ".venv/bin/kvbench judge results/replay_cpu/RUN": (
        "test_judge_and_report_give_the_same_bytes_again"
    ),
    ".venv/bin/kvbench report results/quickstart/RUN": (
        "test_judge_and_report_give_the_same_bytes_again"
    ),
    ".venv/bin/kvbench judge results/quickstart/RUN": (
        "test_judge_and_report_give_the_same_bytes_again"
    ),
    ".venv/bin/kvbench doctor": "test_doctor_finds_the_managed_environment",
    "./scripts/setup-vllm-cpu": "test_second_set_up_returns_at_once",
}
"""command -> the whole-run test that runs it"""

THE_TEST_COMMAND_ITSELF = "./scripts/test"


def printed() -> set[str]:
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
    return {line for block in blocks for line in block.splitlines() if line.strip()}


def test_every_printed_command_is_run_by_a_test() -> None:
    assert printed() == HERE | set(ELSEWHERE) | {THE_TEST_COMMAND_ITSELF}


def test_named_whole_run_tests_exist() -> None:
    text = (ROOT / "harness/tests/e2e/test_scenarios.py").read_text()
    assert [name for name in ELSEWHERE.values() if f"def {name}(" not in text] == []


@pytest.mark.parametrize("line", sorted(HERE))
def test_printed_command_works(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(line)
    assert program == ".venv/bin/kvbench"
    monkeypatch.chdir(ROOT)
    done = kvbench(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    lost = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert lost == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "scripts/test" in (ROOT / ".ci/run").read_text()

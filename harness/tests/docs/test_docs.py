"""Every command printed in the documentation is run by a test, here or in the whole-run tests."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import kvbench

from kvbench.selftest.report import compact

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
    (
        ".venv/bin/kvbench plan scenarios/replay_cpu.yaml --set 'arms.tested.connector={kind:"
        " native, copies: host_memory, chunk_tokens: 256, host_pool_bytes_total: 64MiB}'"
    ),
    ".venv/bin/kvbench schema",
    ".venv/bin/kvbench schema --format markdown",
    ".venv/bin/kvbench engine faults",
}
"""run by `test_printed_command_works`"""

FIRST_SCENARIO = "test_first_scenario_page_works_as_it_is_printed"
NODE = "test_node_page_plans_as_it_is_printed"
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
    ".venv/bin/kvbench selftest": (
        "test_every_fault_ends_in_its_verdict_and_nothing_harmless_alarms"
    ),
    "./scripts/simulate-verdicts": "test_table_of_the_page_is_what_the_script_prints",
    ".venv/bin/kvbench selftest --only F03": "test_chosen_rows_are_run_alone",
    ".venv/bin/kvbench selftest --only F17 --only F28": "test_chosen_rows_are_run_alone",
    ".venv/bin/kvbench engine fake --scenario scenarios/quickstart.yaml --port 8123": (
        "test_fake_engine_answers_by_hand"
    ),
    ".venv/bin/kvbench run scenarios/quickstart.yaml --set engine.kind=fake": (
        "test_any_scenario_with_a_geometry_can_be_rehearsed"
    ),
    ".venv/bin/kvbench run scenarios/quickstart.yaml --set engine.kind=fake"
    " --set 'arms.simple.engine.faults=[{kind: swap_blocks, phase: reload, prompt: p2}]'": (
        "test_example_of_the_page_is_what_the_commands_print"
    ),
    ".venv/bin/kvbench compare results/quickstart/BASE results/quickstart/OTHER"
    " --allow 'arms.*.faults' --format markdown": (
        "test_example_of_the_page_is_what_the_commands_print"
    ),
    ".venv/bin/kvbench init": "test_empty_answers_take_the_defaults",
    ".venv/bin/kvbench init scenarios/first.yaml --model tiny --connector simple_eager"
    " --host-memory 64MiB --cpu": FIRST_SCENARIO,
    ".venv/bin/kvbench plan scenarios/first.yaml": FIRST_SCENARIO,
    ".venv/bin/kvbench run scenarios/first.yaml --set engine.kind=fake": FIRST_SCENARIO,
    ".venv/bin/kvbench report results/first/RUN": FIRST_SCENARIO,
    ".venv/bin/kvbench rerun results/first/RUN": FIRST_SCENARIO,
    ".venv/bin/kvbench rerun results/replay_cpu/RUN": (
        "test_record_of_a_run_is_run_again_and_says_what_differs"
    ),
    ".venv/bin/kvbench init scenarios/node.yaml --model Qwen/Qwen3-0.6B --connector simple_eager"
    " --host-memory 16GiB --gpus 2": NODE,
    ".venv/bin/kvbench plan scenarios/node.yaml --set engine.python=/opt/vllm/bin/python": NODE,
}
"""command -> the whole-run test that runs it"""
WHOLE_RUNS = (
    ROOT / "harness/tests/e2e/test_scenarios.py",
    ROOT / "harness/tests/e2e/test_selftest.py",
    ROOT / "harness/tests/kvbench/selftest/test_whole_runs.py",
    ROOT / "harness/tests/kvbench/compare/test_whole_runs.py",
    ROOT / "harness/tests/kvbench/checks/test_simulation.py",
    ROOT / "harness/tests/kvbench/init/test_command.py",
    ROOT / "harness/tests/kvbench/test_rerun.py",
    ROOT / "harness/tests/docs/test_pages.py",
)

THE_TEST_COMMAND_ITSELF = "./scripts/test"


def printed() -> set[str]:
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
    return {line for block in blocks for line in block.splitlines() if line.strip()}


def test_every_printed_command_is_run_by_a_test() -> None:
    assert printed() == HERE | set(ELSEWHERE) | {THE_TEST_COMMAND_ITSELF}


def test_named_whole_run_tests_exist() -> None:
    text = "".join(page.read_text() for page in WHOLE_RUNS)
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


def test_matrix_of_the_readme_is_that_of_the_reference() -> None:
    reference = json.loads((ROOT / "results/reference/selftest.json").read_text())
    assert compact(reference) in (ROOT / "README.md").read_text()
    assert reference["right"]
    assert f"All {reference['caught']} faulty rows" in (ROOT / "README.md").read_text()
    assert f"{reference['harmless_runs']} harmless runs" in (ROOT / "README.md").read_text()

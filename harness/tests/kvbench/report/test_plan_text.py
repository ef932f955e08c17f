from __future__ import annotations

import shlex
from pathlib import Path

from kvbench.plan import make_plan
from kvbench.report.plan_table import merged_runs, table
from kvbench.report.plan_text import render_plan
from kvbench.scenario.load import load_scenario

SCENARIOS = Path(__file__).parents[4] / "scenarios"


def text_of(name: str, *sets: str) -> str:
    loaded = load_scenario(SCENARIOS / f"{name}.yaml", sets=sets)
    return render_plan(loaded, make_plan(loaded)).plain


def test_command_pasted_into_a_shell_is_the_planned_argv() -> None:
    loaded = load_scenario(SCENARIOS / "quickstart.yaml")
    plan = make_plan(loaded)
    text = render_plan(loaded, plan).plain
    for life in plan.lives:
        block = text.split(f"{life.life}: arms")[1].split("\n", 1)[1].split("\n\n")[0]
        words = shlex.split(block.replace("\\\n", " "))
        assert words == [*(f"{name}={value}" for name, value in life.env.items()), *life.argv]


def test_capacity_is_printed_per_rank_and_in_total() -> None:
    text = text_of("kimi_dcp8")
    assert "host  total          137,438,953,472" in text
    assert "host  per rank of 8   17,179,869,184" in text


def test_capacity_is_printed_in_bytes_blocks_and_tokens() -> None:
    assert "life-2  host  total          67,108,864     256  32,768" in text_of("quickstart")


def test_range_is_printed_as_a_range_with_its_reason() -> None:
    text = text_of("hybrid_cpu")
    assert "0..2304 + 0..2304" in text
    assert "* hybrid: a hit needs every group" in text


def test_warnings_come_last() -> None:
    text = text_of("quickstart", "stages.replay.workload.fresh_runs=1")
    assert text.splitlines()[-1].endswith("a band needs 3")
    assert text_of("quickstart").splitlines()[-2:] == ["Warnings", "  none"]


def test_host_memory_copies_are_labelled() -> None:
    assert "host-memory copy backend: timings mean nothing" in text_of("quickstart")


def test_lines_have_no_trailing_spaces() -> None:
    assert all(line == line.rstrip() for line in text_of("replay_cpu").splitlines())


def test_numbers_are_set_to_the_right_and_words_to_the_left() -> None:
    lines = list(table(("name", "n"), [("a", "1"), ("bb", "1,000"), ("c", "n/a")]))
    assert lines == ["  name      n", "  a         1", "  bb    1,000", "  c       n/a"]


def test_equal_neighbouring_runs_share_a_row() -> None:
    rows = [("fresh", 1, ("x",)), ("fresh", 2, ("x",)), ("fresh", 3, ("y",)), ("hot", 1, ("y",))]
    assert merged_runs(rows) == [("fresh-1..2", "x"), ("fresh-3", "y"), ("hot-1", "y")]

from __future__ import annotations

import os
import re
from pathlib import Path

import event_lines
import pytest
import records
import rendered
import tool_records
from command_line import kvbench
from odd_records import (
    RECORDS,
    block,
    changing,
    damaged,
    died,
    edited,
    evaluated,
    evil_failure,
    interrupted,
    loaded,
)

from kvbench.events import LifeStarted
from kvbench.judge import judge_ledger
from kvbench.ledger import load
from kvbench.report import github
from kvbench.report.fitting import HARD_LIMIT_CHARACTERS, LIMIT_BYTES
from kvbench.report.formats import Format
from kvbench.report.formats import render as render_as
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.scenario.engines import FAKE_WORDS

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
LENGTHS = ",".join(str(300 + number) for number in range(30))
HUGE = (
    "stages.replay.workload.new_tokens=1",
    "stages.replay.workload.top_logprobs=1",
    "stages.replay.workload.concurrency=[1,2,3,4,5,6]",
    f"stages.replay.workload.prompts.lengths_tokens=[{LENGTHS}]",
)
pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_of_record_renders_soundly_and_the_same_again(name: str, run: Path) -> None:
    text = block(RECORDS[name](run))
    rendered.assert_is_sound(text)
    assert text.startswith("## ")
    assert text.splitlines()[-1].startswith("<sub>record <code>results/quickstart/run</code>")
    assert block(run) == text


@pytest.mark.parametrize("name", ["pass", "fail", "evaluation", "aiperf"])
def test_block_is_the_golden_one(name: str, run: Path) -> None:
    """Set KVBENCH_REGENERATE=1 to write them anew; that run fails on purpose."""
    text = re.sub(r"(?m)^(# life-.*)\n.*$", r"\1\nCOMMAND", block(RECORDS[name](run)))
    golden = GOLDEN / f"github_{name}.md"
    if os.environ.get("KVBENCH_REGENERATE"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
        pytest.fail(f"{golden} was written anew; read it, then run without KVBENCH_REGENERATE")
    assert text == golden.read_text()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
def test_killed_run_renders_up_to_where_it_came(run: Path, share: float) -> None:
    text = block(interrupted(run, share))
    rendered.assert_is_sound(text)
    assert "The run was interrupted" in text
    assert "seal none" in text


def test_failure_begins_with_the_sentence_that_decided(run: Path) -> None:
    lines = block(records.write(run, on_request=damaged)).splitlines()
    assert lines[0] == "## ❌ FAIL: quickstart"
    assert lines[2].startswith("<b>tokens differ: 1 of 4 answers in reload-1 differ")
    assert "p2 position 3" in lines[2]
    assert lines[2].endswith("(replay / simple / reload-1)</b> (exit code 1)")


def test_pass_says_what_is_proved(run: Path) -> None:
    lines = block(records.write(run)).splitlines()
    assert lines[0] == "## ✅ PASS: quickstart"
    assert "proved: alive, hits, identity, logprobs" in lines[2]


def test_fake_engine_is_said_loudly_before_any_number(run: Path) -> None:
    fake = changing(LifeStarted, start_mode="fake")
    text = block(records.write(run, on_event=fake))
    assert f"> [!CAUTION]\n> <b>{FAKE_WORDS}</b>" in text
    assert text.index(FAKE_WORDS) < text.index("| :--- |")


def test_host_copies_are_said_to_time_nothing(run: Path) -> None:
    assert f"> {HOST_COPY_NOTE}" in block(records.write(run))


def test_changed_record_names_its_files_and_its_seal(run: Path) -> None:
    text = block(edited(run))
    assert "> The record was changed after the run: journal.jsonl" in text
    assert "seal broken" in text


def test_dead_engine_shows_why_and_its_last_lines(run: Path) -> None:
    tail = "\n".join(["```", *(f"line {number}" for number in range(100)), "@bob | died"])
    text = block(died(run, message="assert x == [1]", tail=tail))
    assert "- life-2 (simple): assert x == &#91;1&#93;" in text
    assert "<summary>Last log lines of life-2 (simple), which failed in fresh-1</summary>" in text
    assert "\n@bob | died\n" in text
    assert "\nline 99\n" in text
    assert "\nline 10\n" not in text
    assert "- 1&#46; a note of @&#8203;somebody about #&#8203;7" in text
    rendered.assert_is_sound(text)


def test_backticks_of_a_log_do_not_end_its_block(run: Path) -> None:
    text = block(died(run, tail="a\n``````\n</details> @bob"))
    rendered.assert_is_sound(text)
    assert "```````text\na\n``````\n</details> @bob\n```````" in text


def test_skipped_phases_are_one_line_and_no_findings(run: Path) -> None:
    text = block(died(run))
    assert "setup: arm simple: 10 skipped (fresh-2, fresh-3, hot-1, " in text
    assert "phase_run" not in text


def test_words_of_an_engine_are_shown_and_do_nothing(run: Path) -> None:
    text = block(records.write(run, on_request=evil_failure))
    shown = rendered.visible(text)
    for piece in ("@octocat", "#12", "`co|de`", "![x](http://x.example/p.png)", "</details>"):
        assert piece in shown


def test_names_of_a_scenario_do_nothing_either(run: Path, tmp_path: Path) -> None:
    source = records.QUICKSTART.read_text()
    evil = source.replace("  simple:", '  "simple @bob <i>|":').replace(
        "title: Blocks", 'title: "#1 </details> Blocks" #'
    )
    scenario = tmp_path / "evil.yaml"
    configs = records.QUICKSTART.parents[1] / "configs"
    scenario.write_text(evil.replace("[models/", f"[{configs}/models/"))
    text = block(records.write(run, scenario=scenario))
    rendered.assert_is_sound(text)
    assert "simple @bob <i>|" in rendered.visible(text)


def test_missing_counters_are_not_available_and_never_zero(run: Path) -> None:
    text = block(records.write(run))
    control = text[text.index("Phases of the control") :]
    row = next(line for line in control.splitlines() if line.startswith("| replay-1 "))
    assert row.split("|")[4].strip() == "n/a"


def test_rates_show_what_they_are_made_of(run: Path) -> None:
    assert "| 1,792/2,152 (83.3\u00a0%) |" in block(records.write(run))


def test_runs_that_say_the_same_share_a_row_and_others_do_not(run: Path) -> None:
    text = block(records.write(run, on_request=damaged))
    assert "| hot-1..2 |" in text
    assert "| replay-1 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| reload-1 "))
    assert row.endswith("| <b>fail</b> |")
    assert "| 3/4 |" in row


def test_engines_have_rows_of_their_own(run: Path) -> None:
    text = block(records.write(run, engines=2))
    folded = text[text.index("<summary>Engine by engine</summary>") :]
    assert re.search(r"^\| replay-1 \| 0 \| ", folded, re.MULTILINE)
    assert re.search(r"^\| replay-1 \| 1 \| ", folded, re.MULTILINE)
    assert "Engine by engine" not in block(records.write(run.with_name("one")))


def test_control_with_something_against_it_stands_in_the_open(run: Path) -> None:
    def both(sent: records.Sent) -> None:
        if (sent.phase, sent.name) == ("hot-1", "p2"):
            sent.tokens = records.flip(sent.tokens, 3)

    text = block(records.write(run, on_request=both))
    assert "<summary>Phases of the control</summary>" not in text
    assert text.index("arm control, concurrency 1</b> (control)") < text.index("### Details")


def test_kv_events_are_counted_in_the_tier_and_on_the_device(run: Path) -> None:
    text = block(event_lines.write(run))
    rendered.assert_is_sound(text)
    folded = text[text.index("<summary>Blocks by KV events</summary>") :]
    simple = folded[folded.index("arm simple") :]
    row = next(line for line in simple.splitlines() if line.startswith("| fresh-1 |"))
    stored = int(row.split("|")[2])
    assert stored > 0
    assert "Blocks by KV events" not in block(records.write(run.with_name("none")))


def test_same_check_in_other_phases_is_said_once(run: Path) -> None:
    def twice(sent: records.Sent) -> None:
        if sent.arm == "simple" and sent.kind == "replay" and sent.name == "p2":
            sent.tokens = records.flip(sent.tokens, 3)

    text = block(records.write(run, on_request=twice))
    opened = text[: text.index("### Conditions")]
    assert opened.count("<code>tokens_equal</code>") == 1
    assert "; likewise in replay-2" in opened


def test_prompt_that_failed_stands_first(run: Path) -> None:
    text = block(records.write(run, on_request=damaged))
    table = text[text.index("<summary>Prompt by prompt</summary>") :]
    first = next(line for line in table.splitlines() if line.startswith("| <code>p"))
    assert first.startswith("| <code>p2</code>")


def test_rounds_say_how_their_score_came_about(run: Path) -> None:
    text = block(evaluated(run))
    rows = [line for line in text.splitlines() if re.match(r"\| [12] \| \d+/40 ", line)]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0][:3] == ["1", "40/40", "38/40 (0.950\u00a0±\u00a00.034)"]
    assert cells[3][1] == "39/40"
    assert cells[3][6:] == ["1, 1", "<b>invalid</b>"]
    assert "lm-eval 0.4.13 (gsm8k 3.0, 5 shots, stock)" in text


def test_hit_rates_of_trace_client_and_server_have_names_of_their_own(run: Path) -> None:
    text = block(loaded(run))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if "|" in line}
    assert "66.67 %" in lines["theoretical hit of the trace"]
    assert "19,440/29,570 (65.7\u00a0%)" in lines["client: cached / prompt tokens (AIPerf)"]
    assert "0/4,600 (0.0\u00a0%)" in lines["server: local hits/queries"]
    assert "unsafe_override, run_cancelled" in lines["reasons against it"]


def test_absent_value_of_aiperf_says_that_it_is_absent(run: Path) -> None:
    aborted = tool_records.agent_run(tool_records.GOLDEN / "warmup_abort", finished=2)
    text = block(tool_records.write(run, {"simple": [aborted]}, claim="performance"))
    row = next(line for line in text.splitlines() if line.startswith("| duration |"))
    assert row == "| duration | n/a (absent) |"


# ---- size ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write(tmp_path_factory.mktemp("records") / "huge", sets=HUGE)


def test_huge_run_fits_and_says_what_was_cut(huge: Path) -> None:
    text = block(huge)
    assert len(text.encode()) <= LIMIT_BYTES < HARD_LIMIT_CHARACTERS
    assert len(text.encode()) > LIMIT_BYTES * 0.9, "more was cut than had to be"
    footer = text[text.index("<b>Cut to fit into a comment:</b>") :]
    assert "<code>report.md</code> in the record" in footer
    rendered.assert_is_sound(text)


@pytest.mark.parametrize("limit", [8_000, 12_000, 20_000, 40_000])
def test_what_explains_least_goes_first(huge: Path, limit: int) -> None:
    ledger = load(huge)
    text = github.render(ledger, judge_ledger(ledger), limit_bytes=limit)
    assert len(text.encode()) <= limit
    rendered.assert_is_sound(text)
    assert "### Not proved" in text
    assert "### Conditions" in text
    assert "Passed checks" not in text
    for line in re.findall(r"Left out of .*: the (?:last|first) ([0-9,]+) of ([0-9,]+)", text):
        gone, total = (int(number.replace(",", "")) for number in line)
        assert 0 < gone < total


def test_texts_that_are_all_signs_cannot_burst_the_limit(run: Path) -> None:
    def shout(sent: records.Sent) -> None:
        if sent.role == "scored":
            sent.error, sent.error_kind, sent.http_status = "*|<`" * 2_000, "http", 500

    text = block(records.write(run, on_request=shout))
    assert len(text.encode()) <= LIMIT_BYTES
    rendered.assert_is_sound(text)


# ---- the command -----------------------------------------------------------------------------


def test_command_prints_each_format(run: Path) -> None:
    ledger = load(records.write(run))
    for form in Format:
        done = kvbench("report", str(run), "--format", form.value)
        assert done.returncode == 0
        assert done.stdout == render_as(form, ledger, judge_ledger(ledger))
    assert kvbench("report", str(run)).stdout.startswith("# ")
    assert kvbench("report", str(run), "--format", "html").returncode == 2

from __future__ import annotations

import os
from pathlib import Path

import pytest
import records

from kvbench.events import Event, RequestDone
from kvbench.judge import judge_ledger
from kvbench.ledger import Ledger, load
from kvbench.report import markdown
from kvbench.report.tables import band_rows, phase_rows, prompt_rows
from kvbench.scenario.connectors import HOST_COPY_NOTE
from kvbench.verdict import Verdict

GOLDEN = Path(__file__).parent / "golden" / "quickstart.md"


def test_report_is_the_golden_one(healthy: Ledger, healthy_verdict: Verdict) -> None:
    """Set KVBENCH_REGENERATE=1 to write it anew; that run fails on purpose."""
    text = markdown.render(healthy, healthy_verdict)
    if os.environ.get("KVBENCH_REGENERATE"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was written anew; read it, then run without KVBENCH_REGENERATE")
    assert text == GOLDEN.read_text()


def test_host_copies_are_said_to_time_nothing(healthy: Ledger, healthy_verdict: Verdict) -> None:
    assert f"> {HOST_COPY_NOTE}" in markdown.render(healthy, healthy_verdict)


def test_rates_show_what_they_are_made_of(healthy: Ledger, healthy_verdict: Verdict) -> None:
    text = markdown.render(healthy, healthy_verdict)
    assert "1792/2152 (83.3 %)" in text


def test_missing_counters_are_not_available_and_never_zero(
    healthy: Ledger, healthy_verdict: Verdict
) -> None:
    text = markdown.render(healthy, healthy_verdict)
    row = next(line for line in text.splitlines() if line.startswith("| control | replay-1 "))
    assert row.split("|")[7].strip() == "n/a"


def test_engines_have_rows_of_their_own(run: Path, quick_disk: None) -> None:
    ledger = records.ledger(run, arm=("simple",), engines=2)
    text = markdown.render(ledger, judge_ledger(ledger))
    assert "| simple | replay-1, engine 0 |" in text
    assert "| simple | replay-1, engine 1 |" in text


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
def test_a_killed_run_renders_up_to_where_it_came(
    run: Path, quick_disk: None, share: float
) -> None:
    records.write(run, seal=False)
    journal = run / "journal.jsonl"
    data = journal.read_bytes()
    first = data.index(b"\n") + 1
    journal.write_bytes(data[: max(first, int(len(data) * share))])
    ledger = load(run)
    text = markdown.render(ledger, judge_ledger(ledger))
    assert "The run was interrupted" in text
    assert text.endswith("\n")


def test_words_of_an_engine_cannot_break_the_report(run: Path) -> None:
    def damage(sent: records.Sent) -> None:
        if sent.arm == "simple" and sent.phase == "replay-1" and sent.name == "p2":
            sent.error, sent.error_kind, sent.http_status = "a | b <b>\n# head [/x]", "http", 500

    ledger = records.ledger(run, on_request=damage)
    text = markdown.render(ledger, judge_ledger(ledger))
    assert "a | b &lt;b> # head [/x]" in text
    assert "<b>" not in text
    assert "\n# head" not in text


def test_no_row_of_an_edited_record_says_pass(run: Path) -> None:
    records.write(run)
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b"\n")
    ledger = load(run)
    verdict = judge_ledger(ledger)
    assert {row.verdict for row in phase_rows(ledger, verdict)} == {"invalid"}
    assert {row.verdict for row in prompt_rows(ledger, verdict)} == {"invalid"}


def test_no_row_of_an_arm_whose_answers_are_blind_says_pass(run: Path) -> None:
    def damage(sent: records.Sent) -> None:
        sent.tokens = list(records.answer("same", sent.new_tokens))

    ledger = records.ledger(run, on_request=damage)
    rows = phase_rows(ledger, judge_ledger(ledger))
    assert {row.verdict for row in rows if row.arm == "simple"} == {"inconclusive"}


def test_prompt_length_that_was_not_said_is_missing_in_the_bands(run: Path) -> None:
    def forget(event: Event) -> Event:
        is_it = isinstance(event, RequestDone) and event.role == "scored"
        return records.replace(event, prompt_tokens=None) if is_it else event

    ledger = records.ledger(run, on_event=forget)
    assert {row.prompt_tokens for row in band_rows(ledger)} == {None}


def test_run_without_a_control_says_what_it_cannot_see(run: Path) -> None:
    ledger = records.ledger(run, arm=("simple",))
    assert "identity: no control arm ran in stage replay" in markdown.render(
        ledger, judge_ledger(ledger)
    )

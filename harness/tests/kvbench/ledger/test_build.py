from __future__ import annotations

from pathlib import Path

import pytest
import records

from kvbench.errors import RecordError
from kvbench.events import Event, RequestDone, RunStarted
from kvbench.ledger import Ledger, Window, load


def window(ledger: Ledger, phase: str, arm: str = "simple") -> Window:
    return next(w for w in ledger.windows if (w.phase, w.arm) == (phase, arm))


def test_windows_follow_the_plan(healthy: Ledger) -> None:
    phases = [w.phase for w in healthy.windows if w.arm == "simple" and not w.is_proof]
    assert phases[:3] == ["fresh-1", "fresh-2", "fresh-3"]
    assert all(w.is_complete and w.planned is not None for w in healthy.windows if not w.is_proof)


def test_requests_at_concurrency_one_have_deltas_of_their_own(healthy: Ledger) -> None:
    replay = window(healthy, "replay-1")
    assert [r.external for r in replay.requests] == [256, 256, 384, 896]
    assert [r.local for r in replay.requests] == [0, 0, 0, 0]
    assert replay.deltas is not None
    assert replay.deltas.total("external_hits") == sum(r.external or 0 for r in replay.requests)


def test_per_request_deltas_add_up_to_the_windows(healthy: Ledger) -> None:
    for each in healthy.windows:
        for name in ("prompt_tokens", "local_hits", "local_queries", "generation_tokens"):
            parts = [r.delta.total(name) for r in each.requests if r.delta is not None]
            assert each.deltas is not None
            assert sum(part or 0 for part in parts) == each.deltas.total(name)


def test_arm_without_a_connector_has_no_external_hits(healthy: Ledger) -> None:
    replay = window(healthy, "replay-1", "control")
    assert {r.external for r in replay.requests} == {0}
    assert replay.deltas is not None
    assert replay.deltas.total("external_hits") is None


def test_expectations_follow_what_was_sent_and_not_what_was_planned(
    tmp_path: Path, quick_disk: None
) -> None:
    """Without the pressure nothing was evicted, so the oracle expects the replay to hit locally."""

    def no_pressure(event: Event) -> Event | None:
        is_filler = isinstance(event, RequestDone) and event.role == "filler"
        return None if is_filler else event

    ledger = records.ledger(tmp_path / "run", arm=("simple",), on_event=no_pressure)
    expected = window(ledger, "replay-1").requests[-1].expected
    assert expected is not None
    assert expected.local.low_tokens > 0


def test_a_killed_run_is_readable_up_to_its_torn_line(tmp_path: Path, quick_disk: None) -> None:
    directory = records.write(tmp_path / "run", seal=False)
    journal = directory / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data[: len(data) * 2 // 3])
    ledger = load(directory)
    assert ledger.is_interrupted
    assert ledger.windows
    assert ledger.windows[-1].outcome == "open"


def test_a_folder_that_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not a record"):
        load(tmp_path)


def test_a_record_of_another_schema_is_refused(tmp_path: Path, quick_disk: None) -> None:
    def newer(event: Event) -> Event:
        return records.replace(event, schema=99) if isinstance(event, RunStarted) else event

    with pytest.raises(RecordError, match="schema 99"):
        records.ledger(tmp_path / "run", on_event=newer)


@pytest.mark.parametrize("text", ["", "{}", '{"sha'])
def test_seal_that_was_not_written_to_its_end_is_none(run: Path, text: str) -> None:
    records.write(run)
    (run / "seal.json").write_text(text)
    ledger = load(run)
    assert ledger.seal.state == "none"
    assert ledger.is_interrupted


def test_plan_that_was_not_written_to_its_end_is_none(run: Path) -> None:
    records.write(run, seal=False)
    path = run / "plan.json"
    path.write_bytes(path.read_bytes()[:500])
    ledger = load(run)
    assert ledger.plan is None
    assert ledger.is_interrupted


def test_scenario_of_another_kvbench_is_an_error_that_names_the_field(run: Path) -> None:
    records.write(run)
    path = run / "plan.json"
    path.write_text(path.read_text().replace('"error_rate"', '"rate_of_error"', 1))
    with pytest.raises(RecordError, match="cannot read its scenario: rate_of_error"):
        load(run)

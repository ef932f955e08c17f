"""The matrix file: every fault model is in it, and every row is a scenario that can be planned."""

from __future__ import annotations

import json
import re

import pytest

from kvbench.checks.finding import Outcome
from kvbench.engine.fake.faults import registered
from kvbench.errors import UsageError
from kvbench.plan import make_plan
from kvbench.scenario.engines import FakeEngine
from kvbench.scenario.load import load_scenario
from kvbench.scenario.resolve import engine_of
from kvbench.selftest.rows import BASE, Row, chosen, load_rows, runs_of

ROWS = load_rows()
REFUSED = {"F11 look-alike"}


def test_all_34_fault_models_have_a_row() -> None:
    assert {row.id for row in ROWS if row.id.startswith("F") and "+" not in row.id} == {
        f"F{number:02d}" for number in range(1, 35)
    }


def test_a_row_that_must_not_alarm_expects_no_fail() -> None:
    harmless = [row for row in ROWS if row.kind in ("look_alike", "clean")]
    assert len(harmless) >= 20
    assert all(row.outcome is not Outcome.FAIL for row in harmless)


def test_a_faulty_row_that_passes_names_the_finding_that_warns() -> None:
    for row in ROWS:
        if row.kind == "fault" and row.outcome is Outcome.PASS:
            assert row.findings, row.name
            assert all(expected.says for expected in row.findings), row.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_a_scenario_that_can_be_planned(row: Row) -> None:
    if row.name in REFUSED:
        with pytest.raises(UsageError):
            make_plan(load_scenario(BASE, sets=row.sets(), arm=row.arms))
        return
    loaded = load_scenario(BASE, sets=row.sets(), arm=row.arms)
    assert make_plan(loaded).lives
    for arm in loaded.scenario.arms:
        engine = engine_of(loaded.scenario, "replay", arm)
        assert isinstance(engine, FakeEngine)
        assert all(fault.kind in registered() for fault in engine.faults)


def test_repeats_differ_in_their_seed_only() -> None:
    (row,) = chosen(ROWS, ("F28",))[:1]
    assert row.repeats >= 20
    assert len({tuple(row.sets(repeat)) for _, repeat in runs_of((row,))}) == row.repeats
    assert json.dumps(1) in row.sets(0)[-1]


def test_unknown_row_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"F99.*known: F01"):
        chosen(ROWS, ("F99",))


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("[{kind: swap_block}]", "no fault is called 'swap_block'"),
        ("[{kind: swap_blocks, options: {by: 3}}]", "options: Object contains unknown field"),
        ("[{kind: swap_blocks, phase: relaod}]", "did you mean 'reload'"),
        ("[{kind: swap_blocks, phase: reload, prompt: p99}]", "has no prompt 'p99'"),
    ],
)
def test_wrong_fault_is_refused_before_anything_starts(faults: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make_plan(load_scenario(BASE, sets=[f"arms.tested.engine.faults={faults}"]))

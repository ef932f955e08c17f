"""Rates that must not be subtracted, and what is written instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import records
from two_runs import against, on_replayed, one_block_less, whole_prompts

from kvbench.compare import deltas
from kvbench.errors import ExitCode

pytestmark = pytest.mark.usefixtures("quick_disk")
LOADED = ("stages.replay.workload.new_tokens=8", "stages.replay.workload.concurrency=[2]")


def test_rates_of_other_queries_stand_side_by_side(run: Path) -> None:
    more = (*records.SMALL, "stages.replay.workload.prompts.lengths_tokens=[1000,700]")
    one = records.write(run / "one")
    two = records.write(run / "two", sets=more)
    found = against(one, two, "stages.*.prompts.*")
    (row,) = [r for r in found.rates if (r.arm, r.phase, r.tier) == ("simple", "hot-1", "local")]
    assert row.verdict == deltas.OTHER_QUERIES
    assert row.difference_tokens is None
    assert None not in (row.base.hits, row.base.queries, row.other.hits, row.other.queries)
    assert row.base.queries != row.other.queries


def test_queries_of_another_meaning_are_not_subtracted(run: Path) -> None:
    one = records.write(run / "one")
    two = records.write(run / "two", on_event=whole_prompts)
    rows = against(one, two).rates
    external = [row for row in rows if row.tier == "external"]
    assert external
    assert {row.verdict for row in external} == {deltas.OTHER_MEANING}
    assert {row.difference_tokens for row in external} == {None}
    assert {row.verdict for row in rows if row.tier == "local"} == {deltas.EQUAL}


def test_arm_without_a_connector_has_no_external_tier(run: Path) -> None:
    one = records.write(run)
    rows = against(one, one).rates
    assert {row.tier for row in rows if row.arm == "control"} == {"local"}
    assert {row.tier for row in rows if row.arm == "simple"} == {"local", "external"}


def test_hits_under_load_are_shown_and_not_judged(run: Path) -> None:
    one = records.write(run / "one", sets=LOADED)
    two = records.write(run / "two", sets=LOADED, on_request=on_replayed(one_block_less))
    found = against(one, two)
    (row,) = [row for row in found.rates if row.difference_tokens]
    assert (row.phase, row.difference_tokens) == ("reload-1 c2", -128)
    assert row.verdict == deltas.NOT_JUDGED


def test_bands_of_both_runs_stand_side_by_side(run: Path) -> None:
    def shifted(sent: records.Sent) -> None:
        sent.tokens = records.change_one(sent.tokens, 1, 0.25)

    one = records.write(run / "one")
    two = records.write(run / "two", on_request=on_replayed(shifted))
    found = against(one, two)
    (pair,) = [
        pair
        for pair in found.bands
        if (pair.arm, pair.comparison) == ("simple", "CPU hit against GPU hit")
    ]
    assert pair.base is not None
    assert pair.other is not None
    assert (pair.base.max_nats, pair.base.inside) == (0.0, "yes")
    assert pair.other.max_nats == pytest.approx(0.25)
    assert pair.other.inside == "no"
    assert found.exit_code == ExitCode.FAIL

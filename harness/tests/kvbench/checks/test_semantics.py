"""The meaning of external queries, read off what the counters did."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvbench.checks.finding import Outcome
from kvbench.checks.semantics import check, meaning_in
from kvbench.ledger import Ledger
from kvbench.ledger.counters import Deltas
from kvbench.ledger.facts import Window

HOT = {"prompt_tokens": 100.0, "local_hits": 80.0}


def window(counted: Mapping[str, float], *, arm: str = "a", connector: bool = True) -> Window:
    deltas = Deltas({"0": {(name, ""): value for name, value in counted.items()}}, ())
    made = SimpleNamespace(
        deltas=deltas, has_connector=connector, stage="s", arm=arm, is_complete=True
    )
    return cast("Window", made)


def ledger(*windows: Window) -> Ledger:
    pairs = tuple(dict.fromkeys((w.stage, w.arm) for w in windows))
    made: Any = SimpleNamespace(windows=windows, pairs=pairs)
    return cast("Ledger", made)


@pytest.mark.parametrize(
    ("asked", "meaning"), [(100.0, "whole prompt"), (20.0, "remainder"), (50.0, None)]
)
def test_meaning_follows_from_a_local_hit(asked: float, meaning: str | None) -> None:
    assert meaning_in(window(HOT | {"external_queries": asked})) == meaning


@pytest.mark.parametrize(
    "counted",
    [
        HOT,
        {"prompt_tokens": 100.0, "local_hits": 0.0, "external_queries": 100.0},
        HOT | {"external_queries": 100.0, "preemptions": 1.0},
    ],
)
def test_where_both_would_look_the_same_nothing_is_said(counted: Mapping[str, float]) -> None:
    assert meaning_in(window(counted)) is None


def test_arms_that_count_unlike_things_are_not_compared() -> None:
    rest = window(HOT | {"external_queries": 20.0}, arm="a")
    whole = window(HOT | {"external_queries": 100.0}, arm="b")
    (finding,) = check(ledger(rest, whole))
    assert finding.outcome is Outcome.INVALID
    assert "a: remainder; b: whole prompt" in finding.reason


def test_arms_that_count_alike_are_fine() -> None:
    whole = {"external_queries": 100.0}
    assert not check(ledger(window(HOT | whole, arm="a"), window(HOT | whole, arm="b")))
    assert not check(ledger(window(HOT, connector=False)))

"""Memory of the server against what its host pool explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.checks.finding import Outcome
from kvbench.checks.memory import MARGIN_BYTES, allowed_growth_bytes, check, growth_bytes
from kvbench.events import MemorySampled
from kvbench.ledger import Ledger

POOL_BYTES = 64 * 1024**2


def sample(pss_bytes: int | None, rss_bytes: int = 0) -> MemorySampled:
    return MemorySampled(
        time_s=1.0,
        life="life-1",
        window="w001",
        processes=3,
        rss_bytes=rss_bytes,
        pss_bytes=pss_bytes,
        gpu_bytes=None,
    )


@pytest.mark.parametrize(
    ("used", "grown"),
    [
        ([], None),
        ([sample(100)], None),
        ([sample(100), sample(400), sample(300)], 300),
        ([sample(None, 7), sample(None, 9)], 2),
        ([sample(100), sample(None, 900)], None),
    ],
)
def test_growth_is_counted_from_the_first_window(
    used: list[MemorySampled], grown: int | None
) -> None:
    assert growth_bytes(tuple(enumerate(used))) == grown


def test_growth_up_to_the_pool_is_warm_up() -> None:
    assert allowed_growth_bytes(POOL_BYTES) > POOL_BYTES + MARGIN_BYTES


@pytest.mark.parametrize(
    ("grown_bytes", "outcome"),
    [(POOL_BYTES, Outcome.PASS), (POOL_BYTES + 2 * MARGIN_BYTES, Outcome.FAIL)],
)
def test_growth_beyond_the_pool_fails(healthy: Ledger, grown_bytes: int, outcome: Outcome) -> None:
    used = tuple(enumerate([sample(10**9), sample(10**9 + grown_bytes)]))
    lives = tuple(
        replace(life, memory=used) if life.arms == ("simple",) else life for life in healthy.lives
    )
    (finding,) = check(replace(healthy, lives=lives))
    assert (finding.arm, finding.outcome, finding.witness) == ("simple", outcome, "processes")


def test_life_without_samples_says_nothing(healthy: Ledger) -> None:
    assert check(healthy) == []

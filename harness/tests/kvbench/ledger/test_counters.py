from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvbench.events import Sample, Snapshot
from kvbench.ledger.counters import difference

numbers = st.integers(0, 10**6)


def page(*samples: Sample) -> Snapshot:
    return Snapshot(
        time_s=0.0, life="life-1", window="w1", edge="after", samples=samples, missing=()
    )


def counter(value: float, engine: str = "0", name: str = "local_hits", **labels: str) -> Sample:
    return Sample(name, engine, labels, float(value))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4))
def test_total_is_the_sum_of_the_engines(parts: list[tuple[int, int]]) -> None:
    before = page(*(counter(a, str(i)) for i, (a, _) in enumerate(parts)))
    after = page(*(counter(a + b, str(i)) for i, (a, b) in enumerate(parts)))
    deltas = difference(before, after)
    assert deltas.total("local_hits") == sum(b for _, b in parts)
    assert [deltas.of(engine, "local_hits") for engine in deltas.engines] == [b for _, b in parts]


@given(st.lists(numbers, min_size=3, max_size=6))
def test_deltas_of_a_chain_add_up(steps: list[int]) -> None:
    totals = [sum(steps[: i + 1]) for i in range(len(steps))]
    pages = [page(counter(value)) for value in totals]
    parts = [difference(a, b).total("local_hits") for a, b in pairwise(pages)]
    assert sum(part for part in parts if part is not None) == totals[-1] - totals[0]


def test_missing_is_none_and_not_zero() -> None:
    deltas = difference(page(counter(1)), page(counter(2)))
    assert deltas.total("external_hits") is None


def test_one_engine_without_the_family_makes_the_total_unknown() -> None:
    before = page(counter(1, "0"), counter(1, "1"), counter(1, "1", "external_hits"))
    deltas = difference(before, before)
    assert deltas.of("1", "external_hits") == 0
    assert deltas.total("external_hits") is None


def test_a_counter_that_appears_without_a_past_is_unknown() -> None:
    assert difference(page(), page(counter(5))).total("local_hits") is None


def test_a_new_label_of_a_known_family_starts_at_zero() -> None:
    before = page(counter(1, name="requests_finished", reason="length"))
    after = page(
        counter(2, name="requests_finished", reason="length"),
        counter(3, name="requests_finished", reason="stop"),
    )
    assert difference(before, after).labelled("requests_finished") == {"length": 1, "stop": 3}


def test_a_counter_that_fell_marks_a_restart_and_is_not_clipped() -> None:
    deltas = difference(page(counter(9)), page(counter(4)))
    assert deltas.restarted == ("0",)
    assert deltas.total("local_hits") == -5


def test_another_process_start_marks_a_restart() -> None:
    before = page(counter(1), Sample("process_start_time_s", "", {}, 10.0))
    after = page(counter(5), Sample("process_start_time_s", "", {}, 20.0))
    assert difference(before, after).restarted == ("0",)


def test_gauges_of_a_connector_may_fall() -> None:
    before = page(counter(1), counter(7, name="simple_used_blocks"))
    after = page(counter(1), counter(1, name="simple_used_blocks"))
    deltas = difference(before, after)
    assert deltas.restarted == ()
    assert deltas.total("simple_used_blocks") is None


def test_engine_that_comes_or_goes_makes_every_sum_missing() -> None:
    both = page(counter(1), counter(2, "1"))
    one = page(counter(5))
    assert difference(both, one).total("local_hits") is None
    assert difference(one, both).total("local_hits") is None
    assert difference(both, one).of("0", "local_hits") == 4


def test_series_of_a_process_is_no_engine() -> None:
    start = Sample("process_start_time_s", "", {}, 1.0)
    assert difference(page(counter(1)), page(counter(3), start)).total("local_hits") == 2

"""Reading `/metrics` pages, and computing with what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.events import Sample
from kvbench.telemetry import metrics
from kvbench.telemetry.metrics import CounterRestartedError, UnreadablePageError, delta, read, total
from kvbench.telemetry.names import SERIES

GOLDEN = Path(__file__).parents[2] / "golden"
VERSION = "__vllm-0.32.0-cpu.txt"
CORE = {series.name for series in SERIES if series.core}


def page(name: str) -> metrics.Page:
    return read((GOLDEN / f"metrics_{name}{VERSION}").read_text())


def rows(*lines: str) -> tuple[Sample, ...]:
    return read("\n".join(lines) + "\n").samples


@pytest.mark.parametrize("name", ["none", "simple_eager", "simple_lazy", "native"])
def test_captured_page_has_every_core_name(name: str) -> None:
    read_page = page(name)
    assert not CORE & set(read_page.missing)
    assert read_page.conflicts == ()


def test_captured_page_without_connector_counts_local_hits_only() -> None:
    """Prompts 1 1 2 3 4 5 6 7 1 of 1,000 tokens: one hit on the device."""
    samples = page("none").samples
    assert total(samples, "requests_finished") == 9
    assert total(samples, "prompt_tokens") == 9000
    assert total(samples, "local_queries") == 9000
    assert total(samples, "local_hits") == 896
    assert total(samples, "generation_tokens") == 72
    assert total(samples, "simple_pending_store_blocks") is None


@pytest.mark.parametrize("name", ["simple_eager", "simple_lazy", "native"])
def test_captured_page_with_host_tier_has_its_hit(name: str) -> None:
    samples = page(name).samples
    assert total(samples, "external_hits") == 896
    hosts = [s for s in metrics.select(samples, "cached_by_source") if s.labels["source"] == "host"]
    assert [sample.value for sample in hosts] == [896]
    assert total(samples, "prompt_tokens_cached") == 2 * 896
    (source,) = (
        sample
        for sample in metrics.select(samples, "prompt_tokens_by_source")
        if sample.labels["source"] == "external_kv_transfer"
    )
    assert source.value == 896


def test_captured_connector_pages_have_their_own_counters() -> None:
    simple, native = page("simple_eager").samples, page("native").samples
    assert total(simple, "simple_load_blocks") == 7
    assert total(simple, "simple_pending_store_blocks") == 0
    assert total(native, "native_load_bytes") == 1_835_008
    assert total(native, "simple_load_blocks") is None
    assert (total(native, "native_store_bytes") or 0) > 0


def test_created_series_are_never_a_value() -> None:
    read_page = read(
        "# TYPE vllm:prefix_cache_hits_created gauge\n"
        'vllm:prefix_cache_hits_created{engine="0"} 1.79e+09\n'
    )
    assert total(read_page.samples, "local_hits") is None
    assert "local_hits" in read_page.missing


def test_missing_is_named_and_is_not_zero() -> None:
    read_page = read('vllm:prompt_tokens_total{engine="0"} 5\n')
    assert total(read_page.samples, "local_hits") is None
    assert "local_hits" in read_page.missing
    assert "prompt_tokens" not in read_page.missing
    assert delta(read_page.samples, read_page.samples, "local_hits") is None


@pytest.mark.parametrize(
    "name",
    [
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ],
)
def test_every_generation_of_the_name_is_understood(name: str) -> None:
    assert total(rows(f'{name}{{model_name="m"}} 7'), "local_hits") == 7


def test_old_and_new_name_with_equal_values_count_once() -> None:
    samples = rows(
        'vllm:prefix_cache_hits_total{engine="0"} 7', 'vllm:gpu_prefix_cache_hits{engine="0"} 7'
    )
    assert total(samples, "local_hits") == 7


def test_old_and_new_name_with_unlike_values_are_a_conflict_and_no_value() -> None:
    read_page = read(
        'vllm:prefix_cache_hits_total{engine="0"} 7\nvllm:gpu_prefix_cache_hits{engine="0"} 8\n'
    )
    assert total(read_page.samples, "local_hits") is None
    assert "local_hits" in read_page.missing
    assert "8" in read_page.conflicts[0]


def test_engines_stay_apart() -> None:
    samples = rows(
        'vllm:prefix_cache_hits_total{engine="0"} 7', 'vllm:prefix_cache_hits_total{engine="1"} 0'
    )
    assert metrics.engines(samples) == ("0", "1")
    assert total(samples, "local_hits", "0") == 7
    assert total(samples, "local_hits", "1") == 0
    assert total(samples, "local_hits") == 7


def test_counter_declared_without_series_has_counted_nothing() -> None:
    samples = rows(
        "# TYPE vllm:simple_kv_offload_load_blocks_total counter",
        "# TYPE vllm:simple_kv_offload_pending_store_blocks gauge",
        'vllm:prompt_tokens_total{engine="0"} 5',
    )
    assert total(samples, "simple_load_blocks") == 0
    assert total(samples, "simple_pending_store_blocks") is None


def test_series_born_in_the_window_counts_from_zero() -> None:
    before = rows('vllm:request_success_total{engine="0",finished_reason="stop"} 3')
    after = rows(
        'vllm:request_success_total{engine="0",finished_reason="stop"} 4',
        'vllm:request_success_total{engine="0",finished_reason="length"} 2',
    )
    assert delta(before, after, "requests_finished") == 3


@pytest.mark.parametrize(
    "after",
    [
        (
            'vllm:prefix_cache_hits_total{engine="0"} 6',
            'vllm:prefix_cache_hits_total{engine="1"} 9',
        ),
        ('vllm:prefix_cache_hits_total{engine="0"} 9',),
        ('vllm:prompt_tokens_total{engine="0"} 9',),
    ],
)
def test_counter_that_went_back_or_vanished_is_never_clipped(after: tuple[str, ...]) -> None:
    before = rows(
        'vllm:prefix_cache_hits_total{engine="0"} 7', 'vllm:prefix_cache_hits_total{engine="1"} 7'
    )
    with pytest.raises(CounterRestartedError, match="local_hits"):
        delta(before, rows(*after), "local_hits")


@pytest.mark.parametrize("text", ["<html>busy</html>", '{"detail":"Not Found"}'])
def test_page_that_is_no_metrics_page_is_refused(text: str) -> None:
    with pytest.raises(UnreadablePageError):
        read(text)


def test_torn_line_is_refused() -> None:
    with pytest.raises(UnreadablePageError):
        read('vllm:prompt_tokens_total{engine="0"\n')


def test_unknown_name_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="local_hit "):
        total((), "local_hit ")


class Pages:
    """A server whose counters go on by one page at each look."""

    def __init__(self, *states: dict[str, float]) -> None:
        self._states = list(states)
        self.looks = 0

    def metrics_page(self) -> str:
        self.looks += 1
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return "".join(f'{name}{{engine="0"}} {value}\n' for name, value in state.items())


def state(
    finished: float, tokens: float, running: float = 0, waiting: float = 0
) -> dict[str, float]:
    return {
        "vllm:request_success_total": finished,
        "vllm:prompt_tokens_total": tokens,
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": waiting,
    }


@pytest.fixture
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kvbench.clock.monotonic_s", lambda: now[0])
    monkeypatch.setattr(
        "kvbench.clock.sleep_s", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )


@pytest.mark.usefixtures("quick_clock")
def test_settle_waits_until_counters_show_what_was_sent() -> None:
    client = Pages(state(5, 50), state(5, 60, running=1), state(6, 60, running=1), state(7, 70))
    since = read(Pages(state(5, 50)).metrics_page()).samples
    settled = metrics.settle(client, finished=2, prompt_tokens=20, since=since, limit_s=9)
    assert settled.reached
    assert client.looks == 4
    assert settled.waited_s == pytest.approx(0.3)
    assert total(settled.samples, "prompt_tokens") == 70


@pytest.mark.usefixtures("quick_clock")
@pytest.mark.parametrize(
    ("last", "words"),
    [
        (state(6, 70), "requests_finished 1 of 2"),
        (state(7, 69), "prompt_tokens 19 of 20"),
        (state(7, 70, waiting=1), "waiting 1"),
        ({"vllm:request_success_total": 7.0, "vllm:prompt_tokens_total": 70.0}, "running n/a"),
    ],
)
def test_settle_says_what_was_not_reached(last: dict[str, float], words: str) -> None:
    since = read(Pages(state(5, 50)).metrics_page()).samples
    settled = metrics.settle(Pages(last), finished=2, prompt_tokens=20, since=since, limit_s=1)
    assert not settled.reached
    assert words in settled.detail


@pytest.mark.usefixtures("quick_clock")
def test_settle_with_restarted_counters_raises() -> None:
    since = read(Pages(state(5, 50)).metrics_page()).samples
    with pytest.raises(CounterRestartedError):
        metrics.settle(Pages(state(0, 0)), finished=1, prompt_tokens=1, since=since, limit_s=1)


def test_captured_hybrid_page_has_the_counters_of_its_connector() -> None:
    samples = page("simple_eager_gdn").samples
    assert (total(samples, "external_queries"), total(samples, "external_hits")) == (30056, 2944)
    outcomes = {
        sample.labels["outcome"]: sample.value
        for sample in metrics.select(samples, "simple_save_outcomes")
    }
    assert outcomes == {"stored": 54, "skipped_already_cached": 3}


def test_captured_page_with_a_renamed_family_names_what_is_missing() -> None:
    text = (GOLDEN / f"metrics_simple_eager{VERSION}").read_text()
    renamed = read(text.replace("external_prefix_cache_hits", "tiered_cache_hits"))
    assert "external_hits" in renamed.missing
    assert total(renamed.samples, "external_hits") is None
    assert total(renamed.samples, "local_hits") == 896


def test_captured_page_of_two_engines_has_a_row_for_each() -> None:
    text = (GOLDEN / f"metrics_simple_eager{VERSION}").read_text()
    samples = read(text + text.replace('engine="0"', 'engine="1"')).samples
    assert metrics.engines(samples) == ("0", "1")
    assert [sample.value for sample in metrics.select(samples, "external_hits")] == [896, 896]
    assert total(samples, "external_hits") == 2 * 896


def test_counters_that_went_back_say_that_the_server_was_restarted() -> None:
    error = CounterRestartedError("x")
    assert error.kind == "restarted"

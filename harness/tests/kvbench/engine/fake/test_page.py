from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine import effective
from kvbench.engine.fake.counters import Counters
from kvbench.engine.fake.page import Page
from kvbench.engine.fake.settings import FakeGroup, FakeSettings
from kvbench.engine.fake.timings import Timings
from kvbench.telemetry import metrics, names

GOLDEN = Path(__file__).parents[3] / "golden"
START_S = 1_000_000.0
OFFLOAD = {"simple_load_blocks", "simple_used_blocks", "simple_pending_store_blocks"}


@dataclass
class Core:
    counters: Counters = field(default_factory=Counters)


def page_of(*cores: Core, **settings: Any) -> Page:
    found = FakeSettings(engines=len(cores), **settings)
    return Page(found, cores, [Timings() for _ in cores], start_s=START_S)


def busy() -> Core:
    counters = Counters(
        local_queries=30,
        local_hits=4,
        external_queries=26,
        external_hits=8,
        prompt_tokens=30,
        prompt_tokens_cached=12,
        computed_tokens=18,
        generation_tokens=5,
        preemptions=1,
        simple_load_blocks=2,
        store_bytes=640,
        load_bytes=320,
        running=1,
        waiting=2,
        usage=0.25,
        has_external_activity=True,
    )
    counters.finished["length"] = 3
    return Core(counters)


def counter_names(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (vllm:\S+) counter$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("golden", "tier"),
    [
        ("none", "none"),
        ("simple_eager", "simple_eager"),
        ("simple_lazy", "simple_lazy"),
        ("native", "native"),
    ],
)
def test_page_has_the_counters_of_a_captured_one(golden: str, tier: str) -> None:
    captured = (GOLDEN / f"metrics_{golden}__vllm-0.32.0-cpu.txt").read_text()
    assert counter_names(page_of(busy(), tier=tier).render(START_S)) == counter_names(captured)
    ours = metrics.read(page_of(busy(), tier=tier).render(START_S))
    real = metrics.read(captured)
    assert set(ours.missing) == set(real.missing)
    assert {sample.name for sample in ours.samples} == {sample.name for sample in real.samples}


def test_values_stand_under_the_names_that_the_harness_reads() -> None:
    samples = metrics.read(page_of(busy(), tier="simple_eager").render(START_S)).samples
    wanted = {
        "local_queries": 30,
        "local_hits": 4,
        "external_queries": 26,
        "external_hits": 8,
        "prompt_tokens": 30,
        "prompt_tokens_cached": 12,
        "prompt_tokens_by_source": 30,
        "cached_by_source": 12,
        "generation_tokens": 5,
        "requests_finished": 3,
        "preemptions": 1,
        "running": 1,
        "waiting": 2,
        "gpu_cache_usage": 0.25,
        "process_start_time_s": START_S,
        "simple_load_blocks": 2,
    }
    assert {name: metrics.total(samples, name) for name in wanted} == wanted


def test_generations_differ_in_what_they_have() -> None:
    core = busy()
    older = metrics.read(page_of(core, generation="0.11", tier="simple_eager").render(START_S))
    oldest = metrics.read(page_of(core, generation="0.8", tier="simple_eager").render(START_S))
    lacking = {"prompt_tokens_by_source", "prompt_tokens_cached", "cached_by_source"}
    core_names = {series.name for series in names.SERIES if series.core}
    assert set(older.missing) & core_names == lacking
    assert set(oldest.missing) & core_names == lacking | {"external_queries", "external_hits"}
    assert not older.conflicts
    assert metrics.total(older.samples, "external_hits") == 8
    assert metrics.total(oldest.samples, "local_hits") == 4
    assert metrics.total(oldest.samples, "gpu_cache_usage") == 0.25


def test_series_of_the_simple_connector_come_with_the_first_request() -> None:
    core = Core()
    page = page_of(core, tier="simple_eager")
    before = metrics.read(page.render(START_S))
    assert metrics.select(before.samples, "simple_used_blocks") == []
    assert metrics.total(before.samples, "simple_load_blocks") == 0  # declared, so a true 0
    core.counters.has_external_activity = True
    after = metrics.read(page.render(START_S))
    assert {sample.name for sample in after.samples} >= OFFLOAD


def test_series_of_the_native_connector_come_with_the_first_transfer() -> None:
    core = Core(Counters(has_external_activity=True))
    page = page_of(core, tier="native")
    before = page.render(START_S)
    assert "kv_offload_total_bytes_total{" not in before
    core.counters.store_bytes = 640
    samples = metrics.read(page.render(START_S)).samples
    assert [s.labels for s in metrics.select(samples, "native_transfer_bytes")] == [
        {"direction": "GPU_to_CPU"}
    ]
    assert metrics.total(samples, "native_store_bytes") == 640


def test_engines_have_rows_of_their_own() -> None:
    samples = metrics.read(page_of(busy(), Core()).render(START_S)).samples
    assert metrics.engines(samples) == ("0", "1")
    assert metrics.total(samples, "local_hits", "0") == 4
    assert metrics.total(samples, "local_hits", "1") == 0
    assert len(metrics.select(samples, "process_start_time_s")) == 1


def test_blocks_are_the_sum_of_all_engines_as_in_vllm() -> None:
    text = page_of(Core(), Core(), gpu_blocks=32).render(START_S)
    assert text.count('num_gpu_blocks="64"') == 2


def test_cache_configuration_is_read_back() -> None:
    groups = (FakeGroup(kind="full_attention", block_tokens=32),)
    page = page_of(Core(), gpu_blocks=48, groups=groups, effective={"retention_interval": 4})
    found = effective.read(metrics_page=page.render(START_S), server_info=None, log_text="")
    assert found["gpu_blocks"] == 48
    assert found["block_tokens"] == 32
    assert found["retention_interval"] == 4
    assert found["enable_prefix_caching"] is True


def test_counters_lag() -> None:
    core = Core()
    page = page_of(core, counters_lag_s=1.0)
    page.remember(START_S)
    core.counters.prompt_tokens = 10
    page.remember(START_S + 0.5)

    def seen(now_s: float) -> float | None:
        return metrics.total(metrics.read(page.render(now_s)).samples, "prompt_tokens")

    assert [seen(START_S + passed) for passed in (0.5, 1.4, 1.6)] == [0, 0, 10]


def test_start_anew_takes_counters_and_start_time_back_but_no_gauge() -> None:
    core = busy()
    page = page_of(core)
    page.start_anew(START_S + 50)
    core.counters.prompt_tokens += 7
    samples = metrics.read(page.render(START_S + 60)).samples
    assert metrics.total(samples, "prompt_tokens") == 7
    assert metrics.total(samples, "requests_finished") == 0
    assert metrics.total(samples, "running") == 1
    assert metrics.total(samples, "process_start_time_s") == START_S + 50


def test_histogram_counts_what_was_observed() -> None:
    timings = Timings()
    timings.observe(10.0, 10.02, 10.42, tokens=5)
    text = Page(FakeSettings(), [Core()], [timings], start_s=START_S).render(START_S)
    assert re.search(r'time_to_first_token_seconds_bucket\{.*le="0.04".*\} 1\.0', text)
    assert re.search(r'time_to_first_token_seconds_bucket\{.*le="0.01".*\} 0\.0', text)
    assert re.search(r"inter_token_latency_seconds_count\{.*\} 4\.0", text)
    assert re.search(r"e2e_request_latency_seconds_sum\{.*\} 0\.4", text)


def test_names_are_escaped() -> None:
    text = page_of(Core(), model_id='a"b\\c').render(START_S)
    assert metrics.total(metrics.read(text).samples, "prompt_tokens") == 0
    assert r'model_name="a\"b\\c"' in text

"""Which keys decide a number, and which are only named."""

from __future__ import annotations

from pathlib import Path

import pytest
import records
from two_runs import against, of_engine, of_machine

from kvbench.compare.settings import flat
from kvbench.errors import UsageError

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_lists_and_empty_mappings_are_values() -> None:
    tree = {"a": {"b": [1, {"c": 2}], "d": {}}, "e": None}
    assert flat(tree) == {"a.b": [1, {"c": 2}], "e": None}


@pytest.mark.parametrize(
    ("change", "key", "kind"),
    [
        ("title=another", "title", "note"),
        ("engine.port=8123", "engine.port", "note"),
        ("engine.request_limit_s=99", "engine.request_limit_s", "note"),
        ("stages.replay.claims=[alive]", "stages.replay.claims", "note"),
        ("engine.python=/opt/other/python", "engine.python", "build"),
    ],
)
def test_setting_without_weight_is_named_and_compared(
    run: Path, change: str, key: str, kind: str
) -> None:
    one = records.write(run / "one")
    two = records.write(run / "two", sets=(*records.SMALL, change))
    found = against(one, two)
    assert [(each.key, each.kind) for each in found.differences] == [(key, kind)]
    assert found.is_repeat == (kind == "note")


@pytest.mark.parametrize(
    "change",
    [
        "engine.kv_cache_dtype=fp8",
        "engine.enforce_eager=false",
        "engine.seed=1",
        "engine.env.SOMETHING=on_it",
        "engine.args=[--some-flag]",
        "engine.gpu_blocks=40",
        "model.seed=1",
        "error_rate=0.02",
        "arms.simple.connector.host_pool_bytes_total=32MiB",
        "stages.replay.workload.new_tokens=9",
        "stages.replay.workload.hot_runs=3",
    ],
)
def test_setting_that_decides_a_number_is_refused(run: Path, change: str) -> None:
    key = change.partition("=")[0]
    one = records.write(run / "one")
    two = records.write(run / "two", sets=(*records.SMALL, change))
    with pytest.raises(UsageError) as refused:
        against(one, two)
    listed = [line for line in str(refused.value).splitlines() if line.startswith(f"  {key}")]
    assert len(listed) == 1
    assert "effective." not in str(refused.value), "it follows from what was asked for"


def test_pool_that_the_engine_chose_is_compared(run: Path) -> None:
    one = records.write(run / "one")
    two = records.write(run / "two", on_event=of_engine(gpu_blocks=31))
    with pytest.raises(UsageError, match=r"effective\.replay\.simple\.gpu_blocks: 32 / 31"):
        against(one, two)
    found = against(one, two, "effective.*.gpu_blocks")
    assert {each.allowed_by for each in found.differences} == {"effective.*.gpu_blocks"}


def test_other_prompts_under_equal_settings_are_refused(run: Path) -> None:
    one = records.write(run / "one")
    path = one / "plan.json"
    two = records.write(run / "two", seal=False)
    text = (two / "plan.json").read_text()
    start = text.index('"replay/p1":[') + len('"replay/p1":[')
    first = text[start : text.index(",", start)]
    (two / "plan.json").write_text(text[:start] + str(int(first) + 1) + text[start + len(first) :])
    assert path.read_text() != (two / "plan.json").read_text()
    with pytest.raises(UsageError, match=r"prompts\.replay: .* sha256 \w+ / .* sha256 \w+"):
        against(one, two)


def test_free_memory_is_no_other_machine(run: Path) -> None:
    gpu = {"name": "H200", "memory_bytes": 1, "driver": "1"}
    one = records.write(run / "one", on_event=of_machine(gpus=[{**gpu, "free_bytes": 5}]))
    two = records.write(run / "two", on_event=of_machine(gpus=[{**gpu, "free_bytes": 6}]))
    assert against(one, two).differences == ()


def test_another_driver_is_another_machine(run: Path) -> None:
    one = records.write(run / "one", on_event=of_machine(gpus=[{"name": "H200", "driver": "1"}]))
    two = records.write(run / "two", on_event=of_machine(gpus=[{"name": "H200", "driver": "2"}]))
    found = against(one, two)
    assert [(each.key, each.kind) for each in found.differences] == [("machine.gpus", "machine")]
    assert not found.is_repeat


def test_faulty_twin_is_compared_where_the_fault_is_declared(run: Path) -> None:
    broken = records.QUICKSTART.with_name("quickstart_broken.yaml")
    one = records.write(run / "one")
    two = records.write(run / "two", scenario=broken)
    with pytest.raises(UsageError) as refused:
        against(one, two)
    assert "arms.simple.connector.faulty: false / true" in str(refused.value)
    assert "arms.simple.faults: [] / " in str(refused.value)
    assert "effective." not in str(refused.value), "the twin's class follows from faulty"
    found = against(one, two, "arms.*.faults", "arms.*.faulty")
    assert {each.key for each in found.differences if each.allowed_by} == {
        "arms.simple.connector.faulty",
        "arms.simple.faults",
    }
    assert {each.key for each in found.differences if not each.allowed_by} == {"name", "title"}

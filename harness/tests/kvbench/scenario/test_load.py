from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.errors import ExitCode, UsageError
from kvbench.scenario.connectors import SimpleConnector
from kvbench.scenario.load import load_scenario
from kvbench.scenario.models import Scenario
from kvbench.scenario.resolve import engine_of

Write = Callable[..., Path]


def test_resolved_scenario_validates_to_the_same_scenario(write: Write) -> None:
    loaded = load_scenario(write())
    assert Scenario.model_validate(loaded.resolved) == loaded.scenario


def test_sizes_with_units_become_bytes(write: Write) -> None:
    connector = load_scenario(write()).scenario.arms["tested"].connector
    assert isinstance(connector, SimpleConnector)
    assert connector.host_pool_bytes_total == 64 * 1024**2


def test_duplicate_key_is_refused_with_its_line(write: Write) -> None:
    path = write("name: a\ntitle: b\nname: c\n")
    with pytest.raises(UsageError, match=r"small\.yaml:3: not valid YAML: .*duplicate"):
        load_scenario(path)


def test_broken_yaml_is_a_usage_error_with_its_line(write: Write) -> None:
    with pytest.raises(UsageError, match=r"small\.yaml:3: not valid YAML") as caught:
        load_scenario(write("name: a\ntitle: [b\n"))
    assert caught.value.exit_code is ExitCode.USAGE


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: no such scenario file"):
        load_scenario(tmp_path / "nowhere.yaml")


def test_named_stage_and_arm_are_kept_exactly(write: Write) -> None:
    loaded = load_scenario(write(), stage="replay", arm=["tested"])
    assert list(loaded.scenario.arms) == ["tested"]


@pytest.mark.parametrize(
    ("stage", "arm", "message"),
    [
        ("reply", (), "--stage reply: .*did you mean 'replay'"),
        (None, ("testd",), "--arm testd: .*did you mean 'tested'"),
        (None, ("control",), "no arm has role: tested"),
    ],
)
def test_unknown_choice_lists_the_known_ones(
    write: Write, stage: str | None, arm: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_scenario(write(), stage=stage, arm=arm)


def test_stage_that_runs_under_no_chosen_arm_is_dropped(write: Write) -> None:
    path = write()
    text = path.read_text().replace(
        "    claims: [alive]", "    arms: [control]\n    claims: [alive]"
    )
    with pytest.raises(UsageError, match="no stage runs under it"):
        load_scenario(write(text), arm=["tested"])


def test_arm_settings_win_over_stage_and_base_and_mappings_merge(write: Write) -> None:
    loaded = load_scenario(
        write(),
        sets=[
            "stages.replay.engine={gpu_blocks: 24, dtype: float32}",
            "arms.tested.engine={gpu_blocks: 64, env: {B: x}}",
        ],
    )
    engine = engine_of(loaded.scenario, "replay", "tested")
    assert (engine.gpu_blocks, engine.dtype) == (64, "float32")
    assert engine.env == {"A": "1", "B": "x"}
    assert engine_of(loaded.scenario, "replay", "control").gpu_blocks == 24

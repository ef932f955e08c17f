"""Where `--model` points to, by the kind of model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench import environments, modelfiles
from kvbench.errors import PrerequisiteError
from kvbench.scenario.models import HubModel, PathModel, TinyModel


def test_hub_model_goes_by_its_name() -> None:
    assert modelfiles.locate(HubModel(kind="hub", name="org/model")) == "org/model"


def test_checkpoint_in_a_directory_is_that_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert modelfiles.locate(PathModel(kind="path", path=str(tmp_path))) == str(tmp_path)


def test_directory_under_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert modelfiles.locate(PathModel(kind="path", path="~/m")) == str(tmp_path / "m")


@pytest.mark.parametrize("name", ["", "absent"])
def test_directory_without_a_checkpoint_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(PrerequisiteError, match=r"has no config\.json"):
        modelfiles.locate(PathModel(kind="path", path=str(tmp_path / name)))


def test_tiny_model_is_generated_once_under_the_home_of_kvbench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "home", lambda: tmp_path)
    model = TinyModel(kind="tiny", family="qwen3")
    first = Path(modelfiles.locate(model))
    assert first.is_relative_to(tmp_path / "models")
    assert json.loads((first / "config.json").read_text())["model_type"] == "qwen3"
    weights = next(first.glob("*.safetensors"))
    made_ns = weights.stat().st_mtime_ns
    assert Path(modelfiles.locate(model)) == first
    assert weights.stat().st_mtime_ns == made_ns

"""What lacks is named; what could not be read counts as lacking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.needs import lacking
from kvbench.scenario.models import HubModel, Needs, PathModel, TinyModel

TINY = TinyModel(kind="tiny", family="qwen3")
GIB = 1 << 30
GPU = {"name": "X", "memory_bytes": 80 * GIB, "free_bytes": 70 * GIB}


@pytest.mark.parametrize(
    ("needs", "facts", "words"),
    [
        ({"gpus": 1}, {"gpus": None}, "none seen"),
        ({"gpus": 2}, {"gpus": [GPU]}, "1 seen"),
        ({"gpus": 1, "gpu_memory_bytes": 75 * GIB}, {"gpus": [GPU]}, "0 have that"),
        ({"gpus": 1, "gpu_memory_bytes": 1}, {"gpus": [{"free_bytes": None}]}, "0 have that"),
        ({"memory_bytes": 8 * GIB}, {"memory_available_bytes": 2 * GIB}, "2.0 GiB are free"),
        ({"memory_bytes": 8 * GIB}, {}, "could not be read"),
        ({"cpu_flags": ("amx_tile",)}, {"cpu_flags": ["avx2"]}, "amx_tile"),
        ({"cpu_flags": ("amx_tile",)}, {"cpu_flags": None}, "could not be read"),
    ],
)
def test_what_lacks_is_named(needs: dict[str, Any], facts: dict[str, Any], words: str) -> None:
    (line,) = lacking(Needs(**needs), TINY, facts)
    assert words in line


def test_nothing_lacks_where_all_is_there() -> None:
    needs = Needs(gpus=1, gpu_memory_bytes=GIB, memory_bytes=GIB, cpu_flags=("avx2",), weights=True)
    facts = {"gpus": [GPU], "memory_available_bytes": 2 * GIB, "cpu_flags": ["avx2"]}
    assert lacking(needs, TINY, facts) == []


def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(weights=True)
    here = PathModel(kind="path", path=str(tmp_path))
    assert lacking(needs, here, {})
    (tmp_path / "model.safetensors").touch()
    assert lacking(needs, here, {}) == []
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (line,) = lacking(needs, HubModel(kind="hub", name="org/model"), {})
    assert "hf download org/model" in line

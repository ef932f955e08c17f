"""Tiny checkpoints: the same bytes for the same seed, in a format that others read, never half."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors import safe_open
from safetensors.numpy import load_file

from kvbench import checkpoint_folder
from kvbench.errors import UsageError
from kvbench.tiny import build, checkpoint, known_families

FAMILIES = known_families()


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_gives_the_same_bytes(family: str, tmp_path: Path) -> None:
    first = build(family, seed=3, cache_dir=tmp_path / "a")
    second = build(family, seed=3, cache_dir=tmp_path / "b")
    assert contents(first.path) == contents(second.path)
    assert first.fingerprint == second.fingerprint


def test_bytes_are_those_of_the_recipe(tmp_path: Path) -> None:
    # Results recorded with one recipe are compared with each other: a change here needs a new
    # checkpoint.RECIPE, and then new values below.
    assert checkpoint.RECIPE == 1
    assert {f: build(f, cache_dir=tmp_path).fingerprint for f in FAMILIES} == {
        "qwen3": "dc1c3ba5dfe4a47f9815cdff3a94097db4a9b726ad28c1d3945b801b4495492b",
        "qwen3_next": "7609676c867e6ecb2d227bdd864318be298b8c84652e5b1517840fa563ade388",
    }


def test_another_seed_gives_other_weights_and_the_same_tokenizer(tmp_path: Path) -> None:
    zero, one = (contents(build("qwen3", seed=s, cache_dir=tmp_path).path) for s in (0, 1))
    assert {name for name in zero if zero[name] != one[name]} == {
        "model.safetensors",
        "fingerprint.txt",
    }


def test_second_build_uses_the_first(tmp_path: Path) -> None:
    first = build("qwen3", cache_dir=tmp_path)
    written = (first.path / "model.safetensors").stat().st_mtime_ns
    assert build("qwen3", cache_dir=tmp_path) == first
    assert (first.path / "model.safetensors").stat().st_mtime_ns == written
    assert [entry.name for entry in tmp_path.iterdir()] == [first.path.name]


@pytest.mark.parametrize("damage", ["truncated", "removed", "added", "no fingerprint"])
def test_damaged_checkpoint_is_built_again(damage: str, tmp_path: Path) -> None:
    intact = build("qwen3", cache_dir=tmp_path)
    weights = intact.path / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "removed":
        weights.unlink()
    elif damage == "added":
        (intact.path / "generation_config.json").write_text("{}")
    else:
        (intact.path / "fingerprint.txt").unlink()
    again = build("qwen3", cache_dir=tmp_path)
    assert again == intact
    assert sorted(contents(again.path)) == [
        "config.json",
        "fingerprint.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_interrupted_build_leaves_nothing_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "_put_in_place", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build("qwen3", cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert build("qwen3", cache_dir=tmp_path).path.is_dir()


def test_build_that_lost_a_race_keeps_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def other_first(staging: Path, path: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        build("qwen3", cache_dir=tmp_path)
        return rename(staging, path)

    monkeypatch.setattr(Path, "rename", other_first)
    built = build("qwen3", cache_dir=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [built.path.name]


def test_unknown_family_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'gpt9'; known families: qwen3, qwen3_next"):
        build("gpt9", cache_dir=tmp_path)


def test_unknown_dtype_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'float16'.*known: float32, bfloat16"):
        build("qwen3", dtype="float16", cache_dir=tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_finite_and_scaled_by_their_fan_in(family: str, tmp_path: Path) -> None:
    built = build(family, cache_dir=tmp_path)
    weights = load_file(built.path / "model.safetensors")
    assert sum(values.size for values in weights.values()) == built.parameters
    assert all(np.isfinite(values).all() for values in weights.values())
    assert weights["model.embed_tokens.weight"].std() == pytest.approx(1.0, rel=0.05)
    head = weights["lm_head.weight"]
    assert head.std() == pytest.approx(2 / sqrt(head.shape[1]), rel=0.05)
    down = weights["model.layers.3.self_attn.o_proj.weight"]
    assert down.std() == pytest.approx(1 / sqrt(down.shape[1]), rel=0.05)
    norm = weights["model.norm.weight"]
    assert np.unique(norm).tolist() == [1.0 if family == "qwen3" else 0.0]


def test_decays_reach_from_one_token_to_a_thousand(tmp_path: Path) -> None:
    weights = load_file(build("qwen3_next", cache_dir=tmp_path).path / "model.safetensors")
    rates = np.exp(weights["model.layers.1.linear_attn.A_log"])
    assert rates.tolist() == pytest.approx([0.001, 0.01, 0.1, 1.0], rel=1e-5)


def test_no_two_random_tensors_are_alike(tmp_path: Path) -> None:
    weights = load_file(build("qwen3_next", cache_dir=tmp_path).path / "model.safetensors")
    starts = [values.ravel()[:4].tobytes() for values in weights.values() if values.std() > 0]
    decays = [name for name in weights if name.endswith("A_log")]
    assert len(set(starts)) == len(starts) - len(decays) + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_dtype_is_the_one_asked_for(dtype: str, tmp_path: Path) -> None:
    built = build("qwen3", dtype=dtype, cache_dir=tmp_path)
    assert json.loads((built.path / "config.json").read_text())["dtype"] == dtype
    with safe_open(built.path / "model.safetensors", framework="np") as opened:
        name = next(iter(opened.keys()))
        assert opened.get_slice(name).get_dtype() == {"float32": "F32", "bfloat16": "BF16"}[dtype]


@given(npst.arrays(np.float32, 8, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_bfloat16_is_rounded_to_the_nearest(values: np.ndarray) -> None:
    stored = np.frombuffer(checkpoint_folder.raw(values, "bfloat16"), "<u2").astype(np.uint32)
    back = (stored << np.uint32(16)).view(np.float32)
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    step = (below.view(np.uint32) + np.uint32(0x10000)).view(np.float32) - below
    assert (np.abs(back - values) <= np.abs(step) / 2).all()

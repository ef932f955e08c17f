"""Builds tiny checkpoints on disk: a seed gives the same bytes, a half-written one is never used.

Its fingerprint is checked at every use, so a copy that was damaged later is built again and not
served (`kvbench.checkpoint_folder`).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench import checkpoint_folder
from kvbench.errors import UsageError
from kvbench.tiny import families, tokenizer
from kvbench.tiny.families import Family, Init, TensorSpec

# Raise it with every change that gives other bytes: it names the cache folder.
RECIPE: Final = 1
# log(0.001), and not computed: libraries differ in the last bit of a logarithm.
_LOG_OF_SLOWEST_DECAY: Final = -6.907755


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
    if dtype not in checkpoint_folder.DTYPES:
        known = ", ".join(checkpoint_folder.DTYPES)
        raise UsageError(f"unknown dtype {dtype!r} for a tiny checkpoint; known: {known}")
    path = cache_dir / f"{family}-{seed}-{dtype}-r{RECIPE}"
    fingerprint = checkpoint_folder.intact_fingerprint(path)
    if fingerprint is None:
        fingerprint = checkpoint_folder.write(path, _files(chosen, seed, dtype))
    parameters = sum(prod(spec.shape) for spec in chosen.tensors)
    return TinyCheckpoint(path, family, seed, fingerprint, parameters)


def _files(chosen: Family, seed: int, dtype: str) -> dict[str, bytes]:
    config = json.dumps({**chosen.config, "dtype": dtype}, indent=1, sort_keys=True)
    tensors = {spec.name: _values(spec, seed) for spec in chosen.tensors}
    return {
        "config.json": f"{config}\n".encode(),
        "model.safetensors": checkpoint_folder.safetensors(tensors, dtype),
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

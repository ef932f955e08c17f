"""What a scenario needs and this machine lacks, in words.

A run that starts without its GPUs ends in a launch error after minutes; named beforehand, it is a
line and exit code 3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.scenario.models import HubModel, Model, Needs, PathModel

_GIB = 1 << 30


def lacking(needs: Needs, model: Model, facts: Mapping[str, Any]) -> list[str]:
    """Name everything that lacks; `facts` are those of `telemetry.machine`.

    What could not be read counts as lacking, with that reason.
    """
    return [*_gpus(needs, facts), *_memory(needs, facts), *_flags(needs, facts)] + (
        _weights(model) if needs.weights else []
    )


def _gpus(needs: Needs, facts: Mapping[str, Any]) -> list[str]:
    if needs.gpus == 0:
        return []
    found = facts.get("gpus")
    if found is None:
        return [f"{needs.gpus} GPUs: none seen here (nvidia-smi is absent or fails)"]
    if len(found) < needs.gpus:
        return [f"{needs.gpus} GPUs: {len(found)} seen here"]
    wanted = needs.gpu_memory_bytes
    if wanted is None:
        return []
    enough = [gpu for gpu in found if (gpu.get("free_bytes") or 0) >= wanted]
    if len(enough) < needs.gpus:
        return [
            f"{needs.gpus} GPUs with {wanted / _GIB:.1f} GiB free each: {len(enough)} have that"
        ]
    return []


def _memory(needs: Needs, facts: Mapping[str, Any]) -> list[str]:
    wanted = needs.memory_bytes
    if wanted is None:
        return []
    free = facts.get("memory_available_bytes")
    if free is None:
        return [f"{wanted / _GIB:.1f} GiB of host memory: what is free could not be read"]
    if free < wanted:
        return [f"{wanted / _GIB:.1f} GiB of host memory: {free / _GIB:.1f} GiB are free"]
    return []


def _flags(needs: Needs, facts: Mapping[str, Any]) -> list[str]:
    if not needs.cpu_flags:
        return []
    found = facts.get("cpu_flags")
    if found is None:
        return [f"CPU features {', '.join(needs.cpu_flags)}: could not be read here"]
    missing = [flag for flag in needs.cpu_flags if flag not in found]
    return [f"CPU feature {flag}: this CPU does not have it" for flag in missing]


def _weights(model: Model) -> list[str]:
    if isinstance(model, PathModel):
        folder = Path(model.path).expanduser()
        if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
            return []
        return [f"weights of the model: none in {folder}"]
    if isinstance(model, HubModel):
        cache = _hub_cache() / f"models--{model.name.replace('/', '--')}" / "snapshots"
        if any(cache.glob("*/*.safetensors")) or any(cache.glob("*/*.bin")):
            return []
        return [f"weights of {model.name}: not in the hub cache (`hf download {model.name}`)"]
    return []


def _hub_cache() -> Path:
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"

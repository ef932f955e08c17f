"""What the host-memory connectors share: platform guard, block copy, and a stamp for tables.

Host-memory copy backend: timings mean nothing.

The guard exists because these connectors would also import on a GPU build: there they would copy
every block through a slow path and still produce a table that looks like a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from vllm import platforms

TIMINGS_NOTE = "host-memory copy backend: timings mean nothing"

Caches = Mapping[str, torch.Tensor]
"""Name of a region -> its bytes as ``[blocks, bytes of a block]``."""


def require_cpu_platform(name: str, use_instead: str) -> None:
    """Raise RuntimeError unless vLLM runs on its CPU platform."""
    platform = platforms.current_platform
    if not platform.is_cpu():
        raise RuntimeError(
            f"{name}: host-memory copy backend is for the CPU build only; use {use_instead}"
            f" (vLLM's current platform is {platform.device_name or type(platform).__name__})"
        )


def copy_blocks(
    source: Caches,
    target: Caches,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
) -> None:
    """Copy whole blocks of every region; returns when the bytes are there.

    Lists of unequal length are refused: torch would broadcast one block over all targets.
    """
    if len(source_blocks) != len(target_blocks):
        raise ValueError(f"{len(source_blocks)} source blocks for {len(target_blocks)} targets")
    taken = torch.tensor(source_blocks, dtype=torch.long)
    placed = torch.tensor(target_blocks, dtype=torch.long)
    for region, blocks in source.items():
        target[region].index_copy_(0, placed, blocks.index_select(0, taken))

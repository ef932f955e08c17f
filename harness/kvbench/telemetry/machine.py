"""Facts about the machine and about this checkout of kvbench, for the head of every record.

Numbers from two machines must not be compared without seeing it; the host's name is left out,
because records are published.
"""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

TOOL_LIMIT_S: Final = 20.0
_GPU_QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free,driver_version",
    "--format=csv,noheader,nounits",
)
_MIB: Final = 1 << 20


def machine_facts() -> dict[str, Any]:
    """CPU, cores, memory (bytes), GPUs (None where no tool tells), system and Python."""
    return {
        "cpu": _cpu_model(),
        "cpu_flags": cpu_flags(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "gpus": gpus(),
        "os": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_flags() -> list[str] | None:
    """CPU features as /proc/cpuinfo spells them; None where there is no such file."""
    line = _cpuinfo("flags")
    return None if line is None else sorted(line.split())


def gpus() -> list[dict[str, Any]] | None:
    """Name, total and free memory (bytes) and driver of each GPU; None where nothing tells."""
    text = _output(_GPU_QUERY)
    if text is None:
        return None
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line]
    return [
        {
            "name": row[0],
            "memory_bytes": _mebibytes(row[1]),
            "free_bytes": _mebibytes(row[2]),
            "driver": row[3],
        }
        for row in rows
        if len(row) == 4
    ]


def source_facts() -> dict[str, Any]:
    """Commit and dirty flag of the checkout that kvbench runs from; None outside of git."""
    root = Path(__file__).resolve().parents[3]
    commit = _output(("git", "-C", str(root), "rev-parse", "HEAD"))
    changes = _output(("git", "-C", str(root), "status", "--porcelain"))
    return {
        "commit": commit.strip() if commit else None,
        "dirty": None if changes is None else bool(changes.strip()),
    }


def _cpu_model() -> str | None:
    return _cpuinfo("model name") or platform.processor() or None


def _cpuinfo(key: str) -> str | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return None


def _mebibytes(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None


def _output(command: tuple[str, ...]) -> str | None:
    """What a tool prints; None when it is absent, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

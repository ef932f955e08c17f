"""Memory, threads and GPU memory of a process tree, as far as the system tells.

A connector that never evicts shows here first (fault F14). Resident memory counts shared pages in
every process; the proportional set size (PSS) divides them, and only it may be added up.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

TOOL_LIMIT_S: Final = 10.0
_MIB: Final = 1 << 20
_GPU_QUERY: Final = (
    "nvidia-smi",
    "--query-compute-apps=pid,used_memory",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree uses now; None where the system does not tell.

    `rss_bytes` counts shared memory once per process; `gpu_bytes` is over all GPUs.
    """

    processes: int
    threads: int
    rss_bytes: int
    pss_bytes: int | None
    gpu_bytes: int | None


def usage(pids: Sequence[int]) -> Usage:
    """Add up the processes that still run; `pss_bytes` is None if any of them hides it."""
    processes = threads = rss_bytes = 0
    pss_bytes: int | None = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            with process.oneshot():
                rss_bytes += process.memory_info().rss
                threads += process.num_threads()
            processes += 1
            share_bytes = _pss_bytes(process)
            known = pss_bytes is not None and share_bytes is not None
            pss_bytes = (pss_bytes or 0) + (share_bytes or 0) if known else None
    return Usage(processes, threads, rss_bytes, pss_bytes, gpu_bytes(pids))


def _pss_bytes(process: psutil.Process) -> int | None:
    try:
        share: int | None = getattr(process.memory_full_info(), "pss", None)
    except psutil.AccessDenied:
        return None
    return share


def gpu_bytes(pids: Sequence[int]) -> int | None:
    """GPU memory of these processes in bytes; None without a tool that tells it.

    In a container the tool can show process ids of the host, and then this is 0.
    """
    try:
        done = subprocess.run(
            _GPU_QUERY, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return gpu_bytes_of(done.stdout, pids)


def gpu_bytes_of(table: str, pids: Sequence[int]) -> int | None:
    """Add up the rows `pid, MiB` of `pids`; None when one of them has no number."""
    found_bytes = 0
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if len(row) != 2 or not row[0].isdigit() or int(row[0]) not in pids:
            continue
        if not row[1].strip().isdigit():
            return None
        found_bytes += int(row[1]) * _MIB
    return found_bytes

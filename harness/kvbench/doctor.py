"""Says whether this machine can run kvbench's scenarios, and what mends what is missing.

`look` measures and `judge` decides, so every judgement is tested without the machine it is about.
Nothing here imports vLLM or starts it. A thing that a machine need not have (a GPU) is `ok` with
the detail `n/a`: most scenarios need none.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import psutil

from kvbench import environments
from kvbench.errors import PrerequisiteError

State = Literal["ok", "missing", "warning"]

GIB: Final = 1024**3
PYTHON_RANGE: Final = ((3, 11), (3, 14))
"""First version that works and first that does not: AIPerf 0.13 refuses 3.14."""
MIN_CORES: Final = 2
"""The engine busies one core; with the harness on the same one, timings are of the scheduler."""
MIN_MEMORY_BYTES: Final = 8 * GIB
"""Two engine processes of a tiny model (2 GB each), the harness, and room for a host tier."""
MIN_DISK_BYTES: Final = 5 * GIB
"""The managed:cpu environment takes 1.8 GB (before pip's cache), records the rest."""
MIN_SHARED_MEMORY_BYTES: Final = 1 * GIB
"""Containers start with 64 MiB of /dev/shm, which engine processes exhaust."""
TOOL_LIMIT_S: Final = 20.0
LOOPBACK_LIMIT_S: Final = 5.0

_HARNESS_DISTRIBUTIONS: Final = ("lm_eval", "aiperf")
_GPU_TOOLS: Final = (
    ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"),
    ("amd-smi", "list", "--csv"),
    ("rocm-smi", "--showproductname", "--csv"),
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of the doctor's answer; `remedy` is empty where there is nothing to do."""

    name: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """What the first GPU tool found on the path said: its lines, or why it failed."""

    tool: str
    lines: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured; `None` is what could not be read here, never a zero."""

    python: tuple[int, int, int]
    distributions: dict[str, str | None]
    engine_python: Path | None
    engine_problem: str
    engine_vllm: str | None
    architecture: str
    cpu_flags: frozenset[str] | None
    cores: int
    memory_bytes: int | None
    disk_path: Path
    disk_free_bytes: int
    shared_memory_bytes: int | None
    gpu: GpuAnswer | None
    loopback_problem: str


def examine() -> list[Condition]:
    """Look at this machine and judge it."""
    return judge(look())


def look() -> Machine:
    """Measure everything that `judge` needs; takes a second or two, changes nothing."""
    engine_python, engine_problem = _engine()
    disk_path = _existing(environments.home())
    return Machine(
        python=sys.version_info[:3],
        distributions={name: _installed(name) for name in _HARNESS_DISTRIBUTIONS},
        engine_python=engine_python,
        engine_problem=engine_problem,
        engine_vllm=environments.vllm_version(engine_python) if engine_python else None,
        architecture=platform.machine(),
        cpu_flags=read_cpu_flags(Path("/proc/cpuinfo")),
        cores=_cores(),
        memory_bytes=_memory_bytes(Path("/sys/fs/cgroup/memory.max")),
        disk_path=disk_path,
        disk_free_bytes=shutil.disk_usage(disk_path).free,
        shared_memory_bytes=_shared_memory_bytes(Path("/dev/shm")),  # noqa: S108 - measured only
        gpu=_gpu(),
        loopback_problem=_loopback_problem(),
    )


def judge(machine: Machine) -> list[Condition]:
    """Turn measurements into conditions, the ones that stop everything first."""
    return [
        _judge_python(machine),
        *(_judge_distribution(name, found) for name, found in machine.distributions.items()),
        _judge_engine(machine),
        _judge_cpu(machine),
        _judge_cores(machine),
        _judge_size(
            "memory",
            machine.memory_bytes,
            MIN_MEMORY_BYTES,
            "run fewer engines at a time, or on a machine (or in a container) with more memory",
        ),
        _judge_size(
            f"disk at {machine.disk_path}",
            machine.disk_free_bytes,
            MIN_DISK_BYTES,
            "free some, or set KVBENCH_HOME to a folder on a larger disk",
        ),
        _judge_size(
            "shared memory",
            machine.shared_memory_bytes,
            MIN_SHARED_MEMORY_BYTES,
            "start the container with --ipc=host or --shm-size=8g",
        ),
        _judge_gpu(machine.gpu),
        _judge_loopback(machine.loopback_problem),
    ]


def read_cpu_flags(cpuinfo: Path) -> frozenset[str] | None:
    """Return the first CPU's flags in a `/proc/cpuinfo`; `None` where there are none to read."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return None


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _engine() -> tuple[Path | None, str]:
    try:
        return environments.resolve_python("managed:cpu"), ""
    except PrerequisiteError as error:
        return None, str(error)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes(cgroup_limit: Path) -> int | None:
    """Return the machine's memory, or less in a container with a limit."""
    total = psutil.virtual_memory().total
    try:
        limit = cgroup_limit.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _shared_memory_bytes(mount: Path) -> int | None:
    return shutil.disk_usage(mount).total if mount.exists() else None


def _gpu() -> GpuAnswer | None:
    for tool, *arguments in _GPU_TOOLS:
        path = shutil.which(tool)
        if path is None:
            continue
        try:
            answer = subprocess.run(
                [path, *arguments], capture_output=True, check=True, text=True, timeout=TOOL_LIMIT_S
            )
        except subprocess.CalledProcessError as error:
            said = (error.stdout + error.stderr).strip() or f"exit status {error.returncode}"
            return GpuAnswer(tool, problem=said.splitlines()[0])
        except (OSError, subprocess.SubprocessError) as error:
            return GpuAnswer(tool, problem=str(error))
        lines = (line.strip() for line in answer.stdout.splitlines())
        return GpuAnswer(tool, tuple(line for line in lines if line))
    return None


def _loopback_problem() -> str:
    """Bind a port, connect to it and pass a byte; return what went wrong, or nothing."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(LOOPBACK_LIMIT_S)
            address = server.getsockname()
            with socket.create_connection(address, timeout=LOOPBACK_LIMIT_S) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"?")
                    accepted.settimeout(LOOPBACK_LIMIT_S)
                    return "" if accepted.recv(1) == b"?" else "a byte sent was not received"
    except OSError as error:
        return str(error)


def _judge_python(machine: Machine) -> Condition:
    first, last = PYTHON_RANGE
    detail = ".".join(map(str, machine.python))
    if first <= machine.python[:2] < last:
        return Condition("python", "ok", detail)
    wanted = f"{first[0]}.{first[1]} to {last[0]}.{last[1] - 1}"
    return Condition("python", "missing", detail, f"make the environment with Python {wanted}")


def _judge_distribution(name: str, found: str | None) -> Condition:
    if found is not None:
        return Condition(name, "ok", found)
    remedy = "install requirements.lock into the harness's environment"
    return Condition(name, "missing", "not installed", remedy)


def _judge_engine(machine: Machine) -> Condition:
    name = "managed:cpu"
    if machine.engine_python is None:
        # Missing for the shipped CPU scenarios only: a user's own vLLM needs no managed
        # environment.
        return Condition(name, "warning", machine.engine_problem, "scripts/setup-vllm-cpu")
    if machine.engine_vllm is None:
        detail = f"no vLLM in {machine.engine_python}"
        remedy = f"rm -r {machine.engine_python.parent.parent}; scripts/setup-vllm-cpu"
        return Condition(name, "missing", detail, remedy)
    return Condition(name, "ok", f"vLLM {machine.engine_vllm}, {machine.engine_python}")


def _judge_cpu(machine: Machine) -> Condition:
    """Say which families vLLM can serve on this CPU.

    Gated delta nets need AMX or AVX512-BF16; DeepSeek's attention (MLA) starts without AMX, but
    with prefix caching off, so nothing would ever hit.
    """
    flags = machine.cpu_flags
    if machine.architecture not in {"x86_64", "AMD64"} or flags is None:
        detail = f"{machine.architecture}: n/a, the CPU scenarios are tested on x86-64 Linux only"
        return Condition("cpu", "warning", detail, "attach to an engine elsewhere (by URL)")
    present = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16") if f in flags]
    detail = f"{machine.architecture}, {' '.join(present) or 'no AVX2'}"
    if "avx2" not in flags:
        remedy = "attach to an engine elsewhere (by URL)"
        return Condition("cpu", "missing", f"{detail}: vLLM's CPU build needs AVX2", remedy)
    has_amx = {"amx_tile", "amx_bf16"} <= flags
    if has_amx:
        return Condition("cpu", "ok", detail)
    if "avx512_bf16" in flags:
        return Condition("cpu", "ok", f"{detail}; MLA models: no prefix caching without AMX")
    remedy = "run the scenarios of hybrid models on another CPU or a GPU"
    lacking = "hybrid models (qwen3_next) need AVX512-BF16 or AMX"
    return Condition("cpu", "warning", f"{detail}; {lacking}", remedy)


def _judge_cores(machine: Machine) -> Condition:
    if machine.cores >= MIN_CORES:
        return Condition("cores", "ok", str(machine.cores))
    remedy = f"give it {MIN_CORES} or more; timings taken on {machine.cores} mean nothing"
    return Condition("cores", "warning", str(machine.cores), remedy)


def _judge_size(name: str, found_bytes: int | None, needed_bytes: int, remedy: str) -> Condition:
    if found_bytes is None:
        return Condition(name, "warning", "n/a: could not be read", remedy)
    detail = f"{found_bytes / GIB:.1f} GiB"
    if found_bytes >= needed_bytes:
        return Condition(name, "ok", detail)
    return Condition(name, "warning", f"{detail}, less than {needed_bytes / GIB:.0f} GiB", remedy)


def _judge_gpu(answer: GpuAnswer | None) -> Condition:
    if answer is None:
        return Condition("gpus", "ok", "n/a: no nvidia-smi, amd-smi or rocm-smi")
    if answer.problem:
        remedy = f"run {answer.tool} by hand; scenarios on CPU need no GPU"
        return Condition("gpus", "warning", f"{answer.tool}: {answer.problem}", remedy)
    return Condition("gpus", "ok", f"{answer.tool}: {'; '.join(answer.lines) or 'none listed'}")


def _judge_loopback(problem: str) -> Condition:
    if not problem:
        return Condition("loopback", "ok", "127.0.0.1 binds and connects")
    remedy = "allow local connections on 127.0.0.1: engines are measured over them"
    return Condition("loopback", "missing", problem, remedy)

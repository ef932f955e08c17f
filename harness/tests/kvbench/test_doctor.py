"""The doctor's judgements, on machines that are made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kvbench import doctor
from kvbench.doctor import GIB, Condition, GpuAnswer, Machine

HEALTHY = Machine(
    python=(3, 12, 1),
    distributions={"lm_eval": "0.4.13", "aiperf": "0.13.0"},
    engine_python=Path("/cache/envs/cpu/bin/python"),
    engine_problem="",
    engine_vllm="0.32.0",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}),
    cores=8,
    memory_bytes=32 * GIB,
    disk_path=Path("/cache"),
    disk_free_bytes=100 * GIB,
    shared_memory_bytes=16 * GIB,
    gpu=GpuAnswer("nvidia-smi", ("NVIDIA H200, 143771 MiB",)),
    loopback_problem="",
)


def judged(name: str, **changes: Any) -> Condition:
    conditions = doctor.judge(dataclasses.replace(HEALTHY, **changes))
    return next(condition for condition in conditions if condition.name.startswith(name))


def test_healthy_machine_needs_nothing() -> None:
    conditions = doctor.judge(HEALTHY)
    assert {condition.state for condition in conditions} == {"ok"}
    assert {condition.remedy for condition in conditions} == {""}
    assert len({condition.name for condition in conditions}) == len(conditions)


@pytest.mark.parametrize(
    ("name", "changes", "state", "said"),
    [
        ("python", {"python": (3, 10, 4)}, "missing", "3.10.4"),
        ("python", {"python": (3, 14, 0)}, "missing", "3.14.0"),
        ("aiperf", {"distributions": {"aiperf": None}}, "missing", "not installed"),
        ("managed", {"engine_python": None, "engine_problem": "not made"}, "warning", "not made"),
        ("managed", {"engine_vllm": None}, "missing", "no vLLM"),
        ("cpu", {"cpu_flags": frozenset({"sse2"})}, "missing", "needs AVX2"),
        ("cpu", {"cpu_flags": frozenset({"avx2", "avx512f"})}, "warning", "qwen3_next"),
        ("cpu", {"cpu_flags": None}, "warning", "n/a"),
        ("cpu", {"architecture": "aarch64"}, "warning", "aarch64"),
        ("cores", {"cores": 1}, "warning", "1"),
        ("memory", {"memory_bytes": 4 * GIB}, "warning", "4.0 GiB, less than 8 GiB"),
        ("disk", {"disk_free_bytes": GIB}, "warning", "1.0 GiB, less than 5 GiB"),
        ("shared", {"shared_memory_bytes": 64 * 2**20}, "warning", "0.1 GiB, less than 1 GiB"),
        ("shared", {"shared_memory_bytes": None}, "warning", "n/a"),
        ("gpus", {"gpu": GpuAnswer("nvidia-smi", problem="no driver")}, "warning", "no driver"),
        ("loopback", {"loopback_problem": "refused"}, "missing", "refused"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(
    name: str, changes: dict[str, object], state: str, said: str
) -> None:
    condition = judged(name, **changes)
    assert condition.state == state
    assert said in condition.detail
    assert condition.remedy


def test_no_gpu_is_not_an_error() -> None:
    assert judged("gpus", gpu=None) == Condition(
        "gpus", "ok", "n/a: no nvidia-smi, amd-smi or rocm-smi"
    )


def test_hybrids_run_with_avx512_bf16_alone() -> None:
    condition = judged("cpu", cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16"}))
    assert condition.state == "ok"
    assert "MLA models: no prefix caching without AMX" in condition.detail


def test_cpu_flags_are_those_of_the_first_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_tile\n\nflags\t\t: other\n")
    assert doctor.read_cpu_flags(cpuinfo) == frozenset({"fpu", "avx2", "amx_tile"})
    cpuinfo.write_text("processor\t: 0\n")
    assert doctor.read_cpu_flags(cpuinfo) is None
    assert doctor.read_cpu_flags(tmp_path / "absent") is None


def test_container_limit_counts_and_no_limit_does_not(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    total = doctor._memory_bytes(limit)
    limit.write_text("max\n")
    assert doctor._memory_bytes(limit) == total
    limit.write_text("1048576\n")
    assert doctor._memory_bytes(limit) == 1048576


def put_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_first_gpu_tool_on_the_path_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._gpu() is None
    put_tool(tmp_path, "rocm-smi", "echo 'card0, MI300X'")
    assert doctor._gpu() == GpuAnswer("rocm-smi", ("card0, MI300X",))
    put_tool(tmp_path, "nvidia-smi", "echo 'no devices were found'; exit 6")
    assert doctor._gpu() == GpuAnswer("nvidia-smi", problem="no devices were found")


def test_hanging_gpu_tool_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, "nvidia-smi", "exec /bin/sleep 30")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "TOOL_LIMIT_S", 0.2)
    answer = doctor._gpu()
    assert answer is not None
    assert "timed out" in answer.problem


def test_examine_looks_at_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "not" / "yet"))
    conditions = {condition.name: condition for condition in doctor.examine()}
    assert conditions["python"].state == "ok"
    assert conditions["managed:cpu"].state == "warning"
    assert f"disk at {tmp_path}" in conditions
    assert not (tmp_path / "not").exists()

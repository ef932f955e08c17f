"""Whole runs of shipped scenarios on real vLLM (CPU build), as a user types them.

One plain start smoke test; the others use the fork server. Records are shared between tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kvbench import environments
from kvbench.errors import ExitCode, PrerequisiteError
from kvbench.record import JOURNAL, seal
from kvbench.telemetry.machine import cpu_flags

ROOT = Path(__file__).parents[3]
FORK = ("--set", "engine.start=fork")
SHORT = (*FORK, "--set", "stages.replay.workload.concurrency=[1]")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="session", autouse=True)
def _managed_cpu() -> None:
    try:
        environments.resolve_python("managed:cpu")
    except PrerequisiteError as error:
        pytest.skip(str(error))


class Run:
    """One finished `kvbench run`."""

    def __init__(self, done: subprocess.CompletedProcess[str], results: Path) -> None:
        self.code = done.returncode
        self.output = done.stdout + done.stderr
        found = sorted(results.glob("*/*/"))
        self.directory = found[-1] if found else None

    @property
    def verdict(self) -> dict[str, object]:
        assert self.directory is not None, self.output
        data: dict[str, object] = json.loads((self.directory / "verdict.json").read_text())
        return data

    def findings(self, outcome: str) -> list[dict[str, object]]:
        found = self.verdict["findings"]
        assert isinstance(found, list)
        return [finding for finding in found if finding["outcome"] == outcome]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kvbench.cli", *words]


def finished(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)


@pytest.fixture(scope="session")
def kvbench(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    def run(scenario: str, *words: str) -> Run:
        results = tmp_path_factory.mktemp("results")
        argv = command("run", str(ROOT / "scenarios" / scenario), "--results", str(results))
        return Run(finished([*argv, *words]), results)

    return run


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The command of the README, with a results folder of its own; the plain start."""
    results = tmp_path_factory.mktemp("results")
    return Run(finished([str(ROOT / "scripts/quickstart"), "--results", str(results)]), results)


def servers(folder: Path) -> set[int]:
    """Processes whose log lies below `folder`: servers, workers and the fork server."""
    return {process.pid for process in psutil.process_iter() if _writes_below(process, folder)}


def _writes_below(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(Path(file.path).is_relative_to(folder) for file in process.open_files())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    left = servers(tmp_path_factory.getbasetemp()) - {os.getpid()}
    assert not left, f"processes left behind: {left}"


def test_quickstart_passes_with_the_plain_start(quickstart: Run) -> None:
    assert quickstart.code == ExitCode.PASS, quickstart.output
    assert "PASS" in quickstart.output
    assert not quickstart.findings("fail")


def test_quickstart_hits_are_exactly_as_predicted(quickstart: Run) -> None:
    """At concurrency 1; the lengths are 383, 384, 385 and 1000 tokens, the block is 128."""
    prompts = quickstart.verdict["prompts"]
    assert isinstance(prompts, list)
    alone = [row for row in prompts if (row["arm"], row["concurrency"]) == ("simple", 1)]
    longest = {"p1": 256, "p2": 256, "p3": 384, "p4": 896}
    assert {row["prompt"]: row["max_hit_tokens"] for row in alone} == longest
    for row in alone:
        tokens = longest[row["prompt"]]
        for phase in ("replay-1", "replay-2", "reload-1"):
            assert row["hits"][phase] == f"0 + {tokens} (expected 0 + {tokens})"
        assert row["max_delta_nats"] == 0
    phases = quickstart.verdict["phases"]
    assert isinstance(phases, list)
    replays = [row for row in phases if (row["arm"], row["phase"]) == ("simple", "replay-1")]
    assert [(row["local"]["hits"], row["external"]["hits"]) for row in replays] == [(0, 1792)]


def test_judge_and_report_give_the_same_bytes_again(quickstart: Run) -> None:
    assert quickstart.directory is not None
    verdict = (quickstart.directory / "verdict.json").read_bytes()
    report = (quickstart.directory / "report.md").read_bytes()
    assert subprocess.run(command("judge", str(quickstart.directory)), check=False).returncode == 0
    shown = subprocess.run(
        command("report", str(quickstart.directory)), capture_output=True, check=True
    )
    assert (quickstart.directory / "verdict.json").read_bytes() == verdict
    assert shown.stdout == report


def damaged_copy(directory: Path, copy: Path) -> tuple[str, int]:
    """Change one log-probability of one CPU hit; returns the prompt and the position."""
    shutil.copytree(directory, copy)
    lines = (copy / JOURNAL).read_text().splitlines()
    window = next(
        event["window"]
        for event in map(json.loads, lines)
        if event["event"] == "phase_started"
        and (event["arm"], event["phase"]) == ("simple", "reload-1")
    )
    for number, line in enumerate(lines):
        event = json.loads(line)
        if event.get("window") == window and event.get("prompt_id") == "replay/p3":
            token_id, logprob, top = event["tokens"][5]
            top[str(token_id)] = logprob - 0.25
            event["tokens"][5] = [token_id, logprob - 0.25, top]
            lines[number] = json.dumps(event)
            (copy / JOURNAL).write_text("\n".join(lines) + "\n")
            return "p3", 5
    raise AssertionError("no such request in the record")


def judged(directory: Path) -> tuple[int, dict[str, object]]:
    code = subprocess.run(
        command("judge", str(directory)), capture_output=True, check=False
    ).returncode
    return code, json.loads((directory / "verdict.json").read_text())


def test_changed_log_probability_in_a_sealed_copy_fails_and_is_named(
    quickstart: Run, tmp_path: Path
) -> None:
    assert quickstart.directory is not None
    prompt, position = damaged_copy(quickstart.directory, tmp_path / "copy")
    seal(tmp_path / "copy")
    code, verdict = judged(tmp_path / "copy")
    assert code == ExitCode.FAIL
    reasons = " ".join(f["reason"] for f in verdict["findings"] if f["outcome"] == "fail")  # type: ignore[attr-defined]
    assert f"{prompt} position {position}" in reasons


def test_edited_copy_that_was_not_sealed_again_is_invalid(quickstart: Run, tmp_path: Path) -> None:
    assert quickstart.directory is not None
    damaged_copy(quickstart.directory, tmp_path / "copy")
    code, verdict = judged(tmp_path / "copy")
    assert code == ExitCode.UNPROVED
    assert verdict["outcome"] == "invalid"


def test_one_damaged_block_fails_and_names_its_prompt(tmp_path: Path) -> None:
    argv = [str(ROOT / "scripts/quickstart"), "--broken", "--results", str(tmp_path)]
    run = Run(finished([*argv, *SHORT]), tmp_path)
    assert run.code == ExitCode.FAIL, run.output
    named = {prompt for finding in run.findings("fail") for prompt in finding["prompts"]}  # type: ignore[attr-defined]
    assert named == {"replay/p2"}


@pytest.mark.parametrize(
    "sets",
    [
        ("arms.simple.connector.extends=connectors/native_host",),
        ("arms.simple.connector.extends=connectors/simple_lazy_host",),
        ("engine.dtype=bfloat16", "engine.gpu_blocks=24"),
    ],
    ids=["native", "lazy", "bfloat16-24-blocks"],
)
def test_clean_variants_pass(kvbench: Callable[..., Run], sets: tuple[str, ...]) -> None:
    words = [word for value in sets for word in ("--set", value)]
    run = kvbench("quickstart.yaml", *SHORT, *words)
    assert run.code == ExitCode.PASS, run.output


def needs_bfloat16_kernels() -> None:
    if "avx512_bf16" not in (cpu_flags() or ()):
        pytest.skip("vLLM's CPU kernels for gated delta nets need AVX512-BF16")


@pytest.mark.parametrize("unit", [None, 128])
def test_hybrid_hits_are_bit_equal_and_no_false_alarm(
    kvbench: Callable[..., Run], unit: int | None
) -> None:
    needs_bfloat16_kernels()
    words = () if unit is None else ("--set", f"engine.prefix_match_unit_tokens={unit}")
    run = kvbench("hybrid_cpu.yaml", *words)
    assert run.code == ExitCode.PASS, run.output
    passed = [finding["check"] for finding in run.findings("pass")]
    assert "cpu_hit_equals_gpu_hit" in passed


def test_full_recipe_passes_at_24_blocks(kvbench: Callable[..., Run]) -> None:
    run = kvbench("replay_cpu.yaml", "--set", "engine.gpu_blocks=24")
    assert run.code == ExitCode.PASS, run.output


def test_device_hit_from_a_wrong_state_is_a_broken_baseline_and_no_fail(
    kvbench: Callable[..., Run],
) -> None:
    needs_bfloat16_kernels()
    lengths = "stages.k1.workload.prompts.lengths_tokens=[3000]"
    run = kvbench("hybrid_cpu.yaml", "--set", lengths)
    assert run.code == ExitCode.ENVIRONMENT, run.output
    assert not run.findings("fail")
    reasons = " ".join(str(finding["reason"]) for finding in run.findings("error"))
    assert "baseline broken" in reasons


def test_wrong_flag_ends_in_seconds_with_vllms_own_line(kvbench: Callable[..., Run]) -> None:
    run = kvbench("quickstart.yaml", "--set", "engine.args=[--no-such-flag]", "--arm", "simple")
    assert run.code == ExitCode.ENVIRONMENT
    assert "unrecognized arguments: --no-such-flag" in " ".join(run.output.split())


def test_other_connector_than_asked_for_is_named_and_proves_nothing(
    kvbench: Callable[..., Run],
) -> None:
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 64 << 20,
            "spec_name": "HostOffloadingSpec",
            "spec_module_path": "kvb_host_native",
        },
    }
    args = json.dumps(["--kv-transfer-config", json.dumps(config)])
    run = kvbench("quickstart.yaml", *SHORT, "--arm", "simple", "--set", f"engine.args={args}")
    assert run.code == ExitCode.UNPROVED, run.output
    reasons = " ".join(str(finding["reason"]) for finding in run.findings("invalid"))
    assert "HostSimpleCPUOffloadConnector was asked for, but is not effective" in reasons


def test_taken_port_is_an_error_before_any_load(kvbench: Callable[..., Run]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        run = kvbench("quickstart.yaml", "--set", f"engine.port={port}")
    assert run.code == ExitCode.ENVIRONMENT
    assert f"port {port} is taken" in run.output
    assert run.directory is not None
    assert '"event":"request_done"' not in (run.directory / JOURNAL).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_readable_record_and_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    argv = command("run", str(ROOT / "scenarios/quickstart.yaml"), "--results", str(tmp_path))
    running = subprocess.Popen([*argv, *FORK], stdout=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 300
    while not any('"request_done"' in f.read_text() for f in tmp_path.rglob(JOURNAL)):
        assert running.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    os.kill(running.pid, number)
    time.sleep(0.1)
    os.kill(running.pid, number)  # impatience must not cut the teardown short
    assert running.wait(timeout=60) == ExitCode.INTERRUPTED
    directory = next(tmp_path.rglob(JOURNAL)).parent
    shown = subprocess.run(
        command("report", str(directory)), capture_output=True, text=True, check=True
    )
    assert "interrupted" in shown.stdout


def test_killed_harness_leaves_no_process_and_a_readable_record(tmp_path: Path) -> None:
    argv = command("run", str(ROOT / "scenarios/quickstart.yaml"), "--results", str(tmp_path))
    running = subprocess.Popen([*argv, *FORK], stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 300
    while not any('"request_done"' in f.read_text() for f in tmp_path.rglob(JOURNAL)):
        assert running.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert servers(tmp_path), "the probe itself must see them"
    running.kill()
    running.wait()
    deadline_s = time.monotonic() + 30
    while servers(tmp_path):
        assert time.monotonic() < deadline_s, "orphans"
        time.sleep(0.2)
    directory = next(tmp_path.rglob(JOURNAL)).parent
    code, _ = judged(directory)
    assert code == ExitCode.ENVIRONMENT


def test_doctor_finds_the_managed_environment() -> None:
    done = finished(command("doctor"))
    assert done.returncode == ExitCode.PASS, done.stdout
    assert "managed:cpu" in done.stdout


def test_second_set_up_returns_at_once() -> None:
    done = finished([str(ROOT / "scripts/setup-vllm-cpu")])
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout + done.stderr

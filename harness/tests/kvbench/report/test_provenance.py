from __future__ import annotations

from pathlib import Path

import pytest
import records
import rendered
from odd_records import block, changing

from kvbench.events import Event, LifeReady, LifeStarted, RunStarted

pytestmark = pytest.mark.usefixtures("quick_disk")


def fact(text: str, name: str) -> str:
    """The value of a line of T0, as a person reads it."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} | "))
    return rendered.visible(row.removeprefix(f"| {name} | ").removesuffix(" |"))


def test_commands_of_the_run_are_there_and_typed_as_recorded(run: Path) -> None:
    command = ("/some/where/.venv/bin/kvbench", "run", "a b.yaml", "--set", "engine.env.X=***")
    text = block(records.write(run, on_event=changing(RunStarted, command=command)))
    assert (
        "```sh\nkvbench rerun results/quickstart/run\n"
        "kvbench run 'a b.yaml' --set 'engine.env.X=***'\n```"
    ) in text


def test_asked_stands_beside_what_was_in_effect(run: Path) -> None:
    def other(event: Event) -> Event:
        if isinstance(event, LifeReady):
            return records.replace(event, effective={**event.effective, "gpu_blocks": 64})
        return event

    text = block(records.write(run, on_event=other))
    assert fact(text, "GPU pool").startswith("64, but asked was 32 blocks (set by the scenario)")
    assert "control: gpu_blocks asked 32, in effect 64" in fact(text, "asked and in effect")


def test_unread_setting_is_not_shown_as_if_it_were_in_effect(run: Path) -> None:
    text = block(records.write(run, on_event=changing(LifeReady, effective={})))
    assert fact(text, "GPU pool").startswith("32 (asked; in effect n/a) blocks")
    assert "not readable from the engine: " in fact(text, "asked and in effect")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.32.0", "0.32.0, commit n/a; local patches n/a (not recorded); start plain"),
        ("0.33.1.dev42+g0123abcd9.d20261201", "commit 0123abcd9;"),
        ("0.33.1.dev42+cu129.g0123abcd9", "commit 0123abcd9;"),
    ],
)
def test_commit_of_vllm_is_read_from_its_version(run: Path, version: str, words: str) -> None:
    text = block(records.write(run, on_event=changing(LifeStarted, vllm_version=version)))
    assert words in fact(text, "vLLM")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"commit": "0123abc", "dirty": False}, "0.1.0, commit 0123abc, no local changes"),
        ({"commit": "0123abc", "dirty": True}, "0.1.0, commit 0123abc, with local changes"),
        ({"commit": None, "dirty": None}, "0.1.0, commit n/a, local changes n/a"),
    ],
)
def test_commit_of_kvbench_and_local_changes(
    run: Path, source: dict[str, object], words: str
) -> None:
    text = block(records.write(run, on_event=changing(RunStarted, source=source)))
    assert fact(text, "kvbench") == words


def test_equal_gpus_are_counted(run: Path) -> None:
    gpu = {"name": "NVIDIA H200", "memory_bytes": 150_754_820_096, "driver": "570.1"}
    machine = {"gpus": [gpu] * 8, "cores": 192, "cpu": "x", "memory_bytes": 2 << 40, "os": "Linux"}
    text = block(records.write(run, on_event=changing(RunStarted, machine=machine)))
    assert fact(text, "hardware") == (
        "8 × NVIDIA H200 (140.4 GiB, driver 570.1); 192 cores, x; memory 2 TiB; Linux"
    )


def test_servers_are_named_only_where_they_differ(run: Path) -> None:
    text = block(records.write(run))
    assert fact(text, "topology") == "TP 1, PP 1, DP 1, DCP 1, EP off"
    assert fact(text, "connector").startswith("control: nonesimple: SimpleCPUOffloadConnector")


def test_every_setting_of_the_workload_but_its_time_limits_is_there(run: Path) -> None:
    words = fact(block(records.write(run)), "workload of replay")
    assert "prompts.offsets_tokens=[-1, 0, 1]" in words
    assert "concurrency=[1]" in words
    assert "limit_s" not in words


def test_injected_fault_is_said_before_the_tables(run: Path) -> None:
    broken = records.QUICKSTART.with_name("quickstart_broken.yaml")
    text = block(records.write(run, scenario=broken))
    assert "> Faults were injected on purpose: zero&#95;block" not in text
    assert ("> Faults were injected on purpose: zero_block in reload-1, prompt p2 (simple)") in text
    assert fact(text, "injected faults").endswith("zero_block in reload-1, prompt p2")


def test_record_without_a_plan_says_what_it_still_knows(run: Path) -> None:
    (records.write(run) / "plan.json").unlink()
    text = block(run)
    rendered.assert_is_sound(text)
    assert fact(text, "vLLM") == "0.32.0"
    assert fact(text, "asked and in effect") == "n/a settings are as asked"

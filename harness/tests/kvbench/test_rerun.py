"""A run made again from its record: the same plan, differences said, edited records refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import records
from command_line import kvbench

from kvbench import rerun
from kvbench.errors import ExitCode, PrerequisiteError, RecordError, UsageError
from kvbench.events import Event, LifeStarted, RunStarted
from kvbench.plan import make_plan
from kvbench.record import SEAL

pytestmark = pytest.mark.usefixtures("quick_disk")

TOKEN = "engine.env.HF_TOKEN=hf_0123456789abcdef"  # a made-up one
FAKE = ("engine.kind=fake", *records.SMALL)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine, checkout and vLLM that the simulated records name."""
    machine = {"cpu": "test cpu", "cores": 2, "gpus": [], "python": "3.11"}
    monkeypatch.setattr(rerun, "machine_facts", lambda: machine)
    monkeypatch.setattr(rerun, "source_facts", lambda: {"commit": "0123abc", "dirty": False})
    monkeypatch.setattr(rerun, "__version__", "0.1.0")
    monkeypatch.setattr(rerun, "_vllm_version", lambda _: "0.32.0")


def differences(directory: Path, *sets: str) -> dict[str, tuple[str, str]]:
    recorded = rerun.read(directory)
    loaded = rerun.load(recorded, sets)
    found = rerun.differences(recorded, make_plan(loaded))
    return {each.what: (each.recorded, each.now) for each in found}


@pytest.mark.usefixtures("here")
def test_intact_record_gives_the_recorded_plan_again(run: Path) -> None:
    assert differences(records.write(run)) == {}


@pytest.mark.usefixtures("here")
def test_arms_keep_their_order_although_the_file_is_sorted(tmp_path: Path) -> None:
    text = records.QUICKSTART.read_text()
    scenario = tmp_path / "quickstart.yaml"
    scenario.write_text(text.replace("  control:\n    role", "  zero:\n    role", 1))
    directory = records.write(tmp_path / "run", scenario=scenario)
    assert [*json.loads((directory / "scenario.json").read_text())["arms"]] == ["simple", "zero"]
    plan = make_plan(rerun.load(rerun.read(directory), ()))
    assert [life.arms for life in plan.lives] == [("zero",), ("simple",)]
    assert differences(directory) == {}


@pytest.mark.usefixtures("here")
def test_other_vllm_kvbench_and_machine_are_said(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"cpu": "other cpu", "cores": 2, "gpus": None, "python": "3.11"}
    monkeypatch.setattr(rerun, "machine_facts", lambda: machine)
    monkeypatch.setattr(rerun, "source_facts", lambda: {"commit": "9999def", "dirty": True})
    monkeypatch.setattr(rerun, "_vllm_version", lambda _: None)
    assert differences(records.write(run)) == {
        "kvbench commit": ("0123abc", "9999def with local changes"),
        "vLLM of life-1": ("0.32.0", "n/a"),
        "vLLM of life-2": ("0.32.0", "n/a"),
        "cpu": ("test cpu", "other cpu"),
        "gpus": ("none", "n/a"),
    }


@pytest.mark.usefixtures("here")
def test_local_changes_then_are_said_although_the_commit_is_the_same(run: Path) -> None:
    def dirty(event: Event) -> Event:
        if isinstance(event, RunStarted):
            return records.replace(event, source={"commit": "0123abc", "dirty": True})
        return event

    found = differences(records.write(run, on_event=dirty))
    assert found == {"kvbench commit": ("0123abc with local changes", "0123abc")}


@pytest.mark.usefixtures("here")
def test_override_is_listed_with_what_it_changes_in_the_plan(run: Path) -> None:
    found = differences(records.write(run), "engine.gpu_blocks=64")
    assert found["engine.gpu_blocks"] == ("32", "64")
    assert found["command of life-1"] == ("32", "64")
    assert "phases of life-2" in found  # a larger pool needs more fillers


def test_edited_record_is_refused_with_the_file_and_a_way_out(run: Path) -> None:
    directory = records.write(run)
    file = directory / "scenario.json"
    file.write_text(file.read_text().replace('"gpu_blocks": 32', '"gpu_blocks": 24'))
    with pytest.raises(RecordError, match=r"scenario\.json differs from seal\.json.*kvbench run"):
        rerun.read(directory)


def test_interrupted_record_is_taken_with_a_note(run: Path) -> None:
    directory = records.write(run, seal=False)
    assert not (directory / SEAL).exists()
    assert "interrupted" in rerun.read(directory).notes[0]


@pytest.mark.usefixtures("here")
def test_masked_secret_must_be_given_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    recorded = rerun.read(records.write(run, sets=(*records.SMALL, TOKEN)))
    with pytest.raises(UsageError) as refused:
        rerun.load(recorded, ())
    assert "engine.env.HF_TOKEN is masked in the record" in str(refused.value)
    mend = "engine.env_from_agent=[HF_TOKEN]"
    assert f"export HF_TOKEN and add --set '{mend}'" in str(refused.value)
    with pytest.raises(UsageError):
        rerun.load(recorded, (mend,))  # named, and not there
    monkeypatch.setenv("HF_TOKEN", "hf_fedcba9876543210")
    loaded = rerun.load(recorded, (mend,))
    assert make_plan(loaded).lives[0].env["HF_TOKEN"] == "{from_agent}"
    other = TOKEN.replace("hf_0", "hf_1")
    assert rerun.load(recorded, (other,)).scenario.engine.env["HF_TOKEN"].startswith("hf_1123")
    assert differences(recorded.directory, other) == {}  # masked: neither compared nor shown


@pytest.mark.usefixtures("here")
def test_variable_that_was_passed_on_and_is_not_set_now_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def had_it(event: Event) -> Event:
        if isinstance(event, LifeStarted):
            return records.replace(event, env={**event.env, "MY_PROXY": "http://x"})
        return event

    monkeypatch.delenv("MY_PROXY", raising=False)
    sets = (*records.SMALL, "engine.env_from_agent=[MY_PROXY]")
    recorded = rerun.read(records.write(run, sets=sets, on_event=had_it))
    with pytest.raises(PrerequisiteError, match="were given MY_PROXY"):
        rerun.load(recorded, ())
    monkeypatch.setenv("MY_PROXY", "http://y")
    assert rerun.load(recorded, ()).scenario.name == "quickstart"


def test_fragments_cannot_be_named_because_they_are_merged_already(run: Path) -> None:
    recorded = rerun.read(records.write(run))
    with pytest.raises(UsageError, match=r"write the values out: --set 'arms\.simple\.connector="):
        rerun.load(recorded, ("arms.simple.connector.extends=connectors/native_host",))
    native = "{kind: native, copies: host_memory, host_pool_bytes_total: 64MiB}"
    loaded = rerun.load(recorded, (f"arms.simple.connector={native}",))
    assert loaded.scenario.arms["simple"].connector.kind == "native"


@pytest.mark.e2e
def test_record_of_a_run_is_run_again_and_says_what_differs(tmp_path: Path) -> None:
    sets = [word for each in FAKE for word in ("--set", each)]
    first = kvbench("run", str(records.QUICKSTART), *sets, "--results", str(tmp_path / "first"))
    assert first.returncode == ExitCode.PASS, first.stdout + first.stderr
    (directory,) = (tmp_path / "first").glob("*/*")
    again = kvbench("rerun", str(directory), "--results", str(tmp_path / "again"))
    assert again.returncode == ExitCode.PASS, again.stdout + again.stderr
    assert f"again: {directory.name}" in again.stdout
    (second,) = (tmp_path / "again").glob("*/*")
    assert (second / "scenario.json").read_bytes() == (directory / "scenario.json").read_bytes()
    prompts = [
        json.loads((each / "plan.json").read_text())["prompts"] for each in (directory, second)
    ]
    assert prompts[0] == prompts[1]


def test_no_record_and_edited_record_end_with_their_codes(run: Path) -> None:
    assert kvbench("rerun", "/").returncode == ExitCode.UNPROVED
    directory = records.write(run)
    (directory / "artifacts" / "more.txt").write_text("added")
    done = kvbench("rerun", str(directory), "--results", str(run.parent / "results"))
    assert done.returncode == ExitCode.UNPROVED
    assert "artifacts/more.txt differs" in done.stderr
    assert not (run.parent / "results").exists()

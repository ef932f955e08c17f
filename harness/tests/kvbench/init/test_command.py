"""`kvbench init` as it is typed: three questions, or flags."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command_line import Done, kvbench
from first_scenarios import declare_geometry

from kvbench import tiny
from kvbench.errors import ExitCode
from kvbench.scenario.load import load_scenario


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answered(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return kvbench("init")


def test_flags_ask_nothing_and_print_the_next_commands(tmp_path: Path) -> None:
    done = kvbench("init", "--model", "tiny", "--connector", "native", "--host-memory", "1GiB")
    assert done.returncode == ExitCode.PASS, done.stderr
    assert "kvbench plan scenarios/first.yaml\n" in done.stdout
    assert "kvbench run scenarios/first.yaml\n" in done.stdout
    assert "--set engine.kind=fake" in done.stdout
    arms = load_scenario(tmp_path / "scenarios/first.yaml").scenario.arms
    assert arms["native"].connector.kind == "native"


def test_empty_answers_take_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    done = answered(monkeypatch, "", "", "", "")
    assert done.returncode == ExitCode.PASS, done.stderr
    assert "tiny_qwen3; connectors/simple_eager_host with 64MiB" in done.stdout


def test_answers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    done = answered(monkeypatch, "some/model", "simple_lazy", "16GiB", "4")
    assert "some/model; connectors/simple_lazy with 16GiB of host memory; 4 GPUs" in done.stdout
    assert "until model.geometry is declared: see the comment under `model:`" in done.stdout


def test_wrong_answer_is_said_before_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    done = answered(monkeypatch, "tinny")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean 'tiny'" in done.stderr
    assert "Which connector" not in done.stdout


def test_nobody_there_to_answer_is_told_of_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    done = answered(monkeypatch)
    assert done.returncode == ExitCode.USAGE
    assert "--model, --connector, --host-memory, --gpus or --cpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cpu", "--gpus", "2"), "name one of them"),
        (("first.txt", "--cpu"), "name a YAML file"),
        (("--gpus", "0"), "Invalid value"),
    ],
)
def test_wrong_flags_are_usage_errors(words: tuple[str, ...], said: str) -> None:
    done = kvbench("init", *words)
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr


def test_existing_file_is_refused_before_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kvbench("init", "--cpu").returncode == ExitCode.PASS
    done = answered(monkeypatch, "", "", "", "")
    assert done.returncode == ExitCode.USAGE
    assert "exists already" in done.stderr
    assert "Which model" not in done.stdout
    assert kvbench("init", "--cpu", "--force").returncode == ExitCode.PASS


@pytest.mark.e2e
def test_folder_of_another_model_gets_a_verdict_once_its_geometry_is_declared(
    tmp_path: Path,
) -> None:
    folder = tiny.build("qwen3", seed=3, cache_dir=tmp_path / "models").path
    file = tmp_path / "scenarios/mine.yaml"
    run = ("run", str(file), "--set", "engine.kind=fake")
    assert kvbench("init", str(file), "--model", str(folder)).returncode == ExitCode.PASS
    early = kvbench(*run)
    assert early.returncode == ExitCode.USAGE
    assert "a file of `kvbench init` has a proposal there" in early.stderr
    declare_geometry(file)
    done = kvbench(*run)
    assert done.returncode == ExitCode.PASS, done.stdout + done.stderr
    assert "PASS mine (exit code 0)" in done.stdout

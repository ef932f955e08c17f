"""Metadata of a GGUF file, with the file named where a value is missing or not understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from kvbench.errors import UsageError


class Metadata:
    """Values by key; the weights stay in `reader`, which maps the file."""

    def __init__(self, path: Path) -> None:
        """Open a file; raises `UsageError` where it is no GGUF file."""
        self.path = path
        try:
            self.reader = GGUFReader(path)
        except ValueError as error:
            raise UsageError(f"{path.name} is not a GGUF file: {error}") from error

    def get(self, key: str) -> Any:
        """Return the value of a key (str, int, float, bool or a list of them); None if absent."""
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def need(self, key: str) -> Any:
        """Return the value of a key; raises `UsageError` when the file lacks it."""
        value = self.get(key)
        if value is None:
            raise UsageError(f"{self.path.name} has no {key}, so it cannot be converted")
        return value

    def number(self, key: str) -> float:
        """Return a float32 as the shortest decimal that gives the same float32 (1e-05)."""
        return float(str(np.float32(self.need(key))))

    def is_one_of(self, key: str, known: tuple[str, ...]) -> str:
        """Return a value that must be one of `known`; raises `UsageError` with the list if not."""
        value = self.need(key)
        if value not in known:
            raise UsageError(
                f"{self.path.name}: {key} is {value!r}; kvbench converts {', '.join(known)}"
            )
        return str(value)

"""The strict base of all scenario models, and sizes that people write with a unit.

`extra="forbid"` is there because a misspelt key that is silently ignored changes what a run proves.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

_UNITS: Final = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)")


class StrictModel(BaseModel):
    """Frozen, and refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def parse_bytes(value: object) -> object:
    """Turn `64MiB` or `1.5GB` into bytes; anything but text is left to the model's own check."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"write a number of bytes, or a size such as 64MiB; units: {_units()}")
    size = float(match[1]) * _UNITS[match[2]]
    if size != int(size):
        raise ValueError(f"{value} is not a whole number of bytes")
    return int(size)


def _units() -> str:
    return ", ".join(_UNITS)


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": rf"^{_SIZE.pattern}$"},
            ]
        }
    ),
]
"""A size in bytes: an integer, or text such as `64MiB`."""

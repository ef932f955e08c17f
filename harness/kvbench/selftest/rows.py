"""The rows of the matrix: a change of the base scenario, and the verdict that must follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field
from ruamel.yaml import YAML

from kvbench.checks.finding import Outcome
from kvbench.errors import UsageError
from kvbench.scenario.base import StrictModel

FOLDER: Final = Path(__file__).parent
BASE: Final = FOLDER / "base.yaml"
MATRIX: Final = FOLDER / "matrix.yaml"

Kind = Literal["fault", "look_alike", "vacuity", "two_faults", "clean"]
Setup = Literal["none", "stranger", "stranger_other_model", "stranger_between", "bystander"]


class Expected(StrictModel):
    """A finding that must be among those of the verdict."""

    check: str = Field(description="id of the check")
    outcome: Outcome = Field(description="what it must say")
    witness: str | None = Field(default=None, description="by which witness")
    phase: str | None = Field(default=None, description="phase that it must name")
    prompts: tuple[str, ...] = Field(
        default=(), description="prompts that it must name, and no others"
    )
    says: str | None = Field(default=None, description="words of its reason or notes")


class Row(StrictModel):
    """One row: what is changed, and what must be seen."""

    id: str = Field(description="F01 to F34, or the property that it belongs to")
    variant: str = Field(default="", description="which variant of the fault")
    title: str = Field(description="what goes wrong, or what looks like it")
    kind: Kind = Field(default="fault", description="fault, look_alike, vacuity, ...")
    changes: dict[str, Any] = Field(
        default_factory=dict, description="settings laid on the base scenario, by path"
    )
    arms: tuple[str, ...] = Field(default=(), description="only these arms; default: all")
    setup: Setup = Field(default="none", description="what else happens on the machine")
    evaluation: str | None = Field(
        default=None, description="no engine: samples of an evaluation, damaged like this"
    )
    agent_run: str | None = Field(
        default=None, description="no engine: files of an AIPerf run, damaged like this"
    )
    outcome: Outcome = Field(description="the verdict of the run")
    findings: tuple[Expected, ...] = Field(default=(), description="findings that must be there")
    repeats: int = Field(default=1, ge=1, description="runs, each with another seed")

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.id} {self.variant}".strip()

    def sets(self, repeat: int = 0) -> list[str]:
        """The changes as `--set` takes them."""
        changes = dict(self.changes)
        if self.repeats > 1:
            changes["engine.seed"] = repeat + 1
        return [f"{path}={json.dumps(value)}" for path, value in changes.items()]


def load_rows(file: Path = MATRIX) -> tuple[Row, ...]:
    """All rows of the matrix, in order; raises UsageError when two share a name."""
    document = YAML(typ="safe").load(file.read_text())
    rows = tuple(Row.model_validate(row) for row in document["rows"])
    names = [row.name for row in rows]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"{file}: two rows are called {', '.join(doubled)}")
    return rows


def chosen(rows: tuple[Row, ...], only: tuple[str, ...]) -> tuple[Row, ...]:
    """Rows whose id or name begins with one of `only`; all where it is empty."""
    if not only:
        return rows
    found = tuple(row for row in rows if any(row.name.startswith(word) for word in only))
    if not found:
        known = ", ".join(dict.fromkeys(row.id for row in rows))
        raise UsageError(f"--only {' '.join(only)}: no such row; known: {known}")
    return found


def runs_of(rows: tuple[Row, ...]) -> Iterator[tuple[Row, int]]:
    """Each run of each row."""
    for row in rows:
        yield from ((row, repeat) for repeat in range(row.repeats))

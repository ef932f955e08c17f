"""The runs of a comparison: each a record that was read and judged, with what may be used of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from kvbench.checks.common import COLD_KINDS
from kvbench.checks.finding import Outcome
from kvbench.checks.reset_proof import not_cold
from kvbench.errors import UsageError
from kvbench.judge import judge_ledger
from kvbench.ledger import Ledger, Life, Window, load
from kvbench.report.header import has_host_copies, is_fake
from kvbench.report.tables import PhaseRow, phase_rows
from kvbench.report.text import MISSING
from kvbench.verdict import Verdict

Place = tuple[str, str, str]
"""Stage, arm and label of a phase."""
INVALID = Outcome.INVALID.value


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a comparison; `letter` is its name in every table."""

    letter: str
    ledger: Ledger
    verdict: Verdict

    @cached_property
    def unusable(self) -> str | None:
        """Why no number of this run may be used; None where they may."""
        if self.ledger.seal.state == "broken":
            return "its record was edited after the run"
        if self.ledger.is_interrupted:
            return "it was interrupted"
        if self.ledger.plan is None or self.ledger.scenario is None:
            return "it ended before it had a plan"
        return None

    @property
    def is_edited(self) -> bool:
        """True where even its findings say nothing."""
        return self.ledger.seal.state == "broken"

    @cached_property
    def is_fake(self) -> bool:
        """True where the fake engine answered."""
        return is_fake(self.ledger)

    @cached_property
    def times_mean_nothing(self) -> str | None:
        """Why its times say nothing about speed; None where they do."""
        if self.is_fake:
            return "fake engine"
        return "host-memory copies" if has_host_copies(self.ledger) else None

    @cached_property
    def windows(self) -> dict[Place, Window]:
        """Complete windows by place, without the proofs of resets; a second one has a number."""
        found: dict[Place, Window] = {}
        for window in self.ledger.windows:
            if window.is_proof or not window.is_complete:
                continue
            label, number = window.label, 1
            while (window.stage, window.arm, label) in found:
                number += 1
                label = f"{window.label} ({number})"
            found[window.stage, window.arm, label] = window
        return found

    @cached_property
    def phase_rows(self) -> dict[tuple[str, str, str, str | None], PhaseRow]:
        """The report's rows by place and engine; None: all engines together."""
        found: dict[tuple[str, str, str, str | None], PhaseRow] = {}
        for row in phase_rows(self.ledger, self.verdict):
            found.setdefault((row.stage, row.arm, row.phase, row.engine), row)
        return found

    @cached_property
    def doubtful(self) -> frozenset[Place]:
        """Places whose numbers are not usable: invalid, or cold without proof."""
        denied = not_cold(self.ledger)
        return frozenset(
            place
            for place, window in self.windows.items()
            if (window.id in denied and window.kind in COLD_KINDS)
            or ((row := self.phase_rows.get((*place, None))) is not None and row.verdict == INVALID)
        )

    def life_of(self, stage: str, arm: str) -> Life | None:
        """The first ready life in which a stage ran under an arm."""
        for window in self.ledger.windows:
            life = self.ledger.life(window.life)
            if (window.stage, window.arm) == (stage, arm) and life is not None and life.ready:
                return life
        return None

    @cached_property
    def vllm_versions(self) -> tuple[str, ...]:
        """What the engines say that they are, or else what was installed for them."""
        found: list[str] = []
        for life in self.ledger.lives:
            effective: dict[str, Any] = life.ready[1].effective if life.ready is not None else {}
            version = effective.get("vllm_version", life.started.vllm_version)
            found.append(MISSING if version is None else str(version))
        return tuple(dict.fromkeys(found))


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """Read and judge records, the base first; RecordError where one is none."""
    if len(directories) < 2:
        raise UsageError("compare needs two records or more: the base first, then the others")
    if len(directories) > len(ascii_uppercase):
        raise UsageError(f"compare takes at most {len(ascii_uppercase)} records at a time")
    runs = []
    for letter, directory in zip(ascii_uppercase, directories, strict=False):
        ledger = load(directory)
        runs.append(Run(letter, ledger, judge_ledger(ledger)))
    return runs

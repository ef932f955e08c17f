"""The expected hits of a plan, per prompt and phase, printed as `local + external` tokens.

Runs of a phase follow one another with equal expectations most of the time; they share a column, so
that the table stays narrow enough to paste.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvbench.expectations import longest_hit_tokens, phase_steps, predict
from kvbench.oracle import Expected
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.report.plan_table import INDENT, run_name, table
from kvbench.scenario.connectors import NoConnector
from kvbench.scenario.models import Scenario
from kvbench.scenario.resolve import engine_of


class PhaseHits(NamedTuple):
    """A phase and what each scored prompt should hit in it."""

    phase: PlannedPhase
    hits: dict[str, Expected]


class Column(NamedTuple):
    """Runs of one phase kind that expect the same."""

    kind: str
    first: int
    last: int
    cells: dict[str, str]


def expected_hits(scenario: Scenario, plan: Plan, life: PlannedLife) -> Iterator[str]:
    """Return one table per stage, arm and concurrency of a life."""
    phases = predict_phases(scenario, plan, life)
    for key in dict.fromkeys((p.stage, p.arm, p.concurrency) for p, _ in phases):
        own = [each for each in phases if _key(each.phase) == key and each.hits]
        if not own:
            continue
        stage, arm, concurrency = key
        yield (
            f"Expected hits, local + external tokens: stage {stage}, arm {arm}, "
            f"concurrency {concurrency} ({life.life})"
        )
        yield from _table(scenario, plan, own)
        for note in dict.fromkeys(
            note for each in own for hit in each.hits.values() for note in hit.notes
        ):
            yield f"{INDENT}* {note}"
        yield ""


def predict_phases(scenario: Scenario, plan: Plan, life: PlannedLife) -> list[PhaseHits]:
    """Return the expected hits of every scored request of a life, phase by phase."""
    first = life.phases[0]
    connector = scenario.arms[first.arm].connector
    grouped = phase_steps(
        life.phases, prompts=plan.prompts, has_connector=not isinstance(connector, NoConnector)
    )
    expected = iter(
        predict(
            [step for each in grouped for step in (*each.proof, *each.waves)],
            geometry=scenario.model.geometry,
            engine=engine_of(scenario, first.stage, first.arm),
            connector=connector,
        )
    )
    found: list[PhaseHits] = []
    for each in grouped:
        for _ in each.proof:
            next(expected)
        hits: dict[str, Expected] = {}
        for wave in each.phase.waves:
            found_hits = next(expected)
            assert found_hits is not None
            for request, hit in zip(wave, found_hits, strict=True):
                if request.role == "scored":
                    hits[request.prompt_id] = hit
        found.append(PhaseHits(each.phase, hits))
    return found


def _key(phase: PlannedPhase) -> tuple[str, str, int]:
    return phase.stage, phase.arm, phase.concurrency


def _table(scenario: Scenario, plan: Plan, phases: Sequence[PhaseHits]) -> Iterator[str]:
    first = phases[0].phase
    engine = engine_of(scenario, first.stage, first.arm)
    connector = scenario.arms[first.arm].connector
    columns = _columns(phases)
    header = ["prompt", "tokens", "longest hit"]
    header += [run_name(column.kind, column.first, column.last) for column in columns]
    rows: list[list[str]] = []
    for prompt_id in phases[0].hits:
        length = len(plan.prompts[prompt_id])
        longest = longest_hit_tokens(
            length, geometry=scenario.model.geometry, engine=engine, connector=connector
        )
        cells = [column.cells.get(prompt_id, "") for column in columns]
        rows.append([prompt_id, str(length), "n/a" if longest is None else str(longest), *cells])
    yield from table(header, rows)


def _columns(phases: Sequence[PhaseHits]) -> list[Column]:
    columns: list[Column] = []
    for phase, hits in phases:
        cells = {name: f"{hit.local} + {hit.external}" for name, hit in hits.items()}
        same = next(
            (
                index
                for index, column in enumerate(columns)
                if column.kind == phase.kind
                and column.last == phase.run - 1
                and column.cells == cells
            ),
            None,
        )
        if same is None:
            columns.append(Column(phase.kind, phase.run, phase.run, cells))
        else:
            columns[same] = columns[same]._replace(last=phase.run)
    return columns

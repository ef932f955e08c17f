from __future__ import annotations

from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Event, Sample, Snapshot
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def nothing_comes_back(sent: Sent) -> None:
    sent.external = 0


def without_store_counters(event: Event) -> Event:
    if not isinstance(event, Snapshot):
        return event
    kept = tuple(sample for sample in event.samples if not sample.name.startswith("simple_"))
    return records.replace(event, samples=kept)


def stores_nothing(event: Event) -> Event:
    if not isinstance(event, Snapshot):
        return event
    samples = tuple(
        Sample(s.name, s.engine, s.labels, 0.0) if s.name == "simple_save_outcomes" else s
        for s in event.samples
    )
    return records.replace(event, samples=samples)


def test_exercised_path_passes(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "external_path_exercised") == {"pass"}
    assert records.outcomes(healthy_verdict, "not_vacuous") == set()


@pytest.mark.parametrize(
    ("on_event", "words"),
    [
        (records.keep, "stored, never served"),
        (stores_nothing, ": nothing stored"),
        (without_store_counters, "no store counter"),
    ],
)
def test_no_external_hit_where_the_oracle_expects_some_fails(
    run: Path, on_event: records.OnEvent, words: str
) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=nothing_comes_back, on_event=on_event)
    fails = [f for f in verdict.findings if f.check == "external_path_exercised"]
    assert {f.outcome for f in fails} == {Outcome.FAIL}
    assert all(words in f.reason for f in fails)
    assert verdict.exit_code == ExitCode.FAIL


def test_arm_without_a_connector_proves_no_reload(run: Path) -> None:
    sets = (*records.SMALL, "arms.simple.connector={kind: none}")
    verdict = records.judged(run, sets=sets)
    assert records.outcomes(verdict, "not_vacuous") == {"inconclusive"}
    assert verdict.exit_code == ExitCode.UNPROVED


def test_one_silent_engine_of_two_is_named(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.engine == "1" and sent.kind in ("replay", "reload"):
            sent.external = 0

    verdict = records.judged(run, arm=("simple",), engines=2, on_request=damage)
    assert records.outcomes(verdict, "engines_alike") == {"inconclusive"}
    assert any("engine 1 served no external hit" in f.reason for f in verdict.findings)

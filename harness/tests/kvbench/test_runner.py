"""Whole runs on an engine in memory: what is recorded, and what the right half makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mini_engine import MiniClient, MiniServer, Mischief
from rich.console import Console

from kvbench import clock, environments, judge, runner
from kvbench.errors import ExitCode
from kvbench.events import LifeEnded, LifeFailed, PhaseEnded, RequestDone, RunEnded, Skipped
from kvbench.plan import make_plan
from kvbench.progress import TerminalProgress
from kvbench.record import Record, StoredRecord
from kvbench.scenario.load import load_scenario

ROOT = Path(__file__).parents[3]
SMALLER = ("stages.replay.workload.concurrency=[1]",)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "VllmServer", MiniServer)
    monkeypatch.setattr(runner, "Client", MiniClient)
    monkeypatch.setattr(environments, "vllm_version", lambda _python: "mini")
    monkeypatch.setattr(environments, "resolve_python", lambda _spec: Path("/env/bin/python"))
    monkeypatch.setattr(clock, "sleep_s", lambda _seconds: None)
    MiniServer.mischief = Mischief()
    yield
    MiniServer.engines.clear()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[RunEnded, Path]]:
    def run_quickstart(*, sets: tuple[str, ...] = (), **mischief: object) -> tuple[RunEnded, Path]:
        MiniServer.mischief = Mischief(**mischief)  # type: ignore[arg-type]
        loaded = load_scenario(ROOT / "scenarios/quickstart.yaml", sets=(*SMALLER, *sets))
        record = Record.create(tmp_path, "quickstart")
        console = Console(quiet=True)
        with TerminalProgress(console, 1) as progress:
            ended = runner.Runner(
                loaded.scenario,
                make_plan(loaded),
                record,
                progress,
                model_path="/model",
                command=["kvbench", "run", *(word for text in sets for word in ("--set", text))],
            ).run()
        return ended, record.directory

    return run_quickstart


def events(directory: Path, kind: type) -> list[object]:
    return [event for _, event in StoredRecord(directory).events() if isinstance(event, kind)]


def test_clean_engine_passes_every_claim(run: Callable[..., tuple[RunEnded, Path]]) -> None:
    ended, directory = run()
    verdict = judge.judge(directory)
    assert ended.outcome == "complete"
    assert verdict.exit_code == ExitCode.PASS, verdict.first


def test_one_damaged_answer_of_one_prompt_fails_and_is_named(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    damaged: list[str] = []

    def damage(request: object, external: int) -> bool:
        request_id = request.request_id  # type: ignore[attr-defined]
        if external and "replay.p2" in request_id and not damaged:
            damaged.append(request_id)
            return True
        return False

    _, directory = run(damage=damage)
    verdict = judge.judge(directory)
    assert verdict.exit_code == ExitCode.FAIL
    fails = [finding for finding in verdict.findings if finding.outcome == "fail"]
    assert {prompt for finding in fails for prompt in finding.prompts} == {"replay/p2"}
    assert {finding.arm for finding in fails} == {"simple"}


def test_dead_engine_aborts_its_phase_and_skips_the_rest(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    ended, directory = run(die_at_request=20)
    assert ended.outcome == "error"
    assert [event.kind for event in events(directory, LifeFailed)] == ["died", "died"]  # type: ignore[attr-defined]
    assert len(events(directory, Skipped)) > 10
    aborted = [e for e in events(directory, PhaseEnded) if e.outcome == "aborted"]  # type: ignore[attr-defined]
    assert len(aborted) == 2
    assert len(events(directory, LifeEnded)) == 2
    assert judge.judge(directory).exit_code == ExitCode.ENVIRONMENT


def test_refused_reset_skips_its_phase_and_leaves_the_claim_unproved(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    _, directory = run(refuse_resets=True)
    skipped = {event.phase for event in events(directory, Skipped)}  # type: ignore[attr-defined]
    assert {"fresh-1", "reload-1", "cold_again-1"} <= {str(name).split("@")[0] for name in skipped}
    assert judge.judge(directory).exit_code in (ExitCode.ENVIRONMENT, ExitCode.UNPROVED)


def test_reset_that_claims_success_and_keeps_the_tier_is_not_cold(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    _, directory = run(ignore_external_reset=True)
    verdict = judge.judge(directory)
    assert verdict.exit_code == ExitCode.UNPROVED
    unproved = [f for f in verdict.findings if f.check.startswith("reset") and f.outcome != "pass"]
    assert {finding.arm for finding in unproved} == {"simple"}


def test_interrupt_ends_the_server_and_leaves_a_readable_record(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    ended, directory = run(interrupt_at_request=30)
    assert ended.outcome == "interrupted"
    assert len(events(directory, LifeEnded)) == 1
    assert 20 < len(events(directory, RequestDone)) < 30
    assert judge.judge(directory).exit_code == ExitCode.ENVIRONMENT


def test_secret_given_on_the_command_line_is_not_recorded(
    run: Callable[..., tuple[RunEnded, Path]],
) -> None:
    secret = "s3cr3t-value-of-a-user"
    _, directory = run(sets=(f"engine.env={{MY_TOKEN: {secret}}}",))
    holders = [p for p in directory.rglob("*") if p.is_file() and secret in p.read_text("latin-1")]
    assert holders == []


def test_judging_twice_gives_the_same_bytes(run: Callable[..., tuple[RunEnded, Path]]) -> None:
    _, directory = run()
    judge.write_verdict(directory)
    first = (directory / "verdict.json").read_bytes()
    judge.write_verdict(directory)
    assert (directory / "verdict.json").read_bytes() == first

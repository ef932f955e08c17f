"""Pairs of written records that differ in one thing, for the tests of comparisons."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records

from kvbench.compare.comparison import Against, Comparison, compare
from kvbench.compare.findings import Change
from kvbench.events import (
    Event,
    LifeReady,
    LifeStarted,
    PhaseEnded,
    RequestDone,
    RunEnded,
    RunStarted,
    Sample,
    Snapshot,
)
from kvbench.record import JOURNAL

LENGTHS = ",".join(str(300 + 20 * number) for number in range(16))
TIMED = (
    "stages.replay.workload.new_tokens=2",
    "stages.replay.workload.top_logprobs=2",
    "stages.replay.workload.concurrency=[1]",
    f"stages.replay.workload.prompts.lengths_tokens=[{LENGTHS}]",
    "arms.simple.connector.copies=device",
)
"""Real copies, so that times mean something, and prompts enough to tell."""
PASSES_ON = ("fresh", "hot", "replay", "reload", "cold_again")


def with_times(seed: str, factor: float = 1.0, arm_life: str = "life-2") -> records.OnEvent:
    """Times with 2 % of noise; those of one life are `factor` times as long."""
    rng = random.Random(seed)

    def change(event: Event) -> Event:
        if not isinstance(event, RequestDone):
            return event
        scale = rng.uniform(0.98, 1.02) * (factor if event.life == arm_life else 1.0)
        return records.replace(event, ttft_s=0.01 * scale, latency_s=0.05 * scale)

    return change


def of_machine(**changes: Any) -> records.OnEvent:
    """Another machine in the head of the record."""

    def change(event: Event) -> Event:
        if isinstance(event, RunStarted):
            return records.replace(event, machine={**event.machine, **changes})
        return event

    return change


def of_engine(**changes: Any) -> records.OnEvent:
    """Other effective settings in every life."""

    def change(event: Event) -> Event:
        if isinstance(event, LifeReady):
            return records.replace(event, effective={**event.effective, **changes})
        return event

    return change


def of_version(version: str) -> records.OnEvent:
    """Another vLLM."""

    def change(event: Event) -> Event:
        is_start = isinstance(event, LifeStarted)
        return records.replace(event, vllm_version=version) if is_start else event

    return change


def as_fake(event: Event) -> Event:
    """Lives of the fake engine."""
    is_start = isinstance(event, LifeStarted)
    return records.replace(event, start_mode="fake") if is_start else event


def both(one: records.OnEvent, two: records.OnEvent) -> records.OnEvent:
    """One change after the other."""

    def change(event: Event) -> Event | None:
        first = one(event)
        return two(first) if first is not None else None

    return change


def on_replayed(change: Callable[[records.Sent], None], prompt: str = "p2") -> records.OnRequest:
    """Change one prompt's scored requests in reload-1 of the tested arm."""

    def damage(sent: records.Sent) -> None:
        if (sent.arm, sent.phase, sent.name, sent.role) == ("simple", "reload-1", prompt, "scored"):
            change(sent)

    return damage


def flip_answer(sent: records.Sent) -> None:
    """Another answer from the third token on."""
    sent.tokens = records.flip(sent.tokens, 2)


def one_block_less(sent: records.Sent) -> None:
    """A hit one block short, with all witnesses agreeing."""
    sent.external -= 128


def frozen(sent: records.Sent) -> None:
    """Hit counters of the tested arm that stay at 0 while its answers say that they hit."""
    if sent.kind != "reset_proof" and sent.arm == "simple":
        sent.counted_local = sent.counted_external = 0


def without_external(event: Event) -> Event:
    """Pages that have lost their external counters."""
    if not isinstance(event, Snapshot):
        return event
    kept = tuple(each for each in event.samples if not each.name.startswith("external"))
    return records.replace(event, samples=kept, missing=(*event.missing, "external_hits"))


def whole_prompts(event: Event) -> Event:
    """External queries that count whole prompts, as local ones do."""
    if not isinstance(event, Snapshot):
        return event
    asked = {each.engine: each.value for each in event.samples if each.name == "local_queries"}
    samples = tuple(
        Sample(each.name, each.engine, each.labels, asked[each.engine])
        if each.name == "external_queries"
        else each
        for each in event.samples
    )
    return records.replace(event, samples=samples)


def aborted(event: Event) -> Event:
    """No phase reaches its end."""
    return records.replace(event, outcome="aborted") if isinstance(event, PhaseEnded) else event


def interrupted() -> RunEnded:
    """The end line of a run that was stopped by hand."""
    return RunEnded(time_s=2_000_000_000.0, outcome="interrupted")


def edit(directory: Path) -> None:
    """Change the journal behind the back of its seal."""
    path = directory / JOURNAL
    path.write_text(path.read_text().replace('"latency_s":0.05', '"latency_s":0.04'))


def against(base: Path, other: Path, *allow: str) -> Against:
    """The comparison of two records."""
    return compare([base, other], allow).against[0]


def changed(found: Against, change: Change) -> list[tuple[str, str, str]]:
    """Check, arm and phase of the findings that changed so."""
    return [(r.check, r.arm, r.phase) for r in found.findings if r.change is change]


def verdicts(comparison: Comparison) -> set[str]:
    """What is said of times."""
    return {row.verdict for each in comparison.against for row in each.times}

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.plan import make_plan
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.scenario.load import load_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"
WORKLOAD = "stages.replay.workload"


def plan(*sets: str, name: str = "quickstart", arm: Sequence[str] = ()) -> Plan:
    return make_plan(load_scenario(SCENARIOS / f"{name}.yaml", sets=sets, arm=arm))


def phases(made: Plan, concurrency: int = 1, life: int = 0) -> list[PlannedPhase]:
    return [each for each in made.lives[life].phases if each.concurrency == concurrency]


def sent(phase: PlannedPhase) -> list[list[str]]:
    return [[f"{r.prompt_id}:{r.role}" for r in wave] for wave in phase.waves]


def test_phases_come_in_order_and_each_replay_has_a_pressure_of_its_own() -> None:
    names = [phase.name for phase in phases(plan())]
    assert names == [
        *("fresh-1", "fresh-2", "fresh-3", "hot-1", "hot-2"),
        *("pressure-1", "replay-1", "pressure-2", "replay-2", "reload-1", "cold_again-1"),
    ]


def test_resets_stand_before_fresh_reload_and_cold_again_each_with_its_own_sentinel() -> None:
    made = plan()
    resets = {phase.name: phase.reset for phase in phases(made) if phase.reset != "none"}
    assert resets == {
        **{f"fresh-{run}": "all" for run in (1, 2, 3)},
        "reload-1": "local",
        "cold_again-1": "all",
    }
    sentinels = [p.sentinel_id for p in made.lives[0].phases if p.sentinel_id is not None]
    assert len(set(sentinels)) == len(sentinels) == 10


def test_hot_prompts_are_primed_in_the_wave_before_they_are_scored() -> None:
    hot = next(phase for phase in phases(plan(), concurrency=2) if phase.name == "hot-1")
    waves = sent(hot)
    assert waves[0] == ["replay/p1:prime", "replay/p2:prime"]
    assert waves[1] == ["replay/p1:scored", "replay/p2:scored"]


def test_no_filler_is_sent_twice() -> None:
    fillers = [
        request.prompt_id
        for phase in plan().lives[0].phases
        for wave in phase.waves
        for request in wave
        if request.role == "filler"
    ]
    assert fillers
    assert len(set(fillers)) == len(fillers)


def test_arms_send_the_same_requests() -> None:
    control, tested = plan().lives
    assert [p.waves for p in control.phases] == [p.waves for p in tested.phases]
    assert [p.sentinel_id for p in control.phases] == [p.sentinel_id for p in tested.phases]


def test_arms_with_equal_settings_share_a_life() -> None:
    made = plan("arms.simple.connector={kind: none}")
    assert [life.arms for life in made.lives] == [("control", "simple")]


def test_arms_that_differ_in_an_engine_setting_do_not_share_a_life() -> None:
    made = plan("arms.simple.connector={kind: none}", "arms.simple.engine={seed: 1}")
    assert [life.arms for life in made.lives] == [("control",), ("simple",)]


def test_phases_without_replay_have_one_pressure() -> None:
    names = [p.name for p in phases(plan(f"{WORKLOAD}.phases=[fresh, pressure, reload]"))]
    assert names == ["fresh-1", "fresh-2", "fresh-3", "pressure-1", "reload-1"]


@pytest.mark.parametrize("blocks", [24, 32, 64])
def test_full_recipe_plans_at_every_pool_size(blocks: int) -> None:
    made = plan(f"engine.gpu_blocks={blocks}", name="replay_cpu")
    pressure = next(phase for phase in phases(made) if phase.kind == "pressure")
    tokens = sum(len(made.prompts[r.prompt_id]) for wave in pressure.waves for r in wave)
    assert tokens >= 1.5 * (blocks - 1) * 128


def test_fault_is_planned_once_in_the_first_phase_that_fits() -> None:
    made = plan(
        "arms.simple.connector.faulty=true",
        "arms.simple.faults=[{mode: zero_block, phase: replay, prompt: p2}]",
        arm=["simple"],
    )
    faulty = [phase.name for phase in made.lives[0].phases if phase.faults]
    assert faulty == ["replay-1"]
    assert made.lives[0].phases[6].faults[0].prompt_id == "replay/p2"


SHORT = (f"{WORKLOAD}.prompts.blocks=[]", f"{WORKLOAD}.prompts.lengths_tokens=[100, 128]")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (SHORT, "no prompt can hit: .*smallest useful length is 129 tokens"),
        ((f"{WORKLOAD}.new_tokens=1024",), None),
        (("engine.max_model_len_tokens=1010",), r"longer than .*shorten it to 994"),
        (("engine.gpu_blocks=8",), "needs 8 blocks, and the GPU pool has 7 usable ones"),
        (("engine.block_tokens=64",), "contradicts model.geometry"),
        (("engine.dev_mode=false",), "needs cache resets .*reload, cold_again, more than one fres"),
        (("arms.simple.connector.faulty=true",), "nothing to damage"),
        (
            ("arms.simple.faults=[{mode: zero_block, phase: replay, prompt: p2}]",),
            "only a faulty twin can damage loads",
        ),
        (
            (
                "arms.simple.connector.faulty=true",
                "arms.simple.faults=[{mode: zero_block, phase: rplay, prompt: p2}]",
            ),
            "no phase 'rplay'; did you mean 'replay'",
        ),
        (
            (
                "arms.simple.connector.faulty=true",
                "arms.simple.faults=[{mode: zero_block, phase: replay, prompt: p9}]",
            ),
            "no prompt 'p9'; .*known: p1, p2, p3, p4",
        ),
        (("engine.gpu_blocks=null",), "pressure is sized from the GPU pool"),
        ((f"{WORKLOAD}.filler_lengths_tokens=[2048]",), "a filler of 2048 tokens"),
    ],
)
def test_what_cannot_work_is_refused_before_a_server_starts(
    sets: tuple[str, ...], message: str | None
) -> None:
    if message is None:
        plan(*sets)
        return
    with pytest.raises(UsageError, match=message):
        plan(*sets)


def test_refusal_names_file_and_line() -> None:
    with pytest.raises(
        UsageError, match=r"quickstart\.yaml:\d+: stages\.replay\.workload\.prompts"
    ):
        plan("engine.gpu_blocks=8")


def test_prompts_at_one_block_are_useful_to_the_native_connector_only() -> None:
    native = "arms.simple.connector.extends=connectors/native_host"
    with pytest.raises(UsageError, match="no prompt can hit"):
        plan(*SHORT, arm=["simple"])
    assert plan(*SHORT, native, arm=["simple"]).lives


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ((f"{WORKLOAD}.fresh_runs=2",), "claims logprobs with 2 fresh runs: a band needs 3"),
        (
            (
                "model={kind: path, path: /m, weights: dummy}",
                f"{WORKLOAD}.prompts={{lengths_tokens: [300]}}",
                f"{WORKLOAD}.filler_lengths_tokens=[300]",
            ),
            "claims identity and logprobs with dummy weights",
        ),
        (
            ("arms.simple.connector.host_pool_bytes_total=5MiB",),
            "arm simple: up to .* blocks are stored .* the host pool holds 19",
        ),
        ((f"{WORKLOAD}.concurrency=[8]", "engine.gpu_blocks=16"), "hot waves hold 1 to 1 requests"),
    ],
)
def test_what_proves_less_than_it_claims_is_warned_of(sets: tuple[str, ...], message: str) -> None:
    warnings = "\n".join(plan(*sets).warnings)
    assert re.search(message, warnings), warnings


def test_shipped_scenarios_claim_no_more_than_they_prove() -> None:
    for name in ("quickstart", "hybrid_cpu", "kimi_dcp8"):
        assert plan(name=name).warnings == ()

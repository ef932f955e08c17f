from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.scenario.load import load_scenario

Write = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_scenario(path)
    return str(caught.value).replace(f"{path}:", "")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu_blocks: 32", "gpu_blcks: 32", "6: engine.gpu_blcks: unknown key 'gpu_blcks'; did"),
        ("gpu_blocks: 32", "gpu_blocks: 1", "6: engine.gpu_blocks: 1 is wrong: should be greater"),
        ("kind: simple", "kind: simpel", "13: arms.tested.connector.kind: unknown kind 'simpel'"),
        ("      kind: simple\n", "", "12: arms.tested.connector: kind is missing; known kinds: n"),
        ("role: tested", "role: testing", "11: arms.tested.role: 'testing' is not known; did you"),
        ("64MiB", "64MB!", "14: arms.tested.connector.host_pool_bytes_total: '64MB!': write a n"),
        ("claims: [alive]", "claims: [alve]", "17: stages.replay.claims.0: 'alve' is not known"),
        ("claims: [alive]", "claims: []", "17: stages.replay.claims: [] is wrong"),
        ("title: A small scenario\n", "", "1: title: is missing; it says: one line for tables"),
        ("family: qwen3", "family: llama", "3: model.family: 'llama' is not known; known: qwen3"),
        ("{role: control}", "{role: control, faults: 3}", "9: arms.control.faults: 3 is wrong"),
        ("lengths_tokens: [300]", "seed: 1", "20: stages.replay.workload.prompts: give lengths"),
        (
            "{role: control}",
            "{role: control, engine: {dtyp: auto}}",
            "9: arms.control.engine.dtyp: unknown key 'dtyp'; did you mean 'dtype'",
        ),
        (
            "    claims: [alive]",
            "    claims: [alive]\n    engine:\n      seed: x",
            "19: stages.replay.engine.seed: 'x' is wrong",
        ),
        (
            "      host_pool_bytes_total: 64MiB",
            "      faulty: true\n      host_pool_bytes_total: 64MiB",
            "12: arms.tested.connector: faulty: true needs copies: host_memory",
        ),
    ],
)
def test_mistake_is_named_with_line_field_and_what_to_write(
    write: Write, old: str, new: str, expected: str
) -> None:
    text = write().read_text()
    assert old in text
    assert refusal(write(text.replace(old, new))).startswith(expected)


def test_all_mistakes_are_named_at_once(write: Write) -> None:
    text = write().read_text()
    wrong = text.replace("gpu_blocks: 32", "gpu_blocks: no").replace("[alive]", "[alve]")
    assert len(refusal(write(wrong)).splitlines()) == 2


def test_message_does_not_contain_union_tags(write: Write) -> None:
    text = write().read_text().replace("64MiB", "64MiB\n      mode: slow")
    assert "arms.tested.connector.mode: 'slow'" in refusal(write(text))

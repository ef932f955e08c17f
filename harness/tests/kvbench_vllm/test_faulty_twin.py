"""The faulty twin on a real server: one block of one prompt, while others load beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

CONNECTOR = {
    "kv_connector": "FaultyHostSimpleCPUOffloadConnector",
    "kv_connector_module_path": "kvb_faulty_simple",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 64 << 20},
}
PROMPTS = (1, 2, 3)


@pytest.mark.vllm
def test_fault_damages_exactly_the_named_prompt_and_is_journalled(
    serve: Callable[..., Any], prompt: Callable[..., list[int]], tmp_path: Path
) -> None:
    control, journal = tmp_path / "fault.json", tmp_path / "journal.jsonl"
    paths = {"KVBENCH_FAULT_FILE": str(control), "KVBENCH_FAULT_JOURNAL": str(journal)}

    def entries() -> list[dict[str, Any]]:
        text = journal.read_text(encoding="utf-8") if journal.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    with serve(CONNECTOR, **paths) as server, ThreadPoolExecutor(len(PROMPTS)) as pool:

        def load_all(name: str) -> list[Any]:
            server.reset(external=False)
            answers = pool.map(
                lambda each: server.complete(prompt(each), f"kvb-{name}-{each}-end"), PROMPTS
            )
            return list(answers)

        def switch(**fields: object) -> None:
            control.write_text(json.dumps(fields), encoding="utf-8")

        switch(mode="none")
        for each in PROMPTS:
            server.complete(prompt(each))
        clean = load_all("clean")
        assert [answer.cached_tokens for answer in clean] == [896] * 3
        assert entries() == []

        switch(mode="zero_block", block_index=1, request="-2-end", times=1)
        damaged = load_all("damaged")
        assert damaged[0] == clean[0]
        assert damaged[1].cached_tokens == 896
        assert damaged[1].top_logprobs != clean[1].top_logprobs
        assert damaged[2] == clean[2]
        (entry,) = entries()
        assert entry["applied"] is True
        assert entry["mode"] == "zero_block"
        assert entry["loaded_blocks"] == 7
        assert "kvb-damaged-2-end" in entry["request_ids"][0]

        assert load_all("spent") == clean
        assert len(entries()) == 1

        control.write_text('{"mode": "zero', encoding="utf-8")
        assert load_all("unreadable") == clean
        unreadable = entries()[1:]
        assert unreadable
        assert all(entry["applied"] is False for entry in unreadable)
        assert all("not JSON" in entry["error"] for entry in unreadable)

"""A spec of a round, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.workloads.gsm8k.spec import DataFiles, Spec


def spec(mode: str, **changes: Any) -> Spec:
    whole = Spec(
        url="http://127.0.0.1:1",
        model_id=mode,
        tokenizer=None,
        max_length_tokens=1000,
        task="gsm8k_own",
        data=DataFiles("json", "train.jsonl", "test.jsonl"),
        samples=4,
        shots=5,
        shots_kind="stock",
        concurrency=1,
        max_new_tokens=8,
        top_logprobs=1,
        seed=1234,
        request_limit_s=30,
        id_prefix="w001-s.",
    )
    return msgspec.structs.replace(whole, **changes)

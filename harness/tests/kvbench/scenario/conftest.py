from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

SCENARIO = """\
name: small
title: A small scenario
model: {kind: tiny, family: qwen3}
engine:
  kind: vllm
  gpu_blocks: 32
  env: {A: "1"}
arms:
  control: {role: control}
  tested:
    role: tested
    connector:
      kind: simple
      host_pool_bytes_total: 64MiB
stages:
  replay:
    claims: [alive]
    workload:
      kind: replay
      prompts: {lengths_tokens: [300]}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file under a folder of its own; without text, the small scenario."""

    def writer(text: str = SCENARIO, name: str = "scenarios/small.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return writer

"""The deterministic workload: the same token ids through every state of the caches."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from kvbench.scenario.base import StrictModel


class PhaseKind(StrEnum):
    """The phases of a replay workload, in the order in which they make sense."""

    FRESH = "fresh"
    HOT = "hot"
    PRESSURE = "pressure"
    REPLAY = "replay"
    RELOAD = "reload"
    COLD_AGAIN = "cold_again"


class Prompts(StrictModel):
    """Prompts as token ids, at, one below and one above block boundaries."""

    seed: int = Field(default=0, description="seed of the token ids")
    lengths_tokens: tuple[int, ...] = Field(
        default=(), description="explicit lengths, added to those made from blocks and offsets"
    )
    blocks: tuple[int, ...] = Field(
        default=(), description="lengths in hit-alignment blocks, each combined with every offset"
    )
    offsets_tokens: tuple[int, ...] = Field(
        default=(0,), description="tokens added to each length made from blocks"
    )
    shared_prefix_tokens: int = Field(
        default=0, ge=0, description="first tokens that all prompts share"
    )
    low_token_id: int = Field(default=100, ge=0, description="smallest token id used")
    high_token_id: int = Field(default=900, ge=1, description="one above the largest id used")

    @model_validator(mode="after")
    def _not_empty(self) -> Prompts:
        if not self.lengths_tokens and not self.blocks:
            raise ValueError("give lengths_tokens, or blocks with offsets_tokens")
        if self.low_token_id + 16 > self.high_token_id:
            raise ValueError("high_token_id must be at least 16 above low_token_id")
        return self


class ReplayWorkload(StrictModel):
    """Fresh, hot, pressure, replay, reload and cold again, each between two snapshots."""

    kind: Literal["replay"] = Field(description="deterministic replay of the same prompts")
    prompts: Prompts = Field(description="the prompts")
    new_tokens: int = Field(default=16, ge=1, le=1024, description="tokens generated per request")
    top_logprobs: int = Field(
        default=20, ge=1, le=20, description="log-probabilities per generated position"
    )
    concurrency: tuple[int, ...] = Field(
        default=(1,), min_length=1, description="the phases run once at each of these"
    )
    phases: tuple[PhaseKind, ...] = Field(
        default=tuple(PhaseKind), min_length=1, description="which phases, in this order"
    )
    fresh_runs: int = Field(default=3, ge=1, description="fresh runs; a band needs at least 3")
    hot_runs: int = Field(default=2, ge=1, description="GPU hits of each prompt")
    replay_runs: int = Field(
        default=2, ge=1, description="replays, each after a pressure of its own"
    )
    reload_runs: int = Field(default=1, ge=1, description="reloads, each after a reset")
    pressure_factor: float = Field(
        default=1.5, ge=1, description="filler tokens, as a multiple of the GPU pool"
    )
    filler_lengths_tokens: tuple[int, ...] = Field(
        default=(),
        description="lengths of the fillers of each pressure, where the geometry is not declared",
    )
    store_limit_s: float = Field(default=30, gt=0, description="longest wait for stores")
    reset_limit_s: float = Field(default=30, gt=0, description="longest time for a reset")
    drain_limit_s: float = Field(
        default=30, gt=0, description="longest wait for counters to reach what was sent"
    )

    @model_validator(mode="after")
    def _each_once(self) -> ReplayWorkload:
        for name, values in (("phases", self.phases), ("concurrency", self.concurrency)):
            if len(set(values)) != len(values):
                raise ValueError(f"{name}: each may be named once")
        if min(self.concurrency) < 1:
            raise ValueError("concurrency: each must be at least 1")
        return self

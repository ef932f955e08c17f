"""The KV-cache geometry that a model fragment declares, and that is checked at start.

A hit can only have lengths that the geometry allows; with an undeclared one every expected hit is
a range. Sizes are those that vLLM resolves for the declared topology.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvbench.scenario.base import Bytes, StrictModel

GroupKind = Literal["full_attention", "sliding_window", "chunked_local", "mamba", "mla", "scratch"]


class Group(StrictModel):
    """One KV cache group."""

    kind: GroupKind = Field(
        description="kind of the group; scratch groups are not prefix-cacheable"
    )
    block_tokens: int = Field(ge=1, description="block size of the group, in tokens")
    layers: int | None = Field(default=None, ge=1, description="layers in the group")
    window_tokens: int | None = Field(default=None, ge=1, description="window, if it has one")


class Geometry(StrictModel):
    """Groups, hash block and hit alignment of a model under its declared topology."""

    source: str = Field(description="where these numbers come from")
    groups: tuple[Group, ...] = Field(min_length=1, description="KV cache groups in vLLM's order")
    hash_block_tokens: int = Field(ge=1, description="tokens per block hash")
    hit_alignment_tokens: int = Field(ge=1, description="every hit is a multiple of this")
    kv_values_per_token: int | None = Field(
        default=None,
        ge=1,
        description="cached numbers per token over all layers and ranks (bytes = this x dtype)",
    )
    block_bytes: Bytes | None = Field(
        default=None,
        ge=1,
        description="bytes of one block over all layers and ranks, where the product does not hold",
    )

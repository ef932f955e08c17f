"""The connectors a scenario can name, one model a kind, and their capacities.

`--kv-offloading-size` and `cpu_bytes_to_use` are totals over ranks, while people think per rank
(vLLM #37160): a capacity is therefore always written with its scope, and printed as both.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvbench.scenario.base import Bytes, StrictModel

HOST_COPY_NOTE = "host-memory copy backend: timings mean nothing"


class NoConnector(StrictModel):
    """Prefix caching on the device only."""

    kind: Literal["none"] = Field(description="no connector")


class _Pool(StrictModel):
    host_pool_bytes_per_rank: Bytes | None = Field(
        default=None, ge=1, description="host memory of each rank"
    )
    host_pool_bytes_total: Bytes | None = Field(
        default=None, ge=1, description="host memory over all ranks"
    )
    copies: Literal["device", "host_memory"] = Field(
        default="device",
        description="host_memory: kvbench's copy backend for vLLM's CPU build; scheduler unchanged",
    )

    @model_validator(mode="after")
    def _one_capacity(self) -> _Pool:
        if (self.host_pool_bytes_per_rank is None) == (self.host_pool_bytes_total is None):
            raise ValueError("give host_pool_bytes_per_rank or host_pool_bytes_total, not both")
        return self

    def pool_bytes_total(self, ranks: int) -> int:
        """Capacity over all ranks, in bytes."""
        if self.host_pool_bytes_total is not None:
            return self.host_pool_bytes_total
        assert self.host_pool_bytes_per_rank is not None
        return self.host_pool_bytes_per_rank * ranks

    def pool_bytes_per_rank(self, ranks: int) -> int:
        """Capacity of one rank, in bytes."""
        return self.pool_bytes_total(ranks) // ranks


class SimpleConnector(_Pool):
    """vLLM's SimpleCPUOffloadConnector."""

    kind: Literal["simple"] = Field(description="SimpleCPUOffloadConnector")
    mode: Literal["eager", "lazy"] = Field(default="eager", description="when blocks are stored")
    faulty: bool = Field(
        default=False, description="the faulty twin, which can damage loads (host_memory only)"
    )

    @model_validator(mode="after")
    def _twin_is_host_memory(self) -> SimpleConnector:
        if self.faulty and self.copies != "host_memory":
            raise ValueError("faulty: true needs copies: host_memory")
        return self


class NativeConnector(_Pool):
    """vLLM's native OffloadingConnector."""

    kind: Literal["native"] = Field(description="OffloadingConnector")
    chunk_tokens: int | None = Field(
        default=None, ge=1, description="tokens of one offloaded chunk (its block_size)"
    )


Connector = Annotated[NoConnector | SimpleConnector | NativeConnector, Field(discriminator="kind")]

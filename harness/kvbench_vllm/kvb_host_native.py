"""Specs that let vLLM's native OffloadingConnector run on the CPU build.

Host-memory copy backend: timings mean nothing.

The native connector takes an out-of-tree spec by configuration, so nothing of vLLM is patched. The
trap guarded here is the chunk: one host chunk holds ``blocks_per_chunk`` device blocks per group,
and a transfer may begin or end in the middle of one.

Use: ``{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
{"spec_name": "HostOffloadingSpec", "spec_module_path": "kvb_host_native", ...}}``.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvb_host_memory import TIMINGS_NOTE, require_cpu_platform

require_cpu_platform("HostOffloadingSpec", "the native OffloadingConnector without a spec")

__all__ = ["TIMINGS_NOTE", "HostOffloadingSpec", "HostTieringSpec"]


class GroupBlocks(NamedTuple):
    """One group's share of a transfer: entry i of each tensor speaks of the same block."""

    group: int
    device_blocks: torch.Tensor
    chunks: torch.Tensor
    places: torch.Tensor
    """Which block of its chunk."""


def blocks_by_group(
    device: GPULoadStoreSpec, host_chunks: Sequence[int], blocks_per_chunk: int
) -> Iterator[GroupBlocks]:
    """Pair device blocks with places in host chunks, group by group.

    A group's first block sits ``first index % blocks_per_chunk`` places into its first chunk, so
    the number of chunks follows from both the count and that offset.
    """
    block_at = chunk_at = 0
    for group, (count, first) in enumerate(
        zip(device.group_sizes, device.block_indices, strict=True)
    ):
        if count == 0:
            continue
        offsets = torch.arange(count) + first % blocks_per_chunk
        chunk_count = int(offsets[-1]) // blocks_per_chunk + 1
        chunks = torch.tensor(host_chunks[chunk_at : chunk_at + chunk_count], dtype=torch.long)
        blocks = torch.tensor(device.block_ids[block_at : block_at + count], dtype=torch.long)
        yield GroupBlocks(
            group, blocks, chunks[offsets // blocks_per_chunk], offsets % blocks_per_chunk
        )
        block_at += count
        chunk_at += chunk_count
    if block_at != len(device.block_ids) or chunk_at != len(host_chunks):
        raise ValueError(
            f"transfer names {len(device.block_ids)} blocks in {len(host_chunks)} chunks,"
            f" but its groups account for {block_at} in {chunk_at}"
        )


class HostOffloadingWorker(OffloadingWorker):
    """Copies in the calling thread; a job is finished when its submission returns.

    ``host`` has one tensor per canonical cache tensor: ``[chunks, blocks per chunk, page bytes]``.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        host: list[torch.Tensor],
        region: SharedOffloadRegion | None = None,
    ) -> None:
        self.blocks_per_chunk = blocks_per_chunk
        self.refs = kv_caches.group_data_refs
        self.device = [
            cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            for cache in kv_caches.tensors
        ]
        self.host = host
        self.region = region
        self.finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec
    ) -> bool:
        """Device to host chunks."""
        self._transfer(job_id, src_spec, dst_spec, is_store=True)
        return True

    def submit_load(
        self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        """Host chunks to device."""
        self._transfer(job_id, dst_spec, src_spec, is_store=False)
        return True

    def _transfer(
        self, job_id: int, device: GPULoadStoreSpec, host: CPULoadStoreSpec, *, is_store: bool
    ) -> None:
        started = time.perf_counter()
        moved_bytes = 0
        for blocks in blocks_by_group(device, host.block_ids.tolist(), self.blocks_per_chunk):
            for ref in self.refs[blocks.group]:
                size = ref.page_size_bytes
                on_device = self.device[ref.tensor_idx]
                on_host = self.host[ref.tensor_idx]
                if is_store:
                    page = on_device[blocks.device_blocks, :size]
                    on_host[blocks.chunks, blocks.places, :size] = page
                else:
                    page = on_host[blocks.chunks, blocks.places, :size]
                    on_device[blocks.device_blocks, :size] = page
                moved_bytes += len(blocks.device_blocks) * size
        self.finished.append(
            TransferResult(
                job_id=job_id,
                success=True,
                transfer_size=moved_bytes,
                # vLLM divides by it.
                transfer_time=max(time.perf_counter() - started, 1e-9),
            )
        )

    def get_finished(self) -> list[TransferResult]:
        """Hand over each result once."""
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: every submitted job is done."""

    def shutdown(self) -> None:
        """Release the views before the region, or its memory map stays open."""
        self.host = []
        if self.region is not None:
            self.region.cleanup()
            self.region = None


class HostOffloadingSpec(CPUOffloadingSpec):
    """The native CPU tier with host-memory copies."""

    _worker: HostOffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Make this rank's worker once."""
        require_cpu_platform(type(self).__name__, "the native spec of vLLM")
        if self._worker is None:
            self._worker = self._make_worker(kv_caches)
        return self._worker

    def _make_worker(self, kv_caches: CanonicalKVCaches) -> HostOffloadingWorker:
        host = [
            torch.zeros(
                (self.num_chunks, self.blocks_per_chunk, cache.page_size_bytes), dtype=torch.int8
            )
            for cache in kv_caches.tensors
        ]
        return HostOffloadingWorker(kv_caches, self.blocks_per_chunk, host)


class HostTieringSpec(TieringOffloadingSpec):
    """The tiering spec with host-memory copies into the region that the lower tiers read."""

    _worker: HostOffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Make this rank's worker once; the canonical layout needs vLLM's own copies."""
        require_cpu_platform(type(self).__name__, "TieringOffloadingSpec")
        if self.config.canonical_layout:
            raise RuntimeError(
                "HostTieringSpec copies whole pages only;"
                " remove canonical_layout from kv_connector_extra_config"
            )
        if self._worker is None:
            self._worker = self._make_worker(kv_caches)
        return self._worker

    def _make_worker(self, kv_caches: CanonicalKVCaches) -> HostOffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        per_chunk = self.blocks_per_chunk
        host = [
            region.create_next_worker_view(cache.page_size_bytes * per_chunk).unflatten(
                1, (per_chunk, cache.page_size_bytes)
            )
            for cache in kv_caches.tensors
        ]
        return HostOffloadingWorker(kv_caches, per_chunk, host, region)

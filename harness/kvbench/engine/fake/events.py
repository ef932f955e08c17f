"""KV events in the form of vLLM 0.32: maps with a type, one batch a step.

Follows block_pool.py and simple_kv_offload/manager.py as captured from real servers. The traps: a
reset's event comes with the next step; the host tier of the native connector names neither tokens
nor a block size; a block has the same hash in both tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.engine.fake.hybrid import group_of, hash_of

DEVICE = "GPU"
HOST = "CPU"


class EventLog:
    """Collects the events of a step."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def take(self) -> list[dict[str, Any]]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def stored(
        self,
        medium: str,
        keys: Sequence[int],
        *,
        parent: int | None,
        tokens: Sequence[int],
        block_tokens: int,
        spec_kind: str | None,
        extra_keys: list[tuple[str, ...] | None] | None = None,
        locality: str | None = None,
    ) -> None:
        """Blocks can be found in a tier; `keys` and `parent` are block keys."""
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [hash_of(key) for key in keys],
            "parent_block_hash": None if parent is None else hash_of(parent),
            "token_ids": list(tokens),
            "block_size": block_tokens,
            "lora_id": None,
            "medium": medium,
            "lora_name": None,
        }
        if medium == DEVICE:
            event["extra_keys"] = extra_keys
        event["group_idx"] = group_of(keys[0])
        if spec_kind is not None:
            event["kv_cache_spec_kind"] = spec_kind
        if locality is not None:
            event["locality"] = locality
        self._events.append(event)

    def removed(self, medium: str, key: int, *, locality: str | None = None) -> None:
        """A block was evicted from a tier."""
        event: dict[str, Any] = {
            "type": "BlockRemoved",
            "block_hashes": [hash_of(key)],
            "medium": medium,
            "group_idx": group_of(key),
        }
        if locality is not None:
            event["locality"] = locality
        self._events.append(event)

    def cleared(self) -> None:
        """A tier forgot everything."""
        self._events.append({"type": "AllBlocksCleared"})

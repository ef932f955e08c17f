"""Turns what vLLM publishes about its cache blocks into plain maps, whatever generation it is of.

Two forms are on the road: maps with a `type` (vLLM 0.32) and arrays whose first element is the type
and whose tail may be cut off (older msgspec structs with `array_like`). Field names and their order
follow vllm/distributed/kv_events.py. The trap is a bad event inside a good batch: it must be shown
and must not cost its neighbours. Token ids shrink to their number and a digest, which is enough to
find the block of a known prompt again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

SEQUENCE_BYTES: Final = 8
END_OF_REPLAY: Final = b"\xff" * SEQUENCE_BYTES
FRAMES: Final = 3
RAW_BYTES: Final = 64
"""how much of something undecodable is kept"""

_STORED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
)
_REMOVED: Final = ("block_hashes", "medium", "group_idx", "locality", "ownership")
ARRAY_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "BlockStored": _STORED,
    "BlockRemoved": _REMOVED,
    "AllBlocksCleared": (),
}
"""Order of the fields in the array form; an older generation's is a prefix of it."""

_COPIED: Final[dict[str, type]] = {
    "block_size": int,
    "medium": str,
    "group_idx": int,
    "kv_cache_spec_kind": str,
    "locality": str,
    "ownership": str,
}
"""Fields that are recorded as they are, with their type; None is allowed in each."""

_UNDECODABLE: Final = (
    msgspec.DecodeError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)


class Batch(NamedTuple):
    """A decoded batch; `error` says why there is none."""

    events: tuple[dict[str, Any], ...]
    rank: int | None
    error: str | None = None


def sequence_of(frames: Sequence[bytes]) -> int | None:
    """Return the sequence number of `[topic, sequence, payload]`; None where that is no number."""
    if len(frames) != FRAMES or len(frames[1]) != SEQUENCE_BYTES or frames[1] == END_OF_REPLAY:
        return None
    return int.from_bytes(frames[1], "big")


def decode(payload: bytes) -> Batch:
    """Decode `[time, [event, ...], rank]`; never raises."""
    try:
        found = msgspec.msgpack.decode(payload)
        events, rank = _parts(found)
    except _UNDECODABLE as error:
        return Batch((), None, f"{type(error).__name__}: {error}")
    return Batch(tuple(_event_or_error(event) for event in events), rank)


def digest_of(token_ids: Sequence[int]) -> str:
    """Return a short digest of token ids: 16 hexadecimal digits."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=8).hexdigest()


def raw_words(data: bytes) -> str:
    """Return the beginning of `data` as hexadecimal digits."""
    return data[:RAW_BYTES].hex()


def _parts(found: Any) -> tuple[list[Any], int | None]:
    if isinstance(found, dict):
        events, rank = found.get("events"), found.get("data_parallel_rank")
    elif isinstance(found, list) and len(found) >= 2:
        events, rank = found[1], found[2] if len(found) > 2 else None
    else:
        raise TypeError(f"a batch is [time, events, rank], not {type(found).__name__}")
    if not isinstance(events, list):
        raise TypeError(f"the events of a batch are a list, not {type(events).__name__}")
    if rank is not None and not isinstance(rank, int):
        raise TypeError(f"the rank of a batch is a number, not {type(rank).__name__}")
    return events, rank


def _event_or_error(event: Any) -> dict[str, Any]:
    try:
        return _event(event)
    except _UNDECODABLE as error:
        found = {"type": None, "error": f"{type(error).__name__}: {error}"}
        return found | ({"raw": raw_words(event)} if isinstance(event, bytes) else {})


def _event(event: Any) -> dict[str, Any]:
    fields = _fields(event)
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise TypeError("an event has no type")
    found: dict[str, Any] = {"type": kind}
    if kind not in ARRAY_FIELDS:
        return found
    if kind != "AllBlocksCleared":
        found["block_hashes"] = [_hash(each) for each in _list(fields, "block_hashes")]
    if kind == "BlockStored":
        parent = fields.get("parent_block_hash")
        found["parent_block_hash"] = None if parent is None else _hash(parent)
        token_ids = _list(fields, "token_ids")
        found["tokens"] = len(token_ids)
        if token_ids:
            found["digest"] = digest_of(token_ids)
    for name, kept in _COPIED.items():
        if name not in fields:
            continue
        value = fields[name]
        if value is not None and (not isinstance(value, kept) or isinstance(value, bool)):
            raise TypeError(f"{name} is {type(value).__name__}, not {kept.__name__}")
        found[name] = value
    return found


def _fields(event: Any) -> dict[str, Any]:
    """Name the fields of either form; those that an array leaves out are absent."""
    if isinstance(event, dict):
        return dict(event)
    if isinstance(event, list) and event:
        kind = event[0]
        names = ARRAY_FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        return {"type": kind, **dict(zip(names, event[1:], strict=False))}
    raise TypeError(f"an event is a map or an array, not {type(event).__name__}")


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise TypeError(f"{name} is {type(value).__name__}, not a list")
    return value


def _hash(value: Any) -> int | str:
    """Return a block hash as JSON can hold it: a number, or the hexadecimal digits of bytes."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise TypeError(f"a block hash is a number or bytes, not {type(value).__name__}")

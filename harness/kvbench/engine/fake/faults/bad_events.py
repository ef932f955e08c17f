"""KV events that cannot be right (F24)."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault

Event = dict[str, Any]
_UNKNOWN_HASH: Final = 0xBAD0_BAD0_BAD0_BAD0
_NO_MSGPACK: Final = b"\xc1kvbench"
"""0xc1 is the one byte that MessagePack never uses"""


@fault("bad_events")
class BadEvents(Fault):
    """Published KV events are damaged: impossible group, medium, size or order, or garbage.

    `scratch_group` adds the event of a group that no prefix cache holds (`group_index`; default:
    the one after the last), `undecodable` adds a batch that is no MessagePack.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What is wrong."""

        what: Literal[
            "scratch_group",
            "wrong_medium",
            "wrong_block_size",
            "removed_before_stored",
            "undecodable",
        ] = "wrong_medium"
        group_index: int | None = None

    _highest_group = 0

    def on_events(self, engine: int, events: list[Event]) -> list[Event | bytes]:
        """Damage a batch that has something to damage."""
        stored = [event for event in events if event["type"] == "BlockStored"]
        self._highest_group = max(
            [self._highest_group, *(event.get("group_idx") or 0 for event in stored)]
        )
        if not stored or not self.fits(None, engine):
            return list(events)
        self.applied(engine=engine, what=self.options.what)
        return self._damaged(events, stored[0])

    def _damaged(self, events: list[Event], stored: Event) -> list[Event | bytes]:
        what = self.options.what
        if what == "undecodable":
            return [*events, _NO_MSGPACK]
        if what == "removed_before_stored":
            gone = {"type": "BlockRemoved", "block_hashes": [_UNKNOWN_HASH]}
            same = {name: stored.get(name) for name in ("medium", "group_idx")}
            return [{**gone, **same}, *events]
        if what == "scratch_group":
            group = self.options.group_index
            group = self._highest_group + 1 if group is None else group
            return [*events, {**stored, "group_idx": group, "kv_cache_spec_kind": "scratch"}]
        wrong: Event = {"medium": "TAPE"}
        if what == "wrong_block_size":
            wrong = {"block_size": stored["block_size"] + 1}
        return [{**event, **wrong} if event is stored else event for event in events]

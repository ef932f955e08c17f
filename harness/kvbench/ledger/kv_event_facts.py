"""The facts of a stream of KV events: what each tier of each engine held, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from kvbench.telemetry.kv_event_wire import digest_of

DEVICE: Final = "GPU"
HOST: Final = "CPU"
HOST_MEDIA: Final = frozenset({HOST, "STORAGE"})
"""Media of a connector's tiers; Mooncake writes them in lower case."""
MEDIA: Final = HOST_MEDIA | {DEVICE}
NO_MEDIUM: Final = "none"

Hash = int | str


class Tier(NamedTuple):
    """Blocks of one group in one tier of one engine."""

    engine: int
    medium: str
    group: int | None
    """None in the events of older vLLMs"""

    @property
    def is_host(self) -> bool:
        """True for a connector's tier."""
        return self.medium in HOST_MEDIA


class Shape(NamedTuple):
    """What events of one kind have in common, as far as a geometry can contradict it."""

    type: str
    tier: Tier
    block_tokens: int | None
    has_tokens: bool


class Sighting(NamedTuple):
    """How often something was seen in a window, and where first."""

    times: int
    line: int
    seq: int | None


AnomalyKind = Literal["removed_before_stored", "undecodable", "gap", "restart"]


class Anomaly(NamedTuple):
    """Something that is wrong by itself, whatever the geometry is."""

    kind: AnomalyKind
    window: str
    """the open window, or the last one before it; empty before the first"""
    engine: int
    line: int
    first_seq: int | None
    last_seq: int | None
    words: str


class Double(NamedTuple):
    """A block that was stored again in a connector's tier that still held it."""

    tier: Tier
    hash: Hash
    line: int
    block_tokens: int | None


class Run(NamedTuple):
    """Blocks that were stored with their tokens: enough to find them in a prompt."""

    hashes: tuple[Hash, ...]
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class WindowEvents:
    """What happened in one window; `held` and `peak_blocks` are as of its end."""

    id: str
    events: Mapping[tuple[str, Tier], int]
    """events by type and tier"""
    blocks: Mapping[tuple[str, Tier], int]
    """block hashes in them"""
    shapes: Mapping[Shape, Sighting]
    stored: Mapping[Tier, frozenset[Hash]]
    removed: Mapping[Tier, frozenset[Hash]]
    held: Mapping[Tier, frozenset[Hash]]
    """blocks that are surely there"""
    peak_blocks: Mapping[tuple[int, str], int]
    """by engine and medium: most distinct blocks of all groups that were surely there at once"""
    doubles: tuple[Double, ...]
    cleared: int
    lossy_engines: frozenset[int]
    """engines of which a batch is missing, in this window or before"""
    open_engines: frozenset[int]
    """engines whose host tier was cleared or not, nobody knows"""

    def blocks_of(self, event_type: str, *, host: bool) -> int:
        """Block hashes in all events of a type, in the connector's tiers or on the device."""
        return sum(
            count
            for (name, tier), count in self.blocks.items()
            if name == event_type and tier.is_host is host
        )


@dataclass(frozen=True, slots=True)
class KvEvents:
    """All facts of the stream of one life."""

    windows: Mapping[str, WindowEvents]
    """by window id, in order; the key "" is what came before the first"""
    anomalies: tuple[Anomaly, ...]
    batches: Mapping[int, int]
    """batches by engine, with those that could not be decoded"""
    media: tuple[str, ...]
    unknown_types: tuple[str, ...]
    runs: Mapping[tuple[int, int | None, Hash | None], tuple[Run, ...]]
    """by engine, group and parent block"""
    failed: str | None
    """why recording ended early"""

    def blocks_of_prompt(
        self, tokens: tuple[int, ...], *, engine: int, group: int | None, block_tokens: int
    ) -> tuple[Hash, ...]:
        """Hashes of the prompt's full blocks, from the first on, as far as events name them."""
        return tuple(_walk(self.runs, tokens, engine, group, block_tokens))


def _walk(
    runs: Mapping[tuple[int, int | None, Hash | None], tuple[Run, ...]],
    tokens: tuple[int, ...],
    engine: int,
    group: int | None,
    block_tokens: int,
) -> Iterator[Hash]:
    parent: Hash | None = None
    place = 0
    while True:
        found = [
            run
            for run in runs.get((engine, group, parent), ())
            if run.tokens == len(run.hashes) * block_tokens
            and place + run.tokens <= len(tokens)
            and digest_of(tokens[place : place + run.tokens]) == run.digest
        ]
        if not found:
            return
        longest = max(found, key=lambda run: run.tokens)
        yield from longest.hashes
        parent, place = longest.hashes[-1], place + longest.tokens

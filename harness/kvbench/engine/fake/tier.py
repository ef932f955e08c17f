"""What an engine core asks of a host tier, and the copies that take time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvbench.engine.fake.content import Content, garbage
from kvbench.engine.fake.hybrid import Layout

if TYPE_CHECKING:
    from kvbench.engine.fake.run import Run
    from kvbench.engine.fake.site import Site


@dataclass(slots=True)
class Found:
    """What a tier adds behind a local hit; pinned in the tier until it is loaded or let go."""

    tokens: int
    indices: list[list[int]]
    """per group, places in the table that are filled, ascending"""
    contents: list[list[Content]]
    """beside `indices`"""
    pins: list[int] = field(default_factory=list)
    claimed_tokens: int = 0
    """part of `tokens` that a fault claims on top; nothing backs it"""

    @property
    def blocks(self) -> int:
        """Blocks that are copied."""
        return sum(len(indices) for indices in self.indices)

    def claim(self, layout: Layout, run: Run, local_tokens: int, tokens: int) -> None:
        """Claims `tokens` instead, more than were found: what is added belongs to nobody."""
        for group in layout.cacheable:
            size = group.block_tokens
            first = (local_tokens + self.tokens) // size
            boundary = local_tokens + tokens
            for index in range(max(group.first_needed(boundary), first), boundary // size):
                self.indices[group.index].append(index)
                self.contents[group.index].append(garbage(run.keys[group.index][index]))
        self.claimed_tokens = tokens - self.tokens
        self.tokens = tokens


def nothing_found(layout: Layout) -> Found:
    """A miss."""
    return Found(0, [[] for _ in layout.groups], [[] for _ in layout.groups])


class Tier(Protocol):
    """A connector's scheduler side, called at the points where vLLM's scheduler calls it."""

    def find(self, run: Run, local_tokens: int, limit_tokens: int) -> Found:
        """What can be added behind the local hit, up to `limit_tokens` of the prompt; pinned."""

    def let_go(self, found: Found) -> None:
        """Not loaded after all."""

    def start_load(self, run: Run, found: Found) -> None:
        """The load is under way."""

    def end_load(self, run: Run, found: Found) -> None:
        """The blocks have arrived."""

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:
        """A step was scheduled (empty: an idle step): chooses what to store."""

    def copy(self) -> None:
        """The step's tokens are computed: takes the contents that are only known now."""

    def finish(self, run: Run) -> None:
        """The request has its last token, or was aborted, and still holds its blocks."""

    def end_step(self) -> None:
        """A step ended: sees transfers that are complete."""

    def has_pending(self) -> bool:
        """True while stores are queued or in flight; the engine keeps stepping."""

    def next_due_s(self) -> float | None:
        """When the next transfer can be complete, in the model's time."""

    def pending_blocks(self) -> int:
        """Blocks of stores that are not complete."""

    def used_blocks(self) -> int:
        """What the connector's gauge says."""

    def content_blocks(self) -> int:
        """Blocks that hold something that can be loaded."""

    def clear(self) -> None:
        """The external reset."""

    def labelled(self) -> Iterator[tuple[int, Content]]:
        """Keys and contents, the oldest first."""


class NoTier:
    """No connector."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def find(self, run: Run, local_tokens: int, limit_tokens: int) -> Found:  # noqa: ARG002
        """Finds nothing."""
        return nothing_found(self._layout)

    def let_go(self, found: Found) -> None:
        """Nothing is pinned."""

    def start_load(self, run: Run, found: Found) -> None:
        """Never called."""

    def end_load(self, run: Run, found: Found) -> None:
        """Never called."""

    def schedule(self, scheduled: Sequence[tuple[Run, int]]) -> None:
        """Stores nothing."""

    def copy(self) -> None:
        """Stores nothing."""

    def finish(self, run: Run) -> None:
        """Stores nothing."""

    def end_step(self) -> None:
        """Nothing is in flight."""

    def has_pending(self) -> bool:
        """Nothing is in flight."""
        return False

    def next_due_s(self) -> float | None:
        """Nothing is in flight."""
        return None

    def pending_blocks(self) -> int:
        """Nothing is in flight."""
        return 0

    def used_blocks(self) -> int:
        """There is no pool."""
        return 0

    def content_blocks(self) -> int:
        """There is no pool."""
        return 0

    def clear(self) -> None:
        """There is nothing to forget."""

    def labelled(self) -> Iterator[tuple[int, Content]]:
        """There is no content."""
        return iter(())


class StoreClock:
    """When a store is complete: at once, or some steps and its bytes later.

    Copies run one after another at `store_bytes_per_s`.
    """

    def __init__(self, site: Site) -> None:
        is_overlapped = site.settings.stores == "overlapped"
        self._site = site
        self.steps = 1 if is_overlapped else 0
        """further steps that a copy takes at least"""
        self._bytes_per_s = site.settings.store_bytes_per_s if is_overlapped else float("inf")
        self._free_at_s = 0.0

    def due_s(self, blocks: int) -> float:
        """When a store of so many blocks that starts now can be complete."""
        start = max(self._free_at_s, self._site.now_s)
        self._free_at_s = start + blocks * self._site.settings.block_bytes / self._bytes_per_s
        return self._free_at_s

    def is_complete(self, due_s: float, age_steps: int) -> bool:
        """Whether it is seen as complete at the end of this step."""
        return age_steps >= self.steps and due_s <= self._site.now_s

"""A request in flight and what the engine model asks of a tier."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvbench.oracle.pool import BlockPool


class Hit(NamedTuple):
    """Hit lengths at admission, in blocks."""

    local_blocks: int
    external_blocks: int


@dataclass(slots=True)
class Work:
    """A request in flight: its block table and how far each ledger of it has got.

    `total_tokens` counts the tokens that are computed: prompt + answer - 1.
    """

    keys: Sequence[int]
    prompt_tokens: int
    total_tokens: int
    table: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    labelled_blocks: int = 0
    stored_units: int = 0


class Tier(Protocol):
    """The connector's scheduler side, called at the points where vLLM's scheduler calls it."""

    def find(self, work: Work, local_blocks: int) -> int:
        """Blocks that the tier can add behind the local hit; pins them for `load`."""

    def load(self, work: Work) -> None:
        """The found blocks have arrived; `work.table` holds them."""

    def schedule(self, gpu: BlockPool, work: Work | None, scheduled_tokens: int) -> None:
        """A step was scheduled (`work` is None when no request runs): starts stores."""

    def finish(self, gpu: BlockPool, work: Work) -> None:
        """The request has its last token and still holds its blocks."""

    def end_step(self, gpu: BlockPool, *, drain: bool = False) -> None:
        """A step ended: sees transfers that are complete (`drain`: all of them)."""

    def has_pending(self) -> bool:
        """True while stores are queued or in flight; the engine keeps stepping."""

    def clear(self) -> None:
        """The external reset."""

    def contents(self) -> AbstractSet[int]:
        """Keys of all blocks that could be loaded."""

    def blank_blocks(self) -> int:
        """Blocks that can be filled before the tier has to evict."""


class NoTier:
    """No connector: nothing is stored or loaded."""

    def find(self, work: Work, local_blocks: int) -> int:  # noqa: ARG002 - Tier's signature
        """Blocks to add behind the local hit; pinned until `load`."""
        return 0

    def load(self, work: Work) -> None:
        """Never called: nothing was found."""

    def schedule(self, gpu: BlockPool, work: Work | None, scheduled_tokens: int) -> None:
        """Stores nothing."""

    def finish(self, gpu: BlockPool, work: Work) -> None:
        """Stores nothing."""

    def end_step(self, gpu: BlockPool, *, drain: bool = False) -> None:
        """Nothing is in flight."""

    def has_pending(self) -> bool:
        """True while stores are queued or in flight."""
        return False

    def clear(self) -> None:
        """Nothing to forget."""

    def contents(self) -> AbstractSet[int]:
        """Keys of all that could be loaded."""
        return frozenset()

    def blank_blocks(self) -> int:
        """Blocks that can be filled before the tier evicts."""
        return 0

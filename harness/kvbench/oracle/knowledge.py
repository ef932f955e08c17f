"""What the oracle still knows about a pool after requests whose order it could not know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Knowledge:
    """`is_known`: the content is certain. `is_ordered`: so is the order of eviction.

    Requests that run together finish in an order that nobody planned. As long as blank blocks (free
    and without content) cover all that is taken, nothing is evicted and the content stays certain;
    `blank_blocks` is a lower bound on them, kept only while the order is unknown.
    """

    is_known: bool = True
    is_ordered: bool = True
    blank_blocks: int = 0
    seen: set[int] = field(default_factory=set)

    @property
    def is_exact(self) -> bool:
        """True when content and order of eviction are certain."""
        return self.is_known and self.is_ordered

    def forget_order(self, blank_blocks: int) -> None:
        """From here on the order is unknown; `blank_blocks` counts the blanks at this moment."""
        if self.is_ordered:
            self.is_ordered = False
            self.blank_blocks = blank_blocks

    def covers(self, taken_blocks: int) -> bool:
        """True when so many blocks can be taken without evicting anything."""
        return self.is_known and taken_blocks <= self.blank_blocks

    def spend(self, taken_blocks: int, returned_blocks: int) -> None:
        """Books blocks taken and returned blank while the order is unknown."""
        if not self.covers(taken_blocks):
            self.is_known = False
        self.blank_blocks += returned_blocks - taken_blocks

    def restart(self) -> None:
        """After a reset: no content, and blank blocks have no order that matters."""
        self.is_known = self.is_ordered = True
        self.blank_blocks = 0
        self.seen.clear()

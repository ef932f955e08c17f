"""What the model sees of a request: the contents of its block tables, folded, and the open tail.

The state is a function of the contents alone, never of how they came there: a prefix that was
computed, hit on the device or loaded from the host gives the same bits, unless a block is wrong.
"""

from __future__ import annotations

from collections import deque

from kvbench.engine.fake.content import Content, mix
from kvbench.engine.fake.hybrid import Group, Layout


class FullView:
    """Full attention: every block counts, in order."""

    __slots__ = ("state", "topics")

    def __init__(self, seed: int) -> None:
        self.state = seed
        self.topics: list[int] = []

    def push(self, content: Content) -> None:
        """The next block is complete."""
        self.state = mix(self.state, content.digest)
        self.topics.append(content.topic)


class WindowView:
    """The last blocks count: a window, or the one state of a recurrent layer."""

    __slots__ = ("_digests", "_seed", "topics")

    def __init__(self, seed: int, blocks: int) -> None:
        self._seed = seed
        self._digests: deque[int] = deque(maxlen=blocks)
        self.topics: deque[int] = deque(maxlen=blocks)

    @property
    def state(self) -> int:
        """Fold over the blocks in sight."""
        state = self._seed
        for digest in self._digests:
            state = mix(state, digest)
        return state

    def push(self, content: Content) -> None:
        """The next block is complete."""
        self._digests.append(content.digest)
        self.topics.append(content.topic)


View = FullView | WindowView


def make_view(group: Group, seed: int) -> View:
    """The view of a group; `seed` is the model's."""
    if group.kind == "full":
        return FullView(mix(seed, group.index))
    return WindowView(mix(seed, group.index), group.window_blocks if group.kind == "window" else 1)


class Context:
    """State of one request up to `position_tokens`, the end of the last complete unit."""

    __slots__ = ("_seed", "late_from_tokens", "pending", "position_tokens", "soft_nats", "views")

    def __init__(self, layout: Layout, seed: int) -> None:
        self._seed = seed
        self.views = [make_view(group, seed) for group in layout.cacheable]
        self.position_tokens = 0
        self.pending = 0
        """chain over units that no complete block covers yet"""
        self.soft_nats = 0.0
        self.late_from_tokens: list[int] = []
        """generated tokens from which on a block in sight is another; ascending"""

    def push(self, index: int, content: Content, *, generated_tokens: int) -> None:
        """The next block of a cacheable group, to an answer that has so many tokens already."""
        late = content.late_tokens
        if late is not None and late > generated_tokens:
            self.late_from_tokens = sorted([*self.late_from_tokens, late])
        self.soft_nats += content.soft_nats
        self.views[index].push(content.at(generated_tokens))

    @property
    def state(self) -> int:
        """Fold over all groups."""
        if len(self.views) == 1:
            return self.views[0].state
        state = self._seed
        for view in self.views:
            state = mix(state, view.state)
        return state

    def topic_for(self, digest: int, first_token: int) -> int:
        """The topic in which a position speaks: of the last block, or of a hashed one in sight.

        Without any block, that of the prompt's first token.
        """
        topics = self.views[(digest >> 40) % len(self.views)].topics if self.views else ()
        if not topics:
            return mix(self._seed, first_token)
        if digest >> 32 & 1:
            return topics[-1]
        return topics[(digest >> 48) % len(topics)]

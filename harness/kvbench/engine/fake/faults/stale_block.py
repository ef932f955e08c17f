"""F02: a block arrives with the content of another prompt, or with an older one under its key."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbench.engine.fake.content import Content, mix
from kvbench.engine.fake.faults.base import Fault, Load, fault

_EARLIER = 0xEA121E12


@fault("stale_block")
class StaleBlock(Fault):
    """Loads a block of another prompt, or what the block was before weights or prompt changed.

    `source: other_prompt` takes the oldest block of another prompt in the tier and does nothing
    where there is none; `earlier` keeps key and topic and changes the content.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Where the content comes from."""

        source: Literal["other_prompt", "earlier"] = "other_prompt"
        donor: int = 0
        """which other topic, in order of age in the tier; the last one where there are fewer"""

    def on_load(self, load: Load) -> None:
        """Replaces one block."""
        index = self.index_in(len(load.contents))
        if index is None or not self.fits(load.request_id, load.engine):
            return
        right = load.contents[index]
        if self.options.source == "earlier":
            load.contents[index] = Content(mix(right.digest, _EARLIER), right.topic)
        else:
            foreign = [content for content in load.foreign() if content.topic != right.topic]
            if not foreign:
                return
            topics = list(dict.fromkeys(content.topic for content in foreign))
            topic = topics[min(self.options.donor, len(topics) - 1)]
            load.contents[index] = next(c for c in foreign if c.topic == topic)
        self.applied(load.request_id, block=index, source=self.options.source)

"""What stands in a block of the fake engine's cache, and the arithmetic that chains blocks.

Each content is made from everything before it, so one wrong block changes every later block and
every answer: in a real engine corruption may hide, here it must show. The arithmetic is 64-bit
integers and BLAKE2b, never `hash`, so that answers are equal on every machine and Python version.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

MASK = (1 << 64) - 1
TOKEN_BYTES = 4


def mix(state: int, value: int) -> int:
    """Chain a 64-bit value onto a 64-bit state; the order counts (two rounds of SplitMix64)."""
    x = (state ^ (value * 0x9E3779B97F4A7C15)) & MASK
    x = ((x ^ (x >> 31)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 29)


def hash_tokens(tokens: Sequence[int], size: int) -> list[int]:
    """64-bit hashes of the full pieces of `size` tokens; the rest is left out."""
    data = array("I", tokens).tobytes()
    width = TOKEN_BYTES * size
    return [
        int.from_bytes(blake2b(data[start : start + width], digest_size=8).digest(), "little")
        for start in range(0, len(tokens) // size * width, width)
    ]


def hash_text(text: str) -> int:
    """64-bit hash of a text (a cache salt)."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Content(msgspec.Struct, frozen=True, gc=False):
    """The content of one cache block."""

    digest: int
    """64 bit: of all tokens up to the block's end, and of every wrong block on the way"""
    topic: int
    """tag of the prompt whose first block it follows; answers speak in the topics they read"""
    soft_nats: float = 0.0
    """shifts log-probabilities of answers that read it, without changing their order"""
    late_tokens: int | None = None
    """right for the first so many generated tokens, then `late_digest`; None: for ever"""
    late_digest: int = 0

    def at(self, generated_tokens: int) -> Content:
        """What it is to an answer that has so many tokens already."""
        if self.late_tokens is None or generated_tokens < self.late_tokens:
            return self
        return Content(self.late_digest, self.topic, self.soft_nats)


BLANK = Content(digest=0, topic=0)
"""What a block holds that nothing was ever written to."""


def garbage(seed: int) -> Content:
    """A content that belongs to no prompt; equal seeds give equal ones."""
    return Content(digest=mix(seed, 0xBADB10C), topic=mix(seed, 0xBAD70B1C))

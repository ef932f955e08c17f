"""The fake model: from the state of a context to a token and its log-probabilities.

The spread is that of a small real model (top-1 about -1.85 nats, top-2 -3.3, top-20 -4.8), so that
checks of log-probabilities meet the numbers they were made for.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from math import gcd

from kvbench.engine.fake.content import mix
from kvbench.engine.fake.noise import Noise
from kvbench.engine.fake.request import TokenOut
from kvbench.engine.fake.settings import FakeSettings

TOPIC_TOKENS = 64
"""token ids that one topic owns; also the most candidates that a position has"""
CANDIDATES = 20
BEST_NATS = -1.85
SECOND_NATS = -3.3
LAST_NATS = -4.8
_SPREAD_NATS = 0.3
_STEP_NATS = (SECOND_NATS - LAST_NATS) / (CANDIDATES - 2)
_UNIT = 1 / 65_536


class FakeModel:
    """Samples greedily; equal states give equal tokens, whatever was asked for beside them."""

    def __init__(self, settings: FakeSettings) -> None:
        if settings.vocabulary_tokens < TOPIC_TOKENS:
            raise ValueError(f"vocabulary_tokens must be at least {TOPIC_TOKENS}")
        self.seed = mix(settings.seed, 0x5EED)
        self.noise = Noise(
            settings.noise_logprob_nats, settings.noise_tie_share, settings.noise_shapes
        )
        self._vocabulary = settings.vocabulary_tokens
        wanted = (3 + 2 * i for i in range(settings.vocabulary_tokens))
        self._strides = [n for n in wanted if gcd(n, self._vocabulary) == 1][:1024]

    def topic_ids(self, topic: int) -> list[int]:
        """The token ids that a topic owns."""
        return [self._token(mix(topic, self.seed), i) for i in range(TOPIC_TOKENS)]

    def sample(
        self, digest: int, topic: int, *, top: int, shape: int, soft_nats: float = 0.0
    ) -> TokenOut:
        """The next token of a context; `top` log-probabilities with it, `TOPIC_TOKENS` at most."""
        owner = mix(topic, self.seed)
        if not top and not self.noise and not soft_nats:
            return TokenOut(self._token(owner, digest & 63), _rounded(_best(digest)), [])
        count = min(max(top, CANDIDATES), TOPIC_TOKENS)
        values = self._values(digest, count)
        if self.noise:
            jitter = self.noise.jitter(digest, shape, count)
            values = [value + shift for value, shift in zip(values, jitter, strict=True)]
        if soft_nats:
            shift = soft_nats if digest >> 63 else -soft_nats
            values = [value + shift for value in values]
        order = sorted(range(count), key=values.__getitem__, reverse=True)
        step = (digest >> 6 & 31) * 2 + 1
        kept = order[: max(top, 1)]
        rounded = struct.unpack(
            f"{len(kept)}f", struct.pack(f"{len(kept)}f", *(values[rank] for rank in kept))
        )
        ids = [self._token(owner, digest + rank * step & 63) for rank in kept]
        best: list[tuple[int, float | None]] = list(zip(ids, rounded, strict=True))
        return TokenOut(ids[0], rounded[0], best[:top])

    def _token(self, owner: int, index: int) -> int:
        """Token `index` of 64 distinct ones: the stride is coprime to the vocabulary."""
        stride = self._strides[(owner >> 32) % len(self._strides)]
        return (owner + index * stride) % self._vocabulary

    def _values(self, digest: int, count: int) -> list[float]:
        """Log-probabilities by rank, falling."""
        seed = digest.to_bytes(8, "little")
        data = b"".join(blake2b(seed + bytes([p])).digest() for p in range(-(-2 * count // 64)))
        numbers = struct.unpack(f"<{len(data) // 2}H", data)
        best = _best(digest)
        value = SECOND_NATS + _SPREAD_NATS * (numbers[1] * _UNIT * 2 - 1)
        if numbers[0] * _UNIT < self.noise.tie_share:
            # A tie: the two best are closer than the noise.
            value = best - self.noise.logprob_nats * numbers[1] * _UNIT
        values = [best, value]
        for rank in range(2, count):
            value -= _STEP_NATS * (0.5 + numbers[rank] * _UNIT)
            values.append(value)
        return values


def _best(digest: int) -> float:
    return BEST_NATS + _SPREAD_NATS * ((digest >> 16 & 0xFFFF) * _UNIT * 2 - 1)


def _rounded(value: float) -> float:
    """To float32, as a server's answers are."""
    number: float = struct.unpack("f", struct.pack("f", value))[0]
    return number

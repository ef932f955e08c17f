"""Noise of a batch: what another shape of the step does to log-probabilities.

On a real GPU the kernels that run depend on who runs beside and on how much of a prompt is
computed, and so do the last bits. Equal shapes give equal bits; ties that the noise turns over give
another token, and from there the answers part as they do in vLLM.
"""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist
from typing import Literal

from kvbench.engine.fake.content import mix

_STEPS = 4096


class Noise:
    """Jitter of candidates, N(0, `logprob_nats`), from a hash of the position and the shape."""

    def __init__(
        self,
        logprob_nats: float,
        tie_share: float,
        shapes: Literal["batch", "batch_and_length"],
    ) -> None:
        self.logprob_nats = logprob_nats
        self.tie_share = tie_share
        self._has_length = shapes == "batch_and_length"
        normal = NormalDist()
        self._quantiles = (
            [normal.inv_cdf((i + 0.5) / _STEPS) * logprob_nats for i in range(_STEPS)]
            if logprob_nats > 0
            else []
        )

    def __bool__(self) -> bool:
        return self.logprob_nats > 0

    def shape(self, batch: int, prefill_tokens: int) -> int:
        """The shape of a step: requests in it, and tokens of this prompt that were computed."""
        return mix(batch, prefill_tokens if self._has_length else 0)

    def jitter(self, digest: int, shape: int, count: int) -> list[float]:
        """Nats to add to each of `count` candidates."""
        seed = mix(digest, shape).to_bytes(8, "little")
        data = b"".join(
            blake2b(seed + bytes([part])).digest() for part in range(-(-2 * count // 64))
        )
        return [
            self._quantiles[int.from_bytes(data[2 * i : 2 * i + 2], "little") % _STEPS]
            for i in range(count)
        ]

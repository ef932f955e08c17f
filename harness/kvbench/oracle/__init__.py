"""Expected prefix-cache hits per request and tier, from a model of vLLM's block pools.

Pure: no clock, no network, no vLLM. The rules were read from vLLM 0.32 and are tested against hits
that were measured on it (harness/tests/kvbench/oracle_truth).
"""

from __future__ import annotations

from kvbench.oracle.geometry import (
    CacheGeometry,
    Expected,
    GroupGeometry,
    TierModel,
    TokenRange,
    max_hit_tokens,
)
from kvbench.oracle.predict import Oracle

__all__ = [
    "CacheGeometry",
    "Expected",
    "GroupGeometry",
    "Oracle",
    "TierModel",
    "TokenRange",
    "max_hit_tokens",
]

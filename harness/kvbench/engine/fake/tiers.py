"""The host tiers by name."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.engine.fake.pools import DevicePool
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import NoTier, Tier
from kvbench.engine.fake.tier_lazy import LazyTier
from kvbench.engine.fake.tier_native import NativeTier
from kvbench.engine.fake.tier_simple import EagerTier


def make_tier(site: Site, device: DevicePool) -> Tier:
    """The host tier that the settings name."""
    kinds: dict[str, Callable[[Site, DevicePool], Tier]] = {
        "simple_eager": EagerTier,
        "simple_lazy": LazyTier,
        "native": NativeTier,
    }
    kind = site.settings.tier
    return kinds[kind](site, device) if kind != "none" else NoTier(site.layout)

"""What the plan says about a life's cache: geometry, connector, and the size of the host tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from kvbench.checks.memo import remembered
from kvbench.expectations import bytes_of_block, tier_model
from kvbench.ledger.facts import Ledger, Window
from kvbench.ledger.kv_event_facts import KvEvents, WindowEvents
from kvbench.oracle import TierModel
from kvbench.scenario.connectors import Connector, NoConnector, SimpleConnector
from kvbench.scenario.engines import ServedEngine, parse_engine
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.resolve import geometry_under

EMITS_NO_HOST_EVENTS: Final = frozenset({"LMCacheMPConnector", "ExampleConnector"})
"""Connector classes that publish nothing about their tiers: LMCache's was measured, vLLM's
ExampleConnector has no events at all."""

_CONNECTOR: TypeAdapter[Connector] = TypeAdapter(Connector)


@dataclass(frozen=True, slots=True)
class Cache:
    """The declared cache of one life."""

    geometry: Geometry | None
    engine: ServedEngine
    connector: Connector
    connector_class: str | None
    """as the engine says it, or as it was asked for"""

    @property
    def tier(self) -> TierModel | None:
        """The connector's tier; None where the geometry is not declared."""
        if self.geometry is None or isinstance(self.connector, NoConnector):
            return None
        return tier_model(self.geometry, self.engine, self.connector)

    @property
    def block_bytes(self) -> int | None:
        """Bytes of one block over all layers and ranks."""
        return None if self.geometry is None else bytes_of_block(self.geometry, self.engine)

    @property
    def host_capacity_blocks(self) -> int | None:
        """Blocks that the host tier of one engine can hold; SimpleCPU's null block is none."""
        tier = self.tier
        if tier is None or tier.host_blocks is None:
            return None
        return tier.host_blocks - isinstance(self.connector, SimpleConnector)

    @property
    def has_single_group(self) -> bool:
        """True for a model whose blocks are all alike."""
        return self.geometry is not None and len(self.geometry.groups) == 1

    @property
    def emits_host_events(self) -> bool:
        """False for a connector that publishes nothing about its tier, by design."""
        return self.connector_class not in EMITS_NO_HOST_EVENTS


@remembered
def cache_of(ledger: Ledger, life_id: str) -> Cache | None:
    """The cache of a life; None for a life without a plan."""
    life = ledger.life(life_id)
    if life is None or life.planned is None:
        return None
    engine = parse_engine(life.planned.engine)
    declared = ledger.scenario.model.geometry if ledger.scenario is not None else None
    settings = life.planned.asked
    if life.ready is not None and "connector" in life.ready[1].effective:
        settings = life.ready[1].effective
    found = settings.get("connector")
    return Cache(
        geometry=geometry_under(declared, engine),
        engine=engine,
        connector=_CONNECTOR.validate_python(life.planned.connector),
        connector_class=str(found) if found is not None else None,
    )


def stream_of(ledger: Ledger, window: Window) -> KvEvents | None:
    """The events of a window's life; None where none were recorded."""
    return (ledger.kv_events or {}).get(window.life)


def events_of(ledger: Ledger, window: Window) -> WindowEvents | None:
    """The events of one window; None where none were recorded."""
    stream = stream_of(ledger, window)
    return stream.windows.get(window.id) if stream is not None else None


def artifact(window: Window, line: int) -> str:
    """Place in the stream of a window's life, as evidence."""
    return f"artifacts/{window.life}/kv_events.jsonl:{line}"

"""Waits until a connector has stored what it was given: a condition with a deadline.

A store is still under way when its request has been answered, so a reload measured too early proves
nothing. Gauges are written by engine steps: those of an idle engine can be stale, and only a
further request (a declared nudge) refreshes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbench import clock
from kvbench.events import Sample
from kvbench.scenario.connectors import Connector, SimpleConnector
from kvbench.telemetry.metrics import POLL_S, HasMetrics, busy, read, total

QUIET_POLLS: Final = 4
"""equal pages in a row that count as "nothing moves any more" """
STALE_S: Final = 2.0
"""an idle engine that shows no change for so long has to be nudged"""
NUDGES: Final = 3


class StoreWait(NamedTuple):
    """The end of a wait; `needs_nudge`: only a further request can refresh the gauges.

    `is_unreadable`: the page has none of the series that would tell.
    """

    condition: str
    reached: bool
    waited_s: float
    needs_nudge: bool
    detail: str
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """When stores of a connector are done: gauges at zero, counters that stand still."""

    zero: tuple[str, ...] = ()
    still: tuple[str, ...] = ()

    def words(self) -> str:
        """Say it for the record."""
        parts = ["running = waiting = 0"]
        parts += [f"{name} = 0" for name in self.zero]
        if self.still:
            parts.append(f"{', '.join(self.still)} unchanged over {QUIET_POLLS} polls")
        return " and ".join(parts)

    def lacking(self, samples: Sequence[Sample]) -> list[str]:
        """Name what is not yet so, apart from what must stand still."""
        found = busy(samples)
        for name in self.zero:
            value = total(samples, name)
            if value is None or value > 0:
                found.append(f"{name} {'n/a' if value is None else f'{value:g}'}")
        return found


RULES: Final[dict[tuple[str, str | None], _Rule]] = {
    ("none", None): _Rule(),
    # In vLLM 0.32 the engine steps until nothing is pending, and the gauge arrives with the update
    # that finishes the last store; outcomes count boundary hand-offs only: no condition.
    ("simple", "eager"): _Rule(zero=("simple_pending_store_blocks",)),
    # Lazy stores begin when the free list runs low; their outcomes are not counted.
    ("simple", "lazy"): _Rule(zero=("simple_pending_store_blocks",)),
    # vLLM keeps stepping while a store is under way, so bytes that stand still on an idle engine
    # are all that will come.
    ("native", None): _Rule(still=("native_store_bytes",)),
}


def wait(
    client: HasMetrics, connector: Connector, *, limit_s: float, nudge: Callable[[], None]
) -> StoreWait:
    """Wait until `connector` has stored what it is going to; nudges at most `NUDGES` times."""
    mode = connector.mode if isinstance(connector, SimpleConnector) else None
    start_s = clock.monotonic_s()
    nudges = 0
    while True:
        left_s = limit_s - (clock.monotonic_s() - start_s)
        waited = wait_for_stores(client, connector.kind, mode, left_s)
        if waited.reached or not waited.needs_nudge or nudges >= NUDGES:
            break
        if waited.is_unreadable and nudges:
            break  # a request came and went, and the series still is not there
        nudge()
        nudges += 1
    said = [f"{nudges} nudges"] if nudges else []
    said += [waited.detail] if waited.detail else []
    return waited._replace(waited_s=clock.monotonic_s() - start_s, detail="; ".join(said))


def wait_for_stores(
    client: HasMetrics, connector_kind: str, mode: str | None, limit_s: float
) -> StoreWait:
    """Wait without sending anything; for a connector without a rule, until the engine is idle.

    `needs_nudge`: not reached, and on an idle engine nothing has moved for `STALE_S` seconds, as
    when a gauge is stale or was never published.
    """
    rule = RULES.get((connector_kind, mode)) or RULES.get((connector_kind, None)) or _Rule()
    start_s = clock.monotonic_s()
    moved_s, quiet_polls = start_s, 0
    before: tuple[float | None, ...] | None = None
    while True:
        samples = read(client.metrics_page()).samples
        lacking = rule.lacking(samples)
        values = tuple(total(samples, name) for name in (*rule.still, *rule.zero))
        now_s = clock.monotonic_s()
        quiet_polls = quiet_polls + 1 if values == before else 0
        if values != before:
            moved_s, before = now_s, values
        if not lacking and (quiet_polls >= QUIET_POLLS or not rule.still):
            return StoreWait(rule.words(), True, now_s - start_s, False, "")
        is_stale = bool(lacking) and not busy(samples) and now_s - moved_s >= STALE_S
        if is_stale or now_s - start_s >= limit_s:
            detail = "; ".join(lacking) or "counters still move"
            is_unreadable = bool(values) and all(value is None for value in values)
            return StoreWait(rule.words(), False, now_s - start_s, is_stale, detail, is_unreadable)
        clock.sleep_s(POLL_S)

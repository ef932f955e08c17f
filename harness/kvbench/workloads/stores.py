"""Waiting until a connector has stored what it was given: a condition with a deadline, no sleep.

Gauges of an idle engine go stale, because they are written by engine steps. So the wait may send a
declared nudge: a request shorter than any block, whose role is written in the record.
"""

from __future__ import annotations

from kvbench.scenario.connectors import Connector, NoConnector
from kvbench.telemetry import stores
from kvbench.workloads.window import Load, Window

NUDGE_TOKENS = tuple(range(100, 108))


def wait_for_stores(window: Window, connector: Connector, limit_s: float) -> None:
    """Wait until nothing is waiting to be stored; file the condition and whether it was reached."""
    if isinstance(connector, NoConnector):
        return
    if window.life.stores_unreadable is not None:
        # An older vLLM never shows it; waiting for it in every phase would take minutes.
        window.waited(
            window.life.stores_unreadable, reached=False, waited_s=0.0, detail="n/a in this life"
        )
        return

    def nudge() -> None:
        window.send([Load("nudge", NUDGE_TOKENS, "nudge", new_tokens=1, top_logprobs=1)])

    waited = stores.wait(window, connector, limit_s=limit_s, nudge=nudge)
    window.waited(
        waited.condition, reached=waited.reached, waited_s=waited.waited_s, detail=waited.detail
    )
    if waited.is_unreadable and not waited.reached:
        window.life.stores_unreadable = waited.condition

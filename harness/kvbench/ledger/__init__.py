"""The ledger: a record turned into facts per life, window, engine and prompt."""

from __future__ import annotations

from kvbench.ledger.build import load
from kvbench.ledger.counters import Deltas
from kvbench.ledger.facts import Ledger, Life, Request, Reset, Seal, Window

__all__ = ["Deltas", "Ledger", "Life", "Request", "Reset", "Seal", "Window", "load"]

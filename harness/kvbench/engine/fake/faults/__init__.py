"""The fault models of the self-test, one small file a kind; importing this registers them all."""

from __future__ import annotations

import importlib
import pkgutil

from kvbench.engine.fake.faults.base import (
    ActiveFaults,
    EngineDeath,
    Fault,
    Load,
    NoOptions,
    Store,
    fault,
    registered,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ActiveFaults",
    "EngineDeath",
    "Fault",
    "Load",
    "NoOptions",
    "Store",
    "fault",
    "registered",
]

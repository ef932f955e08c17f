"""kvbench: benchmark and accuracy validation for vLLM's KV-cache offload connectors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kvbench")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

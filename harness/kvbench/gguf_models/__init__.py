"""Real small models without a model hub: GGUF files that Python packages carry, as checkpoints."""

from __future__ import annotations

from kvbench.gguf_models.checkpoint import GgufCheckpoint, build, folder_name
from kvbench.gguf_models.package import Source

__all__ = ["GgufCheckpoint", "Source", "build", "folder_name"]

"""Tiny checkpoints with random weights: a real model to serve, without a download."""

from __future__ import annotations

from kvbench.tiny.checkpoint import TinyCheckpoint, build
from kvbench.tiny.families import known_families

__all__ = ["TinyCheckpoint", "build", "known_families"]

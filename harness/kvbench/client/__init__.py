"""Talks HTTP with a server under test: completions with log-probabilities, resets, pages."""

from __future__ import annotations

from kvbench.client.answers import Answer, Completion, ErrorKind
from kvbench.client.http import RESET_EXTERNAL_QUERY, RESET_PATH, Client, ResetAnswer, Watch

__all__ = [
    "RESET_EXTERNAL_QUERY",
    "RESET_PATH",
    "Answer",
    "Client",
    "Completion",
    "ErrorKind",
    "ResetAnswer",
    "Watch",
]

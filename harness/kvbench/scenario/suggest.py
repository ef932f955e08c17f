"""What to write instead: known names, the likely one first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: object, known: Iterable[object]) -> str:
    """Return `did you mean 'a'? known: a, b, c`, without the question when nothing is close."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(wrong), names, n=1)
    question = f"did you mean {close[0]!r}? " if close else ""
    return f"{question}known: {', '.join(names) or 'none'}"

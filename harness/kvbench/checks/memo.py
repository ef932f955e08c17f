"""Remembers what was computed about a frozen fact, for as long as that fact lives.

Checks are pure functions of the ledger and ask each other the same questions; comparing twenty
log-probabilities at every position of every pair again for each would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Fact = TypeVar("Fact")
More = ParamSpec("More")
Result = TypeVar("Result")


def remembered(
    function: Callable[Concatenate[Fact, More], Result],
) -> Callable[Concatenate[Fact, More], Result]:
    """Remember a function's results by the identity of its first argument, and by the others."""
    known: WeakKeyDictionary[Any, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(function)
    def ask(fact: Fact, /, *args: More.args, **more: More.kwargs) -> Result:
        results = known.setdefault(fact, {})
        key = (args, tuple(sorted(more.items())))
        if key not in results:
            results[key] = function(fact, *args, **more)
        return results[key]

    return ask

"""Draws the problems of both files from their templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from kvbench.workloads.own_problems import examples, home, shops, travel
from kvbench.workloads.own_problems.draw import Draw
from kvbench.workloads.own_problems.working import Problem

SEED: Final = 1
FOLDER: Final = Path(__file__).parents[1] / "gsm8k_data"
_TRIES: Final = 100

Template = Callable[[Draw], Problem]


class _File(NamedTuple):
    templates: Sequence[Template]
    of_each: int


FILES: Final = {
    "train.jsonl": _File(examples.TEMPLATES, of_each=2),
    "test.jsonl": _File((*shops.TEMPLATES, *home.TEMPLATES, *travel.TEMPLATES), of_each=4),
}
"""file name -> its templates, and how many problems each gives"""


def rows(name: str) -> Iterator[tuple[str, Problem]]:
    """Yield (template, problem) of a file in its order: every template once, then again.

    Raises RuntimeError when a template has no further problem of other numbers.
    """
    file = FILES[name]
    seen: set[str] = set()
    for turn in range(file.of_each):
        for template in file.templates:
            problem = _unseen(template, turn, seen)
            seen.add(problem.question)
            yield name_of(template), problem


def write(folder: Path = FOLDER) -> None:
    """Write both files."""
    for name in FILES:
        lines = [json.dumps(asdict(problem), ensure_ascii=False) for _, problem in rows(name)]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def name_of(template: Template) -> str:
    """Return the name of a template, which is part of its seed."""
    return template.__name__.strip("_")


def _unseen(template: Template, turn: int, seen: set[str]) -> Problem:
    for attempt in range(_TRIES):
        problem = template(Draw(f"{SEED}/{name_of(template)}/{turn}/{attempt}"))
        if problem.question not in seen:
            return problem
    raise RuntimeError(f"{template.__name__} draws the same problem again and again")

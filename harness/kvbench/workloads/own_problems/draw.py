"""What a template draws: whole numbers, words and people, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")


class Person(NamedTuple):
    """A name and its pronouns."""

    name: str
    they: str
    their: str

    def __str__(self) -> str:
        return self.name


_SHE: Final = (
    "Amara", "Birgit", "Chiara", "Dagny", "Esra", "Fenna", "Hanako", "Ilse", "Jadwiga", "Kalinda",
    "Leocadia", "Mirela", "Noor", "Oona", "Paloma", "Runa", "Saoirse", "Tamsin", "Ulrika", "Zofia",
)  # fmt: skip
_HE: Final = (
    "Anselm", "Bohdan", "Cormac", "Davit", "Emre", "Florin", "Goran", "Henrik", "Idris", "Jorah",
    "Kasimir", "Lorcan", "Matteo", "Nikhil", "Otso", "Piotr", "Rasmus", "Stellan", "Tariq", "Yann",
)  # fmt: skip
_PEOPLE: Final = (
    *(Person(name, "she", "her") for name in _SHE),
    *(Person(name, "he", "his") for name in _HE),
)


class Draw:
    """Draws; the same seed draws the same with every Python, because only `randrange` is used."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - nothing secret

    def number(self, low: int, high: int, step: int = 1) -> int:
        """Return one of low, low + step, ... up to and with high."""
        return self._random.randrange(low, high + 1, step)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self._random.randrange(len(options))]

    def people(self, count: int) -> list[Person]:
        """Return different people."""
        left = list(_PEOPLE)
        return [left.pop(self._random.randrange(len(left))) for _ in range(count)]

    def person(self) -> Person:
        """Return one of the people."""
        return self.pick(_PEOPLE)

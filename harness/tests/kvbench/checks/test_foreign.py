"""An answer that speaks of another prompt is named; garbage and shared words are not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from kvbench.checks.answers import Answer
from kvbench.checks.foreign import reads_like
from kvbench.events import Token

VOCABULARY = 32_000


def answer(prompt: str, ids: list[int], weighed: list[int] | None = None) -> Answer:
    top: dict[str, float | None] = dict.fromkeys(map(str, weighed or ids), -1.0)
    tokens = tuple(Token(token_id, -1.0, top) for token_id in ids)
    request: Any = SimpleNamespace(prompt_id=prompt, done=SimpleNamespace(tokens=tokens))
    return Answer(cast("Any", None), request)


def words(first: int) -> list[int]:
    return list(range(first, first + 16))


REFERENCES = {
    "p1": answer("p1", words(100), list(range(100, 160))),
    "p2": answer("p2", words(5000), list(range(5000, 5060))),
    "p3": answer("p3", words(VOCABULARY - 100)),
}


def test_the_very_answer_of_another_prompt_is_foreign() -> None:
    ids = [*words(100)[:4], *words(5000)[4:]]
    assert reads_like(answer("p1", ids), 4, REFERENCES) == "p2"


def test_some_words_of_one_other_prompt_are_foreign() -> None:
    ids = [7, 5001, 5059, 9, 5033, 11, 5020, 13, 12_000, 14_000]
    assert reads_like(answer("p1", ids), 0, REFERENCES) == "p2"


def test_garbage_is_nobodys() -> None:
    source = random.Random(1)
    for _ in range(200):
        ids = [source.randrange(VOCABULARY) for _ in range(16)]
        assert reads_like(answer("p1", ids), 0, REFERENCES) is None


def test_words_that_several_prompts_use_are_nobodys() -> None:
    shared = REFERENCES | {"p4": answer("p4", words(5000), list(range(5000, 5060)))}
    ids = [5001, 5059, 5033, 5020, 5002, 5003]
    assert reads_like(answer("p1", ids), 0, shared) is None


def test_two_candidates_are_none() -> None:
    ids = [5001, 5059, 5033, 5020, *words(VOCABULARY - 100)[:4]]
    assert reads_like(answer("p1", ids), 0, REFERENCES) is None


def test_end_that_is_too_short_says_nothing() -> None:
    assert reads_like(answer("p1", words(5000)), 13, REFERENCES) is None

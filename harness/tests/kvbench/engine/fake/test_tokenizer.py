from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.fake import tokenizer

VOCABULARY = 32_000


@given(st.text())
def test_text_survives_its_ids(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, VOCABULARY)) == text


@given(st.lists(st.integers(256, VOCABULARY - 1)))
def test_words_survive_their_text(ids: list[int]) -> None:
    assert tokenizer.encode(tokenizer.decode(ids), VOCABULARY) == ids


@pytest.mark.parametrize("text", ["t99 ", "t32000 ", "t0300 ", "t300"])
def test_what_is_no_word_of_the_vocabulary_is_bytes(text: str) -> None:
    assert tokenizer.encode(text, VOCABULARY) == list(text.encode())


def test_chat_keeps_roles_apart() -> None:
    one = tokenizer.render_chat([("user", "a"), ("assistant", "b")])
    other = tokenizer.render_chat([("user", "a\nb")])
    assert one != other

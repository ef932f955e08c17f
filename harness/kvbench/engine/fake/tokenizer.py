"""A trivial tokenizer: ids below 256 are bytes, every other id is a word `t<id> `.

Text, ids and text again is the identity. Ids, text and ids again is too, except for bytes that
spell one of its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

BYTES: Final = 256
_WORD: Final = re.compile(r"t([1-9]\d{2,8}) ")


def encode(text: str, vocabulary_tokens: int) -> list[int]:
    """Return the ids of a text."""
    ids: list[int] = []
    end = 0
    for match in _WORD.finditer(text):
        number = int(match[1])
        if not BYTES <= number < vocabulary_tokens:
            continue
        ids += text[end : match.start()].encode()
        ids.append(number)
        end = match.end()
    ids += text[end:].encode()
    return ids


def word(token_id: int) -> str:
    """Return the text of one id, as a log-probability names it."""
    return f"t{token_id} " if token_id >= BYTES else chr(token_id)


def decode(ids: Iterable[int]) -> str:
    """Return the text of ids; bytes that are no UTF-8 are replaced."""
    data = b"".join(
        b"t%d " % token_id if token_id >= BYTES else bytes((token_id,)) for token_id in ids
    )
    return data.decode(errors="replace")


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """Return the prompt of a conversation of (role, content)."""
    turns = "".join(f"<|{role}|>\n{content}\n" for role, content in messages)
    return f"{turns}<|assistant|>\n"

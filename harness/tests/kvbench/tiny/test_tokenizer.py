"""The tokenizer's files, read by the library that vLLM reads them with."""

from __future__ import annotations

import json

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvbench.tiny import tokenizer

FILES = tokenizer.files()


@pytest.fixture(scope="module", name="loaded")
def fixture_loaded() -> Tokenizer:
    return Tokenizer.from_str(FILES["tokenizer.json"].decode())


def test_vocabulary_is_as_large_as_the_embedding(loaded: Tokenizer) -> None:
    assert loaded.get_vocab_size() == tokenizer.VOCABULARY_SIZE
    assert loaded.token_to_id("<|bos|>") == tokenizer.BOS_ID
    assert loaded.token_to_id("<|eos|>") == tokenizer.EOS_ID


@given(text=st.text(max_size=60).filter(lambda text: "<|" not in text))
def test_one_token_for_each_byte_and_back(loaded: Tokenizer, text: str) -> None:
    ids = loaded.encode(text).ids
    assert len(ids) == len(text.encode())
    assert loaded.decode(ids) == text


def test_special_tokens_are_found_in_text(loaded: Tokenizer) -> None:
    assert loaded.encode("<|im_start|>a<|im_end|>").tokens == ["<|im_start|>", "a", "<|im_end|>"]


def test_filler_tokens_are_never_encoded(loaded: Tokenizer) -> None:
    assert len(loaded.encode("t260").ids) == 4
    assert loaded.decode([260]) == "t260"


def test_chat_template_renders_roles_and_the_generation_prompt() -> None:
    config = json.loads(FILES["tokenizer_config.json"])
    template = jinja2.Template(config["chat_template"])
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )

"""The tokenizer cuts text as the model was trained, and gives the text back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_gguf
from hypothesis import given
from hypothesis import strategies as st
from small_gguf import Recipe
from tokenizers import Tokenizer

from kvbench.gguf_models import vocabulary
from kvbench.gguf_models.metadata import Metadata


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = small_gguf.write(tmp_path_factory.mktemp("gguf") / "small.gguf", Recipe())
    return vocabulary.files(Metadata(path), context_tokens=512)


@pytest.fixture(scope="module")
def tokenizer(files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_token_ids_are_those_of_the_file(tokenizer: Tokenizer) -> None:
    tokens = Recipe().tokens
    assert tokenizer.get_vocab_size() == len(tokens)
    assert [tokenizer.id_to_token(index) for index in range(len(tokens))] == tokens


def test_merges_apply_inside_of_words_only(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello whey").tokens == ["hell", "o", "Ġw", "he", "y"]


def test_every_digit_stands_alone_though_a_merge_would_join_them(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("in 2024").tokens == ["i", "n", "Ġ", "2", "0", "2", "4"]


def test_special_tokens_are_single_and_left_out_of_text(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode("<|im_start|>he<|im_end|>")
    assert encoded.ids == [1, Recipe().tokens.index("he"), 2]
    assert tokenizer.decode(encoded.ids) == "he"
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "<|im_start|>he<|im_end|>"


def test_nothing_is_put_before_or_behind_a_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").ids == []
    assert len(tokenizer.encode("a").ids) == 1


@given(st.text())
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_config_names_the_special_tokens_and_the_template(files: dict[str, bytes]) -> None:
    assert json.loads(files["tokenizer_config.json"]) == {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": "<|im_start|>",
        "chat_template": small_gguf.TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 512,
        "pad_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<|endoftext|>",
    }


def test_token_of_a_user_is_kept_whole_and_stays_in_the_text(tmp_path: Path) -> None:
    recipe = Recipe()
    kinds = [3, 3, 3] + [1] * (len(recipe.tokens) - 3)
    kinds[recipe.tokens.index("202")] = 4
    recipe.kinds = kinds
    made = vocabulary.tokenizer(Metadata(small_gguf.write(tmp_path / "small.gguf", recipe)))
    encoded = made.encode("2024")
    assert encoded.tokens == ["202", "4"]
    assert made.decode(encoded.ids) == "2024"

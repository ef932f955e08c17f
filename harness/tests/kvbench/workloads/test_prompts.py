from __future__ import annotations

from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.scenario.geometry import Geometry, Group
from kvbench.scenario.replay import Prompts
from kvbench.workloads.prompts import PromptBook, prompt_lengths

GEOMETRY = Geometry(
    source="test",
    groups=(Group(kind="full_attention", block_tokens=128),),
    hash_block_tokens=128,
    hit_alignment_tokens=128,
)


def book(**settings: Any) -> PromptBook:
    return PromptBook("st", Prompts(**settings), GEOMETRY)


def test_lengths_lie_around_block_boundaries() -> None:
    prompts = Prompts(blocks=(2, 4), offsets_tokens=(-1, 0, 1), lengths_tokens=(1000,))
    assert prompt_lengths(prompts, GEOMETRY) == (255, 256, 257, 511, 512, 513, 1000)


def test_lengths_in_blocks_need_a_geometry() -> None:
    with pytest.raises(UsageError, match="write lengths_tokens instead"):
        prompt_lengths(Prompts(blocks=(2,)), None)


def test_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    first, again, other = (book(lengths_tokens=(300,), seed=seed) for seed in (1, 1, 2))
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


def test_tokens_of_a_prompt_do_not_depend_on_the_prompts_before_it() -> None:
    short, long = book(lengths_tokens=(300,)), book(lengths_tokens=(300, 400))
    assert short.tokens["st/p1"] == long.tokens["st/p1"]
    before = long.filler(1, 500)
    assert short.tokens["st/p1"] != long.tokens[before][:300]


def test_token_ids_stay_in_their_range() -> None:
    tokens = book(lengths_tokens=(5000,), low_token_id=100, high_token_id=130).tokens["st/p1"]
    assert (min(tokens), max(tokens)) == (100, 129)


def test_no_two_prompts_share_their_first_block() -> None:
    made = book(lengths_tokens=(130, 130, 300))
    made.filler(1, 640)
    made.sentinel(1, 320)
    heads = [tokens[:128] for tokens in made.tokens.values()]
    assert len(set(heads)) == len(heads) == 5


def test_prompts_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="no prompts with distinct first blocks"):
        book(lengths_tokens=(1,) * 17, low_token_id=0, high_token_id=16)


def test_shared_prefix_is_shared_by_prompts_only() -> None:
    made = book(lengths_tokens=(300, 400), shared_prefix_tokens=128)
    first, second = made.tokens["st/p1"], made.tokens["st/p2"]
    assert first[:128] == second[:128]
    assert first[128:256] != second[128:256]
    assert made.tokens[made.filler(1, 300)][:128] != first[:128]


def test_prompt_no_longer_than_the_shared_prefix_is_refused() -> None:
    with pytest.raises(UsageError, match="not above shared_prefix_tokens"):
        book(lengths_tokens=(128,), shared_prefix_tokens=128)

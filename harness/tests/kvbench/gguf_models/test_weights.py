"""Rows of queries and keys come back to where the rotation of transformers and vLLM wants them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.gguf_models import weights

HEADS, HEAD_DIM = 3, 8
THETA = 10000.0


def rotated_by_halves(head: np.ndarray, position: int) -> np.ndarray:
    """Rotary embedding as transformers and vLLM apply it: number i turns with i + half."""
    half = len(head) // 2
    angles = position * THETA ** (-np.arange(half) / half)
    first, second = head[:half], head[half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ]
    )


def rotated_by_neighbours(head: np.ndarray, position: int) -> np.ndarray:
    """The same as llama.cpp applies it to llama-type models: number 2 i turns with 2 i + 1."""
    half = len(head) // 2
    turned = np.empty_like(head)
    for pair in range(half):
        angle = position * THETA ** (-pair / half)
        even, odd = head[2 * pair], head[2 * pair + 1]
        turned[2 * pair] = even * np.cos(angle) - odd * np.sin(angle)
        turned[2 * pair + 1] = odd * np.cos(angle) + even * np.sin(angle)
    return turned


def scores(
    query_rows: np.ndarray, key_rows: np.ndarray, rotated: object, hidden: np.ndarray
) -> list[float]:
    """Attention scores of each head between position 5 and position 2."""
    assert callable(rotated)
    queries, keys = ((rows @ hidden).reshape(HEADS, HEAD_DIM) for rows in (query_rows, key_rows))
    return [float(rotated(q, 5) @ rotated(k, 2)) for q, k in zip(queries, keys, strict=True)]


def test_scores_are_those_of_the_file_only_with_the_rows_put_back() -> None:
    generator = np.random.default_rng(1)
    query, key = generator.standard_normal((2, HEADS * HEAD_DIM, 6))
    hidden = generator.standard_normal(6)
    there = scores(query, key, rotated_by_neighbours, hidden)
    back = scores(
        weights.to_halves(query, HEADS), weights.to_halves(key, HEADS), rotated_by_halves, hidden
    )
    left_as_they_are = scores(query, key, rotated_by_halves, hidden)
    assert back == pytest.approx(there)
    assert left_as_they_are != pytest.approx(there)


def test_order_of_one_head() -> None:
    assert weights.to_halves(np.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert weights.to_neighbours(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@given(
    heads=st.integers(1, 5),
    pairs=st.integers(1, 6),
    columns=st.lists(st.integers(1, 3), max_size=1),
)
def test_there_and_back_is_the_identity(heads: int, pairs: int, columns: list[int]) -> None:
    shape = (heads * pairs * 2, *columns)
    rows = np.arange(np.prod(shape)).reshape(shape)
    there = weights.to_neighbours(rows, heads)
    assert (weights.to_halves(there, heads) == rows).all()
    assert (weights.to_neighbours(weights.to_halves(rows, heads), heads) == rows).all()
    assert sorted(there.ravel()) == sorted(rows.ravel())

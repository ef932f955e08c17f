from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.scenario.engines import VllmEngine
from kvbench.scenario.geometry import Geometry, Group
from kvbench.workloads.room import Room

FULL = Geometry(
    source="test",
    groups=(Group(kind="full_attention", block_tokens=128),),
    hash_block_tokens=128,
    hit_alignment_tokens=128,
)
HYBRID = Geometry(
    source="test",
    groups=(
        *(Group(kind="mamba", block_tokens=1152) for _ in range(3)),
        Group(kind="full_attention", block_tokens=1152),
    ),
    hash_block_tokens=1152,
    hit_alignment_tokens=1152,
)


def room(geometry: Geometry | None = FULL, **settings: Any) -> Room:
    return Room(geometry, VllmEngine(kind="vllm", **settings))


def test_recurrent_groups_may_take_one_block_or_one_for_each_of_the_context() -> None:
    made = room(HYBRID, gpu_blocks=32)
    assert (made.least_blocks(3000), made.most_blocks(3000)) == (6, 12)


def test_waves_fit_in_their_share_of_the_pool() -> None:
    waves, is_limited = room(gpu_blocks=32).waves([1000] * 4, new_tokens=16, most=4, share=0.5)
    assert waves == [[0], [1], [2], [3]]
    assert is_limited


def test_waves_are_as_large_as_the_concurrency_where_there_is_room() -> None:
    waves, is_limited = room(gpu_blocks=64).waves([300] * 5, new_tokens=16, most=2, share=0.5)
    assert waves == [[0, 1], [2, 3], [4]]
    assert not is_limited


def test_without_geometry_only_the_concurrency_limits() -> None:
    waves, is_limited = room(None, gpu_blocks=32).waves([9000] * 3, new_tokens=1, most=2, share=0.5)
    assert waves == [[0, 1], [2]]
    assert not is_limited


@given(
    blocks=st.integers(min_value=3, max_value=300),
    limit=st.one_of(st.none(), st.integers(min_value=2, max_value=40_000)),
    factor=st.floats(min_value=1, max_value=3),
    geometry=st.sampled_from([FULL, HYBRID]),
)
def test_fillers_take_the_whole_pool_and_fit_the_model(
    blocks: int, limit: int | None, factor: float, geometry: Geometry
) -> None:
    made = room(geometry, gpu_blocks=blocks, max_model_len_tokens=limit)
    lengths = made.filler_lengths(factor)
    assert sum(made.least_blocks(length) for length in lengths) >= factor * (blocks - 1) - 1e-6
    assert limit is None or max(lengths) + 1 <= limit


def test_filler_ends_on_a_block_boundary_and_takes_at_most_half_the_pool() -> None:
    lengths = room(gpu_blocks=32, max_model_len_tokens=4096).filler_lengths(1.5)
    assert set(lengths) == {15 * 128}
    assert len(lengths) == 4


@pytest.mark.parametrize(
    ("limit", "expected"), [(2048, 320), (321, 320), (320, 192), (192, 129), (129, None)]
)
def test_sentinel_is_as_long_as_fits_and_longer_than_a_block(
    limit: int, expected: int | None
) -> None:
    assert room(gpu_blocks=32, max_model_len_tokens=limit).sentinel_tokens() == expected

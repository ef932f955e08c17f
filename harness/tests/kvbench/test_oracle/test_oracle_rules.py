"""Single rules of vLLM's caches, one test each, and the oracle's own promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.oracle import (
    CacheGeometry,
    Expected,
    GroupGeometry,
    Oracle,
    TierModel,
    TokenRange,
    max_hit_tokens,
)
from kvbench.oracle.pool import FreeQueue

SIZE = 128
NONE = TierModel("none", None)
EAGER = TierModel("simple_eager", 256)
NATIVE = TierModel("native", 256)


def geometry(gpu_blocks: int = 64, chunk_tokens: int = 2048) -> CacheGeometry:
    return CacheGeometry(
        groups=(GroupGeometry("full_attention", SIZE),),
        hash_block_tokens=SIZE,
        hit_alignment_tokens=SIZE,
        gpu_blocks=gpu_blocks,
        chunk_tokens=chunk_tokens,
    )


def hybrid(alignment_tokens: int = 1152, hash_tokens: int = 1152) -> CacheGeometry:
    groups = (
        GroupGeometry("full_attention", 1152),
        GroupGeometry("mamba", 1152),
        GroupGeometry("sliding_window", 1152, window_tokens=4096),
    )
    return CacheGeometry(groups, hash_tokens, alignment_tokens, gpu_blocks=512, chunk_tokens=8192)


def prompt(name: int, tokens: int) -> list[int]:
    return [name * 10_000 + i for i in range(tokens)]


def exact(expected: Expected) -> tuple[int, int, int]:
    assert expected.is_exact
    return (
        expected.local.low_tokens,
        expected.external.low_tokens,
        expected.cached.low_tokens,
    )


@pytest.mark.parametrize(("tokens", "longest"), [(383, 256), (384, 256), (385, 384), (1, 0)])
def test_last_prompt_token_is_always_computed(tokens: int, longest: int) -> None:
    for tier in (NONE, EAGER):
        assert max_hit_tokens(tokens, geometry(), tier) == longest
        oracle = Oracle(geometry(), tier)
        oracle.request(prompt(1, tokens), new_tokens=1)
        assert exact(oracle.request(prompt(1, tokens), new_tokens=1)) == (longest, 0, longest)


def test_native_tier_may_load_the_whole_prompt() -> None:
    oracle = Oracle(geometry(), NATIVE)
    oracle.request(prompt(1, 384), new_tokens=1)
    oracle.reset(external=False)
    assert exact(oracle.request(prompt(1, 384), new_tokens=1)) == (0, 384, 384)
    assert exact(oracle.request(prompt(1, 384), new_tokens=1)) == (256, 128, 384)


def test_native_chunks_round_hits_down() -> None:
    tier = TierModel("native", 256, chunk_blocks=2)
    assert max_hit_tokens(1000, geometry(), tier) == 896
    oracle = Oracle(geometry(), tier)
    oracle.request(prompt(1, 1000), new_tokens=1)
    oracle.reset(external=False)
    assert exact(oracle.request(prompt(1, 1000), new_tokens=1)) == (0, 768, 768)


def test_local_reset_keeps_the_host_tier_and_external_reset_clears_it() -> None:
    oracle = Oracle(geometry(), EAGER)
    oracle.request(prompt(1, 1000), new_tokens=4)
    oracle.reset(external=False)
    assert exact(oracle.request(prompt(1, 1000), new_tokens=4)) == (0, 896, 896)
    oracle.reset(external=True)
    assert exact(oracle.request(prompt(1, 1000), new_tokens=4)) == (0, 0, 0)


@pytest.mark.parametrize(("host_blocks", "hit"), [(8, 896), (7, 768)])
def test_host_pool_loses_a_block_to_its_null_block(host_blocks: int, hit: int) -> None:
    """A store is cut where the pool is full: the head of the prompt still hits."""
    oracle = Oracle(geometry(), TierModel("simple_eager", host_blocks))
    oracle.request(prompt(1, 7 * SIZE + 1), new_tokens=1)
    oracle.reset(external=False)
    assert exact(oracle.request(prompt(1, 7 * SIZE + 1), new_tokens=1)) == (0, hit, hit)


def test_salt_separates_equal_prompts() -> None:
    oracle = Oracle(geometry(), NONE)
    oracle.request(prompt(1, 500), new_tokens=1, salt="a")
    assert exact(oracle.request(prompt(1, 500), new_tokens=1, salt="b")) == (0, 0, 0)
    assert exact(oracle.request(prompt(1, 500), new_tokens=1, salt="a")) == (384, 0, 384)


def test_known_answer_lets_a_conversation_hit_its_own_words() -> None:
    answer = prompt(7, 130)
    follow_up = prompt(1, 200) + answer + prompt(2, 50)
    for known, hit in ((answer, 256), (None, 128)):
        oracle = Oracle(geometry(), NONE)
        oracle.request(prompt(1, 200), new_tokens=130, answer=known)
        assert exact(oracle.request(follow_up, new_tokens=1)) == (hit, 0, hit)


def test_last_sampled_token_is_not_cached() -> None:
    """255 + 1 new token leaves one full block, 255 + 2 leaves two."""
    for new_tokens, hit in ((1, 128), (2, 256)):
        oracle = Oracle(geometry(), NONE)
        oracle.request(prompt(1, 255), new_tokens=new_tokens, answer=[5, 6][:new_tokens])
        repeated = [*prompt(1, 255), 5, 9, 9]
        assert exact(oracle.request(repeated, new_tokens=1)) == (hit, 0, hit)


def test_request_that_cannot_fit_is_refused() -> None:
    oracle = Oracle(geometry(gpu_blocks=8), NONE)
    oracle.request(prompt(1, 7 * SIZE), new_tokens=1)
    with pytest.raises(ValueError, match="8 GPU blocks, the pool has 7"):
        oracle.request(prompt(1, 7 * SIZE), new_tokens=2)


def test_hybrid_is_a_range_up_to_the_longest_seen_prefix() -> None:
    oracle = Oracle(hybrid(), EAGER)
    cold = oracle.request(prompt(1, 10_277), new_tokens=32)
    assert exact(cold) == (0, 0, 0)
    assert cold.max_hit_tokens == 9216
    hot = oracle.request(prompt(1, 10_277), new_tokens=32)
    assert str(hot.local) == "0..9216"
    assert str(hot.cached) == "0..9216"
    assert any("hybrid" in note for note in hot.notes)
    other = oracle.request(prompt(1, 2400) + prompt(2, 5000), new_tokens=32)
    assert other.local == TokenRange(0, 2304)


def test_hybrid_fine_grained_hits_are_aligned_to_the_hash_block() -> None:
    shape = hybrid(alignment_tokens=128, hash_tokens=128)
    assert max_hit_tokens(3000, shape, EAGER) == 2944


def test_hybrid_after_external_reset_must_be_cold() -> None:
    oracle = Oracle(hybrid(), EAGER)
    oracle.request(prompt(1, 5000), new_tokens=1)
    oracle.reset(external=False)
    again = oracle.request(prompt(1, 5000), new_tokens=1)
    assert exact_range(again.local) == 0
    assert again.external.high_tokens == 4608
    oracle.reset(external=True)
    assert exact(oracle.request(prompt(1, 5000), new_tokens=1)) == (0, 0, 0)


def test_unknown_connector_is_not_trusted_to_reset() -> None:
    oracle = Oracle(geometry(), TierModel("unknown", None))
    oracle.request(prompt(1, 1000), new_tokens=1)
    oracle.reset(external=True)
    expected = oracle.request(prompt(1, 1000), new_tokens=1)
    assert exact_range(expected.local) == 0
    assert expected.external == TokenRange(0, 896)


def exact_range(tokens: TokenRange) -> int:
    assert tokens.is_exact
    return tokens.low_tokens


def test_simple_connector_of_unknown_size_gives_a_range_and_says_so() -> None:
    oracle = Oracle(geometry(), TierModel("simple_eager", None))
    oracle.request(prompt(1, 1000), new_tokens=1)
    expected = oracle.request(prompt(1, 1000), new_tokens=1)
    assert expected.local == TokenRange(0, 896)
    assert any("host pool" in note for note in expected.notes)


def test_batch_with_room_is_exact_when_no_order_matters() -> None:
    oracle = Oracle(geometry(gpu_blocks=512), TierModel("simple_eager", 512))
    prompts = [prompt(i, 1000) for i in range(8)]
    cold = oracle.concurrent(prompts, new_tokens=8, concurrency=4)
    assert [exact(e) for e in cold] == [(0, 0, 0)] * 8
    hot = oracle.concurrent(prompts, new_tokens=8, concurrency=4)
    assert [exact(e) for e in hot] == [(896, 0, 896)] * 8
    oracle.reset(external=False)
    loaded = oracle.concurrent(prompts, new_tokens=8, concurrency=4)
    assert [exact(e) for e in loaded] == [(0, 896, 896)] * 8
    assert exact(oracle.request(prompts[3], new_tokens=8)) == (896, 0, 896)


def test_shared_prefix_in_a_batch_is_certain_once_enough_requests_were_sent() -> None:
    """With 2 outstanding, one of the first two has finished when the third is sent."""
    oracle = Oracle(geometry(gpu_blocks=512), NONE)
    prompts = [prompt(1, 512) + prompt(10 + i, 200) for i in range(5)]
    expected = oracle.concurrent(prompts, new_tokens=8, concurrency=2)
    assert [str(e.local) for e in expected] == ["0..512", "0..512", "512", "512", "512"]
    assert expected[0].notes
    assert not expected[2].notes


def test_batch_under_pressure_is_a_range_until_the_next_reset() -> None:
    oracle = Oracle(geometry(gpu_blocks=24), NONE)
    prompts = [prompt(i, 1000) for i in range(8)]
    oracle.concurrent(prompts, new_tokens=8, concurrency=4)
    assert str(oracle.request(prompts[0], new_tokens=8).local) == "0..896"
    oracle.reset(external=False)
    oracle.request(prompts[0], new_tokens=8)
    assert exact(oracle.request(prompts[0], new_tokens=8)) == (896, 0, 896)


def test_batch_at_concurrency_one_is_a_sequence() -> None:
    one, other = (Oracle(geometry(gpu_blocks=24), EAGER) for _ in range(2))
    prompts = [prompt(i % 3, 1000) for i in range(8)]
    batch = one.concurrent(prompts, new_tokens=8, concurrency=1)
    assert batch == [other.request(p, new_tokens=8) for p in prompts]


def test_token_range_reads_and_refuses() -> None:
    assert str(TokenRange(896, 896)) == "896"
    assert str(TokenRange(0, 896)) == "0..896"
    assert TokenRange.exactly(3).contains(3)
    assert not TokenRange(0, 896).contains(897)
    for low, high in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="not a token range"):
            TokenRange(low, high)


def test_impossible_geometry_is_refused() -> None:
    group = GroupGeometry("full_attention", SIZE)
    with pytest.raises(ValueError, match="null block"):
        CacheGeometry((group,), SIZE, SIZE, gpu_blocks=1, chunk_tokens=512)
    with pytest.raises(ValueError, match="multiple of hash_block_tokens"):
        CacheGeometry((group,), SIZE, SIZE + 1, gpu_blocks=8, chunk_tokens=512)
    with pytest.raises(ValueError, match="needs a group"):
        CacheGeometry((), SIZE, SIZE, gpu_blocks=8, chunk_tokens=512)
    with pytest.raises(ValueError, match="chunk_blocks"):
        TierModel("native", 8, chunk_blocks=0)
    with pytest.raises(ValueError, match="host_blocks"):
        TierModel("native", 0)


@given(st.lists(st.tuples(st.sampled_from(["pop", "remove", "front", "back"]), st.integers(0, 7))))
def test_free_queue_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    queue, model = FreeQueue(8), list(range(8))
    for name, block in operations:
        if name == "pop" and model:
            assert queue.pop_head() == model.pop(0)
        elif name == "remove" and block in model:
            queue.remove(block)
            model.remove(block)
        elif name in ("front", "back") and block not in model:
            missing = [b for b in range(8) if b not in model][:2]
            if name == "front":
                queue.push_front(missing)
                model = missing + model
            else:
                queue.push_back(missing)
                model = model + missing
        assert list(queue.after(None)) == model
        assert len(queue) == len(model)

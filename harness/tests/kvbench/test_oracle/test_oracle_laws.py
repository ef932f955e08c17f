"""Laws that hold for every sequence of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.oracle import (
    CacheGeometry,
    Expected,
    GroupGeometry,
    Oracle,
    TierModel,
    max_hit_tokens,
)

BLOCK_TOKENS = 4
GPU_BLOCKS = 10
Action = tuple[int, int, int] | Literal["local", "external"]

TIERS = st.sampled_from(
    [
        TierModel("none", None),
        TierModel("simple_eager", 40),
        TierModel("simple_eager", 6),
        TierModel("simple_lazy", 40),
        TierModel("simple_lazy", 7),
        TierModel("native", 40),
        TierModel("native", 6),
        TierModel("native", 12, chunk_blocks=2),
    ]
)
REQUESTS = st.tuples(st.integers(0, 15), st.integers(1, 24), st.integers(1, 9))
ACTIONS = st.lists(
    st.one_of(REQUESTS, REQUESTS, REQUESTS, st.sampled_from(["local", "external"])), max_size=24
)


def geometry(*, gpu_blocks: int = GPU_BLOCKS, chunk_tokens: int = 8) -> CacheGeometry:
    return CacheGeometry(
        groups=(GroupGeometry("full_attention", BLOCK_TOKENS),),
        hash_block_tokens=BLOCK_TOKENS,
        hit_alignment_tokens=BLOCK_TOKENS,
        gpu_blocks=gpu_blocks,
        chunk_tokens=chunk_tokens,
    )


def prompt_of(name: int, length: int) -> list[int]:
    """Prompts 0-3 share a trunk of 5 tokens, 4-7 another of 5, and so on."""
    trunk = [100 + name // 4] * 5
    return (trunk + [200 + name] * length)[:length]


def apply(oracle: Oracle, action: Action) -> Expected | None:
    if isinstance(action, str):
        oracle.reset(external=action == "external")
        return None
    name, length, new_tokens = action
    return oracle.request(prompt_of(name, length), new_tokens=new_tokens)


def run(oracle: Oracle, actions: Sequence[Action]) -> list[Expected]:
    results = [apply(oracle, action) for action in actions]
    return [expected for expected in results if expected is not None]


@given(TIERS, ACTIONS)
def test_tiers_add_up_to_cached_and_never_exceed_the_geometry(
    tier: TierModel, actions: list[Action]
) -> None:
    oracle = Oracle(geometry(), tier)
    for action in actions:
        expected = apply(oracle, action)
        if expected is None or isinstance(action, str):
            continue
        assert expected.is_exact
        assert not expected.notes
        cached = expected.local.low_tokens + expected.external.low_tokens
        assert cached == expected.cached.low_tokens
        assert cached <= expected.max_hit_tokens <= action[1]
        assert expected.max_hit_tokens == max_hit_tokens(action[1], geometry(), tier)


@given(TIERS, ACTIONS)
def test_the_same_requests_give_the_same_expectations(
    tier: TierModel, actions: list[Action]
) -> None:
    assert run(Oracle(geometry(), tier), actions) == run(Oracle(geometry(), tier), actions)


@given(TIERS, ACTIONS, ACTIONS)
def test_an_external_reset_forgets_all_history(
    tier: TierModel, before: list[Action], after: list[Action]
) -> None:
    used = Oracle(geometry(), tier)
    run(used, before)
    used.reset(external=True)
    assert run(used, after) == run(Oracle(geometry(), tier), after)


@given(TIERS, ACTIONS, REQUESTS)
def test_a_local_reset_leaves_no_local_hit(
    tier: TierModel, before: list[Action], request: tuple[int, int, int]
) -> None:
    oracle = Oracle(geometry(), tier)
    run(oracle, before)
    oracle.reset(external=False)
    expected = apply(oracle, request)
    assert expected is not None
    assert expected.local.high_tokens == 0


@given(ACTIONS)
def test_the_native_tier_does_not_change_local_hits(actions: list[Action]) -> None:
    """Its stores hold no GPU block (measured: equal local hits with and without it)."""
    plain = run(Oracle(geometry(), TierModel("none", None)), actions)
    native = run(Oracle(geometry(), TierModel("native", 9)), actions)
    assert [e.local for e in plain] == [e.local for e in native]


@given(st.sampled_from(["none", "simple_eager", "native"]), ACTIONS)
def test_with_room_for_all_every_seen_prefix_hits(
    kind: Literal["none", "simple_eager", "native"], actions: list[Action]
) -> None:
    oracle = Oracle(geometry(gpu_blocks=400), TierModel(kind, None if kind == "none" else 400))
    seen: set[tuple[int, ...]] = set()
    for action in actions:
        expected = apply(oracle, action)
        if expected is None or isinstance(action, str):
            seen.clear()
            oracle.reset(external=True)
            continue
        prompt = prompt_of(action[0], action[1])
        ends = range(BLOCK_TOKENS, len(prompt), BLOCK_TOKENS)
        longest = max((end for end in ends if tuple(prompt[:end]) in seen), default=0)
        assert expected.local.low_tokens == longest
        ends = range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)
        seen.update(tuple(prompt[:end]) for end in ends)


@given(TIERS, ACTIONS)
def test_the_range_of_an_unknown_connector_contains_every_known_one(
    tier: TierModel, actions: list[Action]
) -> None:
    exact = run(Oracle(geometry(), tier), actions)
    wide = run(Oracle(geometry(), TierModel("unknown", None)), actions)
    for known, unknown in zip(exact, wide, strict=True):
        assert unknown.local.contains(known.local.low_tokens)
        assert unknown.external.contains(known.external.low_tokens)
        assert unknown.cached.contains(known.cached.low_tokens)


@given(TIERS, ACTIONS)
def test_overlapped_timing_contains_immediate_timing(
    tier: TierModel, actions: list[Action]
) -> None:
    exact = run(Oracle(geometry(), tier), actions)
    wide = run(Oracle(geometry(), tier, timing="overlapped"), actions)
    for known, hull in zip(exact, wide, strict=True):
        assert hull.local.contains(known.local.low_tokens)
        assert hull.external.contains(known.external.low_tokens)
        assert hull.cached.contains(known.cached.low_tokens)


@settings(max_examples=300)
@given(
    TIERS,
    st.sampled_from([GPU_BLOCKS, 16, 40, 90]),
    st.lists(st.one_of(REQUESTS, st.sampled_from(["local", "external"])), max_size=6),
    st.lists(st.tuples(st.integers(0, 15), st.integers(1, 24)), min_size=2, max_size=6),
    st.integers(2, 4),
    ACTIONS,
    st.data(),
)
def test_ranges_of_a_batch_contain_every_order_a_client_can_cause(
    tier: TierModel,
    gpu_blocks: int,
    before: list[Action],
    batch: list[tuple[int, int]],
    concurrency: int,
    after: list[Action],
    data: st.DataObject,
) -> None:
    """One request after the other, in an order that `concurrency` outstanding requests allow."""
    shape = geometry(gpu_blocks=gpu_blocks)
    predicted, actual = Oracle(shape, tier), Oracle(shape, tier)
    run(predicted, before)
    run(actual, before)
    prompts = [prompt_of(name, length) for name, length in batch]
    expected = predicted.concurrent(prompts, new_tokens=3, concurrency=concurrency)
    waiting = list(range(len(prompts)))
    while waiting:
        chosen = data.draw(st.sampled_from(waiting[:concurrency]))
        waiting.remove(chosen)
        observed = actual.request(prompts[chosen], new_tokens=3)
        assert_contains(expected[chosen], observed)
    for ranged, exact in zip(run(predicted, after), run(actual, after), strict=True):
        assert_contains(ranged, exact)


def assert_contains(expected: Expected, observed: Expected) -> None:
    assert expected.local.contains(observed.local.low_tokens), (expected, observed)
    assert expected.external.contains(observed.external.low_tokens), (expected, observed)
    assert expected.cached.contains(observed.cached.low_tokens), (expected, observed)

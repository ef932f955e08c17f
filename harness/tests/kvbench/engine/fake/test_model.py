"""The fake model: tokens and log-probabilities as functions of the context alone."""

from __future__ import annotations

import statistics
import struct

import pytest
from fake_bench import settings

from kvbench.engine.fake.content import BLANK, Content, hash_tokens, mix
from kvbench.engine.fake.hybrid import Layout
from kvbench.engine.fake.model import TOPIC_TOKENS, FakeModel
from kvbench.engine.fake.view import Context

DIGESTS = [mix(i, 12345) for i in range(400)]


def test_log_probabilities_have_the_spread_of_a_real_model() -> None:
    model = FakeModel(settings())
    tops = [model.sample(digest, 7, top=20, shape=0).top for digest in DIGESTS]
    ranks = [statistics.mean(float(top[rank][1] or 0) for top in tops) for rank in (0, 1, 19)]
    assert ranks == pytest.approx([-1.85, -3.3, -4.8], abs=0.1)
    for top in tops:
        values = [value for _, value in top]
        assert values == sorted(values, key=float, reverse=True)  # type: ignore[arg-type]
        assert len({token_id for token_id, _ in top}) == 20
        assert all(value == struct.unpack("f", struct.pack("f", value))[0] for value in values)


def test_the_token_does_not_depend_on_what_was_asked_for() -> None:
    for noise in (0.0, 0.02):
        model = FakeModel(settings(noise_logprob_nats=noise, noise_tie_share=0.5))
        for digest in DIGESTS:
            plain, few, many = (
                model.sample(digest, 7, top=top, shape=3) for top in (0, 5, TOPIC_TOKENS)
            )
            assert plain.token_id == few.token_id == many.token_id
            assert plain.logprob == few.logprob == many.logprob
            assert few.top == many.top[:5]


def test_a_topic_owns_64_ids_that_others_hardly_share() -> None:
    model = FakeModel(settings(vocabulary_tokens=32_000))
    own, other = set(model.topic_ids(1)), set(model.topic_ids(2))
    assert len(own) == TOPIC_TOKENS
    assert len(own & other) < 8
    assert {model.sample(digest, 1, top=0, shape=0).token_id for digest in DIGESTS} <= own


def test_small_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary_tokens"):
        FakeModel(settings(vocabulary_tokens=10))


def test_soft_damage_moves_log_probabilities_and_no_token() -> None:
    model = FakeModel(settings())
    for digest in DIGESTS[:50]:
        clean = model.sample(digest, 7, top=5, shape=0)
        soft = model.sample(digest, 7, top=5, shape=0, soft_nats=0.01)
        assert [i for i, _ in soft.top] == [i for i, _ in clean.top]
        for (_, damaged), (_, right) in zip(soft.top, clean.top, strict=True):
            assert abs(float(damaged or 0) - float(right or 0)) == pytest.approx(0.01, abs=1e-5)


def test_noise_follows_the_shape_and_nothing_else() -> None:
    model = FakeModel(settings(noise_logprob_nats=0.01))
    noise = model.noise
    same = [model.sample(d, 7, top=5, shape=noise.shape(4, 100)) for d in DIGESTS]
    again = [model.sample(d, 7, top=5, shape=noise.shape(4, 100)) for d in DIGESTS]
    other = [model.sample(d, 7, top=5, shape=noise.shape(3, 100)) for d in DIGESTS]
    assert same == again
    deltas = [
        float(a.logprob or 0) - float(b.logprob or 0)
        for a, b in zip(same, other, strict=True)
        if a.token_id == b.token_id
    ]
    assert statistics.pstdev(deltas) == pytest.approx(0.01 * 2**0.5, rel=0.2)


@pytest.mark.parametrize(("shapes", "is_seen"), [("batch", False), ("batch_and_length", True)])
def test_the_cached_length_shapes_the_noise_where_asked(shapes: str, is_seen: bool) -> None:
    noise = FakeModel(settings(noise_logprob_nats=0.01, noise_shapes=shapes)).noise
    assert (noise.shape(4, 100) != noise.shape(4, 20)) is is_seen


def test_ties_flip_and_clear_positions_do_not() -> None:
    def flips(tie_share: float) -> int:
        model = FakeModel(settings(noise_logprob_nats=0.01, noise_tie_share=tie_share))
        pairs = ([model.sample(d, 7, top=0, shape=s).token_id for s in (1, 2)] for d in DIGESTS)
        return sum(a != b for a, b in pairs)

    assert flips(0.0) == 0
    assert 20 < flips(0.5) < 150


def test_content_knows_when_it_turns_wrong() -> None:
    content = Content(1, 2, late_tokens=3, late_digest=9)
    assert content.at(2) is content
    assert content.at(3).digest == 9
    assert BLANK.at(1000) is BLANK


def test_pieces_of_tokens_are_hashed_one_by_one() -> None:
    whole = hash_tokens(list(range(40)), 16)
    assert len(whole) == 2
    assert whole[1] == hash_tokens(list(range(16, 32)), 16)[0]
    assert whole[0] != whole[1]


def test_position_of_a_block_counts() -> None:
    layout = Layout(settings())
    first, second = Content(1, 5), Content(2, 5)
    states = []
    for order in ([first, second], [second, first], [first, first]):
        context = Context(layout, 3)
        for content in order:
            context.push(0, content, generated_tokens=0)
        states.append(context.state)
    assert len(set(states)) == 3


def test_half_of_the_positions_speak_of_the_last_block() -> None:
    context = Context(Layout(settings()), 3)
    for topic in (1, 1, 1, 2):
        context.push(0, Content(topic, topic), generated_tokens=0)
    spoken = [context.topic_for(digest, 0) for digest in DIGESTS]
    assert spoken.count(2) / len(spoken) == pytest.approx(0.5 + 0.125, abs=0.08)

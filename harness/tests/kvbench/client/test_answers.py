"""What is made of the bytes of one completion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_server import DONE, event

from kvbench.client.answers import Answer, Completion, ErrorKind, RawAnswer, parse

GOLDEN = Path(__file__).parents[2] / "golden"
PROMPT = (5, 6, 7)


def request(**changes: Any) -> Completion:
    values: dict[str, Any] = {"request_id": "r", "new_tokens": 2, "top_logprobs": 2}
    return Completion(prompt=PROMPT, **(values | changes))


def choice(
    *ids: int, logprob: float | None = -1.0, top: dict[str, Any] | None = None, **more: Any
) -> bytes:
    top = {"token_id:1": -1.0, "token_id:2": -2.0} if top is None else top
    logprobs = {
        "tokens": [f"token_id:{token}" for token in ids],
        "token_logprobs": [logprob] * len(ids),
        "top_logprobs": [top] * len(ids),
    }
    return event({"choices": [{"token_ids": list(ids), "logprobs": logprobs, **more}]})


def usage(cached: int | None = 0) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    numbers = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
    return event({"choices": [], "usage": numbers})


def answer(*chunks: bytes, status: int = 200, wanted: Completion | None = None) -> Answer:
    pieces = [(10.0 + place, chunk) for place, chunk in enumerate(chunks)]
    raw = RawAnswer(sent_s=1.0, begin_s=9.0, end_s=20.0, http_status=status, pieces=pieces)
    return parse(raw, wanted or request())


def test_whole_answer_has_tokens_usage_and_times() -> None:
    got = answer(
        b": a comment\n\n",
        choice(1, prompt_token_ids=list(PROMPT)),
        choice(2, finish_reason="length"),
        usage(cached=2),
        DONE,
    )
    assert got.error is None
    assert [token.token_id for token in got.tokens] == [1, 2]
    assert got.tokens[0].top == {"1": -1.0, "2": -2.0}
    assert (got.prompt_tokens, got.cached_tokens, got.completion_tokens) == (3, 2, 2)
    assert (got.ttft_s, got.latency_s, got.finish_reason) == (2.0, 11.0, "length")


def test_events_split_over_pieces_are_joined() -> None:
    whole = choice(1) + choice(2) + usage() + DONE
    pieces = [whole[place : place + 7] for place in range(0, len(whole), 7)]
    assert answer(*pieces).error is None


def test_several_tokens_in_one_event_count_each() -> None:
    assert len(answer(choice(1, 2), usage(), DONE).tokens) == 2


def test_cached_tokens_that_were_not_told_stay_unknown() -> None:
    assert answer(choice(1, 2), usage(cached=None), DONE).cached_tokens is None


@pytest.mark.parametrize(
    ("chunks", "kind"),
    [
        ((choice(1, 2), usage()), "truncated"),
        ((choice(1), usage(), DONE), "truncated"),
        ((DONE,), "truncated"),
        ((choice(1), b"data: {not json\n\n", choice(2), DONE), "http"),
        ((choice(1), event({"error": {"message": "boom"}}), DONE), "http"),
        ((choice(1, 2, logprob=None), usage(), DONE), "nan"),
        ((choice(1, 2, top={"token_id:1": None, "token_id:2": -2.0}), DONE), "nan"),
        ((choice(1, 2, top={"token_id:1": -1.0}), usage(), DONE), "nan"),
        ((choice(1, 2, logprob=float("nan")), usage(), DONE), "nan"),
        ((choice(1, 2, logprob=float("-inf")), usage(), DONE), "nan"),
        ((event({"error": {"message": "Out of range float values"}}), DONE), "nan"),
        ((choice(1, 2, prompt_token_ids=[5, 6, 8]), usage(), DONE), "prompt"),
    ],
)
def test_damaged_answer_is_an_error_of_its_kind(chunks: tuple[bytes, ...], kind: ErrorKind) -> None:
    assert answer(*chunks).error_kind == kind


def test_unscored_answer_needs_no_logprobs() -> None:
    event_ = event({"choices": [{"token_ids": [1, 2], "logprobs": None}]})
    got = answer(event_, usage(), DONE, wanted=request(top_logprobs=0))
    assert got.error is None
    assert got.tokens[0].logprob is None


def test_http_400_out_of_range_is_corruption_and_not_a_client_error() -> None:
    body = b'{"error":{"message":"Out of range float values are not JSON compliant: nan"}}'
    assert answer(body, status=400).error_kind == "nan"
    assert answer(b'{"error":{"message":"too long"}}', status=400).error_kind == "http"


def test_server_that_answers_with_text_instead_of_ids_is_an_error() -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1, -1], "top_logprobs": [{}, {}]}
    got = answer(event({"choices": [{"logprobs": logprobs}]}), usage(), DONE)
    assert got.error_kind == "http"


def test_captured_stream_is_read() -> None:
    sent = json.loads((GOLDEN / "completion_request__vllm-0.32.0-cpu.json").read_text())
    wire = (GOLDEN / "completion_stream_tokens_as_ids__vllm-0.32.0-cpu.txt").read_bytes()
    wanted = Completion(
        prompt=sent["prompt"],
        request_id="r",
        new_tokens=sent["max_tokens"],
        top_logprobs=sent["logprobs"],
    )
    got = answer(wire, wanted=wanted)
    assert got.error is None
    assert got.prompt_tokens == len(sent["prompt"])
    assert got.cached_tokens == 256
    assert all(len(token.top) >= sent["logprobs"] for token in got.tokens)
    best = got.tokens[0]
    assert best.logprob == best.top[str(best.token_id)]


def test_captured_text_stream_lacks_a_logprob_because_two_tokens_have_one_text() -> None:
    """Why ids are asked for: by text, 19 of 20 alternatives are left."""
    sent = json.loads((GOLDEN / "completion_request__vllm-0.32.0-cpu.json").read_text())
    assert "return_tokens_as_token_ids" not in sent
    assert request().body("m")["return_tokens_as_token_ids"] is True


def test_words_of_the_request_are_pinned() -> None:
    assert request().body("m") == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 2,
        "temperature": 0,
        "seed": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
    }
    assert "logprobs" not in request(top_logprobs=0).body("m")
    assert request(data_parallel_rank=1).headers() == {
        "X-Request-Id": "r",
        "X-data-parallel-rank": "1",
    }

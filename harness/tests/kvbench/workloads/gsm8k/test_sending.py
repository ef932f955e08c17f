"""The sender against a small server: what is kept of an answer, and what ends a round."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gsm8k_spec
import msgspec
import pytest
from small_server import Handler, SmallServer, serving

from kvbench.events import Token
from kvbench.workloads.gsm8k.sending import Prompt, Sender, ServerLostError
from kvbench.workloads.gsm8k.spec import Answered, Lines, Spec

ROUTE = "POST /v1/completions"


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with serving() as small:
        small.routes[ROUTE] = lambda handler: handler.give(200, completion())
        yield small


def completion(**changes: Any) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "text": " 6 x 7 = 42\n#### 42",
        "finish_reason": "stop",
        "token_ids": [8, 9],
        "prompt_token_ids": [1, 2, 3],
        "logprobs": {
            "tokens": ["token_id:8", "token_id:9"],
            "token_logprobs": [-0.5, -0.25],
            "top_logprobs": [
                {"token_id:8": -0.5, "token_id:5": -1.0},
                {"token_id:9": -0.25, "token_id:6": -2.0},
            ],
        },
    }
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return json.dumps({"choices": [choice | changes], "usage": usage}).encode()


def prompt(doc_id: int, ids: tuple[int, ...] | None = (1, 2, 3)) -> Prompt:
    body = {"model": "m", "prompt": [list(ids)] if ids else "text", "max_tokens": 2, "doc": doc_id}
    return Prompt(doc_id=doc_id, text=f"question {doc_id}", ids=ids, body=body)


def spec(server: SmallServer, **changes: Any) -> Spec:
    told = {"url": server.url, "top_logprobs": 2, "id_prefix": "w007-s."} | changes
    return gsm8k_spec.spec("m", **told)


def send(told: Spec, *prompts: Prompt) -> tuple[Sender, list[Answered]]:
    file = io.BytesIO()
    sender = Sender(told, Lines(file))
    try:
        asyncio.run(sender.send(prompts))
    finally:
        lines = file.getvalue().splitlines()
        answers = [msgspec.json.decode(line, type=Answered) for line in lines]
        assert {each.doc_id: each for each in answers} == sender.answers
    return sender, answers


def only(server: SmallServer, answer: Callable[[Handler], None], **changes: Any) -> Answered:
    server.routes[ROUTE] = answer
    _, (answered,) = send(spec(server, **changes), prompt(0))
    return answered


def by_doc(handler: Handler) -> int:
    doc: int = json.loads(handler.body)["doc"]
    return doc


def test_everything_that_the_server_says_is_kept(server: SmallServer) -> None:
    sender, (answer,) = send(spec(server), prompt(5))
    assert answer.error is None
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (3, 2, 2)
    assert (answer.finish_reason, answer.text) == ("stop", " 6 x 7 = 42\n#### 42")
    assert answer.tokens == (
        Token(8, -0.5, {"8": -0.5, "5": -1.0}),
        Token(9, -0.25, {"9": -0.25, "6": -2.0}),
    )
    assert answer.request_id == "w007-s.q5-1"
    assert answer.prompt_sha256 == prompt(5).sha256 != prompt(6).sha256
    assert sender.echoed == {5: [1, 2, 3]}
    (seen,) = server.seen
    assert seen.headers["X-Request-Id"] == "w007-s.q5-1"
    assert json.loads(seen.body) == prompt(5).body
    assert "X-data-parallel-rank" not in seen.headers


def test_questions_go_out_in_order_and_no_more_at_once_than_asked(server: SmallServer) -> None:
    lock, busy, most = threading.Lock(), [0], [0]
    both = threading.Barrier(2, timeout=5)

    def answer(handler: Handler) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        both.wait()
        with lock:
            busy[0] -= 1
        handler.give(200, completion())

    server.routes[ROUTE] = answer
    _, answers = send(spec(server, concurrency=2), *(prompt(doc) for doc in range(6)))
    assert len(answers) == 6
    assert most[0] == 2
    order = [json.loads(seen.body)["doc"] for seen in server.seen]
    assert {*order[:2]} == {0, 1}
    assert {*order[4:]} == {4, 5}


def test_question_goes_to_the_same_engine_in_every_round(server: SmallServer) -> None:
    _, answers = send(spec(server, engines=2), *(prompt(doc) for doc in range(3)))
    assert [answer.engine for answer in answers] == [0, 1, 0]
    assert [seen.headers["X-data-parallel-rank"] for seen in server.seen] == ["0", "1", "0"]


def test_refused_question_is_an_answer_with_an_error_and_asked_once(server: SmallServer) -> None:
    def answer(handler: Handler) -> None:
        refused = by_doc(handler) == 1
        handler.give(400 if refused else 200, b'{"error": "no"}' if refused else completion())

    server.routes[ROUTE] = answer
    _, answers = send(spec(server), *(prompt(doc) for doc in range(3)))
    assert [each.error for each in answers] == [None, 'HTTP 400: {"error": "no"}', None]
    assert (answers[1].error_kind, answers[1].text) == ("http", None)
    assert len(server.seen) == 3


def test_nan_that_vllm_refuses_to_write_is_named(server: SmallServer) -> None:
    body = b'{"error": "Out of range float values are not JSON compliant"}'
    answer = only(server, lambda handler: handler.give(400, body))
    assert answer.error_kind == "nan"


def test_value_that_is_missing_is_named_and_the_rest_kept(server: SmallServer) -> None:
    logprobs = {"token_logprobs": [-0.5, None], "top_logprobs": [{"token_id:8": -0.5, "x": -1.0}]}
    answer = only(server, lambda handler: handler.give(200, completion(logprobs=logprobs)))
    assert answer.error_kind == "nan"
    assert (answer.prompt_tokens, len(answer.tokens)) == (3, 2)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"finish_reason": None}, "truncated"),
        ({"text": None}, "truncated"),
        ({"prompt_token_ids": [1, 2, 4]}, "prompt"),
    ],
)
def test_defect_of_a_whole_answer_is_named(
    server: SmallServer, changes: dict[str, Any], kind: str
) -> None:
    answer = only(server, lambda handler: handler.give(200, completion(**changes)))
    assert answer.error_kind == kind


@pytest.mark.parametrize("body", [b"<html>", b'{"choices": []}'])
def test_body_that_is_no_completion(server: SmallServer, body: bytes) -> None:
    answer = only(server, lambda handler: handler.give(200, body))
    assert answer.error_kind == "truncated"


def test_prompt_that_went_out_as_text_is_not_compared(server: SmallServer) -> None:
    sender, (answer,) = send(spec(server), prompt(0, ids=None))
    assert answer.error is None
    assert sender.echoed == {0: [1, 2, 3]}


def test_dropped_connection_ends_the_round_and_keeps_what_came(server: SmallServer) -> None:
    def answer(handler: Handler) -> None:
        if by_doc(handler) == 2:
            handler.connection.close()
        else:
            handler.give(200, completion())

    server.routes[ROUTE] = answer
    file = io.BytesIO()
    sender = Sender(spec(server), Lines(file))
    with pytest.raises(ServerLostError, match=r"w007-s\.q2-1"):
        asyncio.run(sender.send([prompt(doc) for doc in range(5)]))
    answers = [msgspec.json.decode(line, type=Answered) for line in file.getvalue().splitlines()]
    assert [(each.doc_id, each.error_kind) for each in answers] == [
        (0, None),
        (1, None),
        (2, "connection"),
    ]
    assert len(server.seen) == 3


def test_silent_server_ends_the_round_as_a_timeout(server: SmallServer) -> None:
    over = threading.Event()

    def wait(_: Handler) -> None:
        over.wait(5)

    server.routes[ROUTE] = wait
    with pytest.raises(ServerLostError, match=r"no complete answer within 0\.1 s"):
        send(spec(server, request_limit_s=0.1, concurrency=2), prompt(0), prompt(1))
    over.set()

"""The client against a server that says what a test wrote down."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest
from small_server import DONE, Handler, SmallServer, event, in_turn, serving, text

from kvbench.client import RESET_EXTERNAL_QUERY, RESET_PATH, Client, Completion
from kvbench.errors import EngineError

GENERATE = "POST /v1/completions"
USAGE = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.fixture
def small() -> Iterator[SmallServer]:
    with serving() as server:
        yield server


@pytest.fixture
def client(small: SmallServer) -> Iterator[Client]:
    with Client(small.url, "m", request_limit_s=5) as made:
        yield made


def echo(handler: Handler) -> None:
    """Answer with the first token of the prompt."""
    token = json.loads(handler.body)["prompt"][0]
    choice = {"token_ids": [token], "finish_reason": "length"}
    handler.stream(event({"choices": [choice]}), USAGE, DONE)


def requests(count: int) -> list[Completion]:
    return [
        Completion(prompt=[place], request_id=f"r{place}", new_tokens=1, top_logprobs=0)
        for place in range(count)
    ]


def test_answers_of_a_wave_come_in_order(small: SmallServer, client: Client) -> None:
    small.routes[GENERATE] = echo
    answers = client.complete_many(requests(20), concurrency=8)
    assert [answer.tokens[0].token_id for answer in answers] == list(range(20))
    assert {seen.headers["X-Request-Id"] for seen in small.seen} == {f"r{n}" for n in range(20)}


def test_a_wave_is_sent_together_and_not_beyond_its_concurrency(
    small: SmallServer, client: Client
) -> None:
    together = threading.Barrier(4)
    running = 0
    most = 0
    lock = threading.Lock()

    def meet(handler: Handler) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(5)
        with lock:
            running -= 1
        echo(handler)

    small.routes[GENERATE] = meet
    answers = client.complete_many(requests(8), concurrency=4)
    assert all(answer.error is None for answer in answers)
    assert most == 4


def test_silent_server_is_a_timeout_and_not_an_exception(
    small: SmallServer, client: Client
) -> None:
    small.routes[GENERATE] = lambda handler: time.sleep(1)
    answer = client.complete([1], request_id="r", new_tokens=1, top_logprobs=0, limit_s=0.2)
    assert answer.error_kind == "timeout"
    assert answer.latency_s < 1


def test_connection_that_breaks_is_an_error_and_the_request_is_not_sent_again(
    small: SmallServer, client: Client
) -> None:
    small.routes[GENERATE] = lambda handler: handler.connection.close()
    answer = client.complete([1], request_id="r", new_tokens=1, top_logprobs=0)
    assert answer.error_kind == "connection"
    assert len(small.seen) == 1


def test_server_that_is_gone_is_an_error() -> None:
    with serving() as gone:
        pass
    with Client(gone.url, "m", request_limit_s=2) as client:
        answer = client.complete([1], request_id="r", new_tokens=1, top_logprobs=0)
        assert (answer.error_kind, answer.http_status) == ("connection", None)
        assert client.health() is False
        assert client.version() is None
        with pytest.raises(EngineError):
            client.metrics_page()


def test_stream_that_ends_early_is_truncated(small: SmallServer, client: Client) -> None:
    small.routes[GENERATE] = lambda handler: handler.stream(
        event({"choices": [{"token_ids": [1]}]})
    )
    answer = client.complete([1], request_id="r", new_tokens=1, top_logprobs=0)
    assert answer.error_kind == "truncated"


def test_words_of_a_reset_are_pinned() -> None:
    """A misspelt parameter is answered with success, so nothing else would notice."""
    assert f"{RESET_PATH}?{RESET_EXTERNAL_QUERY}" == "/reset_prefix_cache?reset_external=true"


def test_reset_sends_exactly_these_words(small: SmallServer, client: Client) -> None:
    client.reset_prefix_cache(external=False)
    client.reset_prefix_cache(external=True)
    assert [(seen.method, seen.path) for seen in small.seen] == [
        ("POST", "/reset_prefix_cache"),
        ("POST", "/reset_prefix_cache?reset_external=true"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "success"),
    [
        ('{"success":true}', 200, True),
        ('{"success":false}', 200, False),
        ("", 200, None),
        ('{"success":"yes"}', 200, None),
        ("[]", 200, None),
        ('{"detail":"Not Found"}', 404, None),
    ],
)
def test_reset_success_is_only_what_the_body_says(
    small: SmallServer, client: Client, body: str, status: int, success: bool | None
) -> None:
    small.routes["POST /reset_prefix_cache"] = text(body, status)
    answer = client.reset_prefix_cache(external=False)
    assert (answer.http_status, answer.body, answer.success) == (status, body, success)


def test_refused_reset_is_asked_again(small: SmallServer, client: Client) -> None:
    refused, done = text('{"success":false}'), text('{"success":true}')
    small.routes["POST /reset_prefix_cache"] = in_turn(refused, refused, done)
    answers = client.reset_until(external=False, limit_s=5)
    assert [answer.success for answer in answers] == [False, False, True]


def test_reset_refused_for_ever_ends_at_its_limit(small: SmallServer, client: Client) -> None:
    small.routes["POST /reset_prefix_cache"] = text('{"success":false}')
    answers = client.reset_until(external=False, limit_s=0.6)
    assert 2 <= len(answers) <= 4
    assert answers[-1].success is False


def test_reset_without_a_word_is_not_asked_again(small: SmallServer, client: Client) -> None:
    small.routes["POST /reset_prefix_cache"] = text("")
    assert len(client.reset_until(external=False, limit_s=5)) == 1


def test_pages_are_read(small: SmallServer, client: Client) -> None:
    small.routes |= {
        "GET /health": text(""),
        "GET /metrics": text("a 1\n"),
        "GET /version": text('{"version":"1.2"}'),
        "GET /v1/models": text('{"data":[{"id":"m"}]}'),
        "GET /server_info?config_format=json": text('{"vllm_config":{}}'),
    }
    assert client.health()
    assert client.metrics_page() == "a 1\n"
    assert client.version() == "1.2"
    assert client.models() == [{"id": "m"}]
    assert client.server_info() == {"vllm_config": {}}


def test_hanging_development_endpoint_ends_at_its_limit(small: SmallServer, client: Client) -> None:
    small.routes["GET /server_info?config_format=json"] = lambda handler: time.sleep(1)
    assert client.server_info(limit_s=0.2) is None


def test_page_that_is_refused_is_an_engine_error(small: SmallServer, client: Client) -> None:
    small.routes["GET /metrics"] = text("no", 500)
    with pytest.raises(EngineError, match="HTTP 500"):
        client.metrics_page()


def test_proxy_of_the_environment_is_not_used(
    small: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    small.routes["GET /health"] = text("")
    with Client(small.url, "m", request_limit_s=2) as client:
        assert client.health()


def test_interrupt_cancels_what_is_under_way(
    small: SmallServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.routes[GENERATE] = lambda handler: time.sleep(0.5)
    cancelled = threading.Event()
    generate = client._generate

    async def watched(request: Completion, limit_s: float) -> object:
        try:
            return await generate(request, limit_s)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(client, "_generate", watched)
    future = asyncio.run_coroutine_threadsafe(client._wave(requests(1), 1, 5), client._loop)
    time.sleep(0.1)
    future.cancel()
    assert cancelled.wait(2)


def test_closing_twice_is_fine(small: SmallServer) -> None:
    client = Client(small.url, "m", request_limit_s=1)
    client.close()
    client.close()


def test_key_is_sent_when_there_is_one(small: SmallServer) -> None:
    with Client(small.url, "m", request_limit_s=2, api_key="k") as client:
        client.health()
    assert small.seen[0].headers["Authorization"] == "Bearer k"

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_front import FakeFront, client, front

from kvbench import clock
from kvbench.client import Client, Completion
from kvbench.engine import effective
from kvbench.engine.fake.settings import FakeGroup
from kvbench.telemetry import metrics

PROMPT = tuple(range(300, 350))
LIMIT_S = 5.0


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeFront]:
    with front(tmp_path, tier="simple_eager", host_blocks=64) as running:
        yield running


@pytest.fixture
def asking(fake: FakeFront) -> Iterator[Client]:
    with client(fake) as found:
        yield found


def call(fake: FakeFront, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(fake.url + path, data)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def until(condition: Any) -> None:
    deadline_s = clock.monotonic_s() + LIMIT_S
    while not condition():
        assert clock.monotonic_s() < deadline_s, "it did not happen"
        clock.sleep_s(0.005)


def test_client_of_the_harness_gets_a_whole_answer(asking: Client) -> None:
    answer = asking.complete(PROMPT, request_id="a-1", new_tokens=6, top_logprobs=20)
    assert answer.error is None
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (50, 0, 6)
    assert answer.finish_reason == "length"
    assert all(len(token.top) == 20 for token in answer.tokens)
    again = asking.complete(PROMPT, request_id="a-2", new_tokens=6, top_logprobs=20)
    assert again.tokens == answer.tokens
    assert again.cached_tokens == 48


def test_streamed_and_whole_answers_are_the_same(fake: FakeFront, asking: Client) -> None:
    streamed = asking.complete(PROMPT, request_id="a", new_tokens=4, top_logprobs=2)
    body = Completion(PROMPT, "b", 4, 2).body("fake-model") | {"stream": False}
    status, whole = call(fake, "/v1/completions", body)
    assert status == 200
    choice = whole["choices"][0]
    assert choice["token_ids"] == [token.token_id for token in streamed.tokens]
    assert choice["logprobs"]["token_logprobs"] == [token.logprob for token in streamed.tokens]
    assert choice["prompt_token_ids"] == list(PROMPT)


def test_chat_answers_in_both_forms(fake: FakeFront) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    status, whole = call(fake, "/v1/chat/completions", body)
    assert status == 200
    content = whole["choices"][0]["message"]["content"]
    data = json.dumps({**body, "stream": True}).encode()
    with urllib.request.urlopen(fake.url + "/v1/chat/completions", data) as answer:
        lines = [line for line in answer.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == content
    assert [c["choices"][0]["finish_reason"] for c in chunks][-2:] == [None, "length"]


def test_counters_show_what_was_answered(asking: Client) -> None:
    for request_id in ("a", "b"):
        asking.complete(PROMPT, request_id=request_id, new_tokens=2, top_logprobs=0)
    settled = metrics.settle(asking, finished=2, prompt_tokens=100, since=(), limit_s=LIMIT_S)
    assert settled.reached
    assert metrics.total(settled.samples, "local_hits") == 48
    assert metrics.total(settled.samples, "generation_tokens") == 4
    assert 'time_to_first_token_seconds_count{engine="0",model_name="fake-model"} 2.0' in (
        settled.page
    )


def test_reset_clears_what_it_says(asking: Client) -> None:
    def cached(request_id: str) -> int | None:
        answer = asking.complete(PROMPT, request_id=request_id, new_tokens=1, top_logprobs=0)
        return answer.cached_tokens

    assert cached("a") == 0
    assert asking.reset_until(external=False, limit_s=LIMIT_S)[-1].success is True
    assert cached("b") == 48  # the host tier still has it
    assert asking.reset_until(external=True, limit_s=LIMIT_S)[-1].success is True
    assert cached("c") == 0


def test_reset_is_refused_while_a_request_runs(tmp_path: Path) -> None:
    with front(tmp_path, decode_tokens_per_s=50.0) as fake, client(fake) as asking:
        with socket.create_connection(("127.0.0.1", fake.port)) as open_request:
            send(open_request, {"prompt": list(PROMPT), "max_tokens": 1000, "stream": True})
            open_request.recv(1)
            assert asking.reset_prefix_cache(external=True).success is False
        until(lambda: asking.reset_prefix_cache(external=True).success)


def send(connection: socket.socket, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_client_that_leaves_ends_its_request(tmp_path: Path, is_streamed: bool) -> None:
    with front(tmp_path, decode_tokens_per_s=200.0) as fake:
        with socket.create_connection(("127.0.0.1", fake.port)) as leaving:
            send(leaving, {"prompt": [300], "max_tokens": 10_000, "stream": is_streamed})
            counters = fake.cores[0].counters
            until(lambda: counters.generation_tokens > 0)
        until(lambda: counters.finished["abort"] == 1)
        assert counters.running == 0


def test_rank_chooses_the_engine_and_others_take_turns(tmp_path: Path) -> None:
    with front(tmp_path, engines=2) as fake, client(fake) as asking:
        for number in range(3):
            asking.complete(
                PROMPT,
                request_id=f"r{number}",
                new_tokens=1,
                top_logprobs=0,
                data_parallel_rank=1,
            )
        assert [core.counters.finished["length"] for core in fake.cores] == [0, 3]
        for number in range(4):
            asking.complete(PROMPT, request_id=f"f{number}", new_tokens=1, top_logprobs=0)
        assert [core.counters.finished["length"] for core in fake.cores] == [2, 5]


def test_wave_is_served_side_by_side(asking: Client) -> None:
    requests = [Completion((400 + n, *PROMPT), f"w{n}", 3, 1) for n in range(12)]
    answers = asking.complete_many(requests, concurrency=6)
    assert [answer.error for answer in answers] == [None] * 12
    assert len({tuple(t.token_id for t in answer.tokens) for answer in answers}) == 12


def test_what_the_server_says_about_itself(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model_id": "m",
        "engines": 2,
        "gpu_blocks": 32,
        "groups": (FakeGroup(kind="full_attention", block_tokens=32),),
        "hash_block_tokens": 32,
        "hit_alignment_tokens": 32,
        "max_num_seqs": 4,
        "chunk_tokens": 64,
        "dtype": "bfloat16",
        "connector_class": "SimpleCPUOffloadConnector",
        "connector_config": {"cpu_bytes_to_use": 7},
        "effective": {"tensor_parallel": 2},
    }
    with front(tmp_path, **settings) as fake, client(fake) as asking:
        assert asking.health()
        assert asking.version() == "0.32.0+kvbench.fake"
        assert asking.models()[0]["id"] == "m"
        found = effective.read(
            metrics_page=asking.metrics_page(), server_info=asking.server_info(), log_text=""
        )
    assert (
        found
        | {
            "gpu_blocks": 32,
            "block_tokens": 32,
            "max_num_seqs": 4,
            "chunk_tokens": 64,
            "dtype": "bfloat16",
            "data_parallel": 2,
            "tensor_parallel": 2,
            "connector": "SimpleCPUOffloadConnector",
            "connector_config": {"cpu_bytes_to_use": 7},
        }
        == found
    )


def test_without_development_mode_there_is_no_reset_and_no_configuration(tmp_path: Path) -> None:
    with front(tmp_path, dev_mode=False) as fake, client(fake) as asking:
        assert asking.reset_prefix_cache(external=True).http_status == 404
        assert asking.server_info() is None


def test_sources_of_events_are_those_of_each_engine(tmp_path: Path) -> None:
    with front(tmp_path) as fake:
        assert call(fake, "/kv_event_sources") == (200, {})
    endpoints = {
        "kv_events_endpoint": "tcp://*:5831",
        "kv_events_replay_endpoint": "ipc:///x/inproc-replay",
    }
    with front(tmp_path, engines=2, **endpoints) as fake:
        _, found = call(fake, "/kv_event_sources")
    assert found["1"]["endpoint"] == "tcp://*:5832"
    assert found["1"]["replay_endpoint"] == "ipc:///x/inproc-replay_dp1"
    assert found["0"]["buffer_steps"] == 10_000


def test_tokenize_counts(fake: FakeFront) -> None:
    _, found = call(fake, "/tokenize", {"prompt": "a t300 "})
    assert (found["count"], found["tokens"]) == (3, [97, 32, 300])
    _, chat = call(fake, "/tokenize", {"messages": [{"role": "user", "content": "a"}]})
    assert chat["count"] == len("<|user|>\na\n<|assistant|>\n")


def test_mistakes_are_answered_with_an_error(fake: FakeFront) -> None:
    assert call(fake, "/nowhere")[0] == 404
    assert call(fake, "/tokenize", {"prompt": 7})[0] == 400
    status, body = call(fake, "/v1/completions", {"prompt": [1], "model": "other"})
    assert (status, body["error"]["type"]) == (404, "NotFoundError")
    status, body = call(fake, "/v1/completions", {"prompt": [300] * 20_000, "max_tokens": 1})
    assert status == 400  # longer than the device's pool
    assert "blocks" in body["error"]["message"]


def test_long_prompt_is_taken(tmp_path: Path) -> None:
    with front(tmp_path, gpu_blocks=12_000, max_model_len_tokens=200_000) as fake:
        prompt = [31_999] * 180_000  # more than the megabyte that aiohttp takes by default
        status, body = call(fake, "/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert status == 200
    assert body["usage"]["prompt_tokens"] == 180_000

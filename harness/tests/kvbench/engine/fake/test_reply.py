from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvbench.client.answers import Completion
from kvbench.engine.fake.asked import Asked, RefusedError, read_chat, read_completion
from kvbench.engine.fake.reply import NAN_MESSAGE, Reply
from kvbench.engine.fake.request import TokenOut
from kvbench.engine.fake.settings import FakeSettings

GOLDEN = Path(__file__).parents[3] / "golden"
SETTINGS = FakeSettings(model_id="m")
LEFT_OUT = {"service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"}
LEFT_OUT_OF_CHOICE = {"routed_experts"}


def asked(**body: Any) -> Asked:
    return read_completion(json.dumps({"prompt": [7, 8], **body}).encode(), {}, SETTINGS)


def answered(request: Asked, *tokens: TokenOut) -> Reply:
    request.request.output = list(tokens)
    return Reply(request, "m", "0.32")


def token(token_id: int, logprob: float | None = -1.5) -> TokenOut:
    return TokenOut(token_id, logprob, [(token_id, logprob), (token_id + 1, -3.0)])


def stream_of(name: str) -> list[dict[str, Any]]:
    text = (GOLDEN / f"{name}__vllm-0.32.0-cpu.txt").read_text()
    lines = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")
    ]
    return [json.loads(line) for line in lines]


def test_whole_answer_has_the_fields_of_a_real_one() -> None:
    real = json.loads((GOLDEN / "completion_tokens_as_ids__vllm-0.32.0-cpu.json").read_text())
    wanted = asked(logprobs=2, return_token_ids=True, return_tokens_as_token_ids=True)
    body = answered(wanted, token(634), token(830)).whole()
    assert body.keys() == real.keys() - LEFT_OUT
    assert body["usage"].keys() == real["usage"].keys() - {"completion_tokens_details"}
    assert (
        body["usage"]["prompt_tokens_details"].keys()
        == real["usage"]["prompt_tokens_details"].keys()
    )
    choice, real_choice = body["choices"][0], real["choices"][0]
    assert choice.keys() == real_choice.keys() - LEFT_OUT_OF_CHOICE
    assert choice["logprobs"].keys() == real_choice["logprobs"].keys()
    assert choice["logprobs"]["text_offset"] == real_choice["logprobs"]["text_offset"][:2]
    assert choice["logprobs"]["tokens"] == real_choice["logprobs"]["tokens"][:2]
    assert choice["logprobs"]["top_logprobs"][0] == {"token_id:634": -1.5, "token_id:635": -3.0}


def test_stream_has_the_fields_of_a_real_one() -> None:
    first, second, *_, last = stream_of("completion_stream_tokens_as_ids")
    wanted = asked(
        logprobs=2,
        return_token_ids=True,
        return_tokens_as_token_ids=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    reply = answered(wanted, token(634), token(830))
    ours = [reply.chunk([token(634)], None), reply.chunk([token(830)], "length"), reply.closing()]
    for mine, real in zip(ours, (first, second, last), strict=True):
        assert mine is not None
        assert mine.keys() == real.keys()
    assert ours[0] is not None
    assert ours[1] is not None
    assert ours[0]["choices"][0].keys() == first["choices"][0].keys()
    assert ours[0]["choices"][0]["prompt_token_ids"] == [7, 8]
    assert ours[1]["choices"][0]["prompt_token_ids"] is None
    assert ours[1]["choices"][0]["logprobs"]["text_offset"] == [12]
    assert ours[1]["choices"][0]["finish_reason"] == "length"


def test_tokens_of_one_text_leave_one_entry() -> None:
    same = TokenOut(200, -1.0, [(200, -1.0), (200, -2.0)])
    body = answered(asked(logprobs=2), same).whole()
    assert len(body["choices"][0]["logprobs"]["top_logprobs"][0]) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_number_refuses_a_whole_answer(value: float) -> None:
    with pytest.raises(RefusedError, match=NAN_MESSAGE):
        answered(asked(logprobs=1), token(300, value)).whole()
    answered(asked(), token(300, value)).whole()


def test_missing_value_is_null() -> None:
    body = answered(asked(logprobs=1), token(300, None)).whole()
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [None]


def test_body_that_the_harness_sends_is_understood() -> None:
    completion = Completion(
        prompt=[1, 2, 3], request_id="r-1", new_tokens=5, top_logprobs=20, data_parallel_rank=0
    )
    data = json.dumps(completion.body("m")).encode()
    found = read_completion(data, completion.headers(), SETTINGS)
    assert (found.request.request_id, found.request.prompt) == ("r-1", (1, 2, 3))
    assert (found.request.new_tokens, found.top, found.rank) == (5, 20, 0)
    assert found.is_streamed
    assert found.has_usage
    assert found.names_are_ids


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": []}, 400, "empty"),
        ({"prompt": [-1]}, 400, "vocabulary"),
        ({"prompt": [[1], [2]]}, 400, "one prompt"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"prompt": [1], "n": 2}, 400, "one answer"),
        ({"prompt": [1], "model": "other"}, 404, "does not exist"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": [1], "logprobs": 21}, 400, "max allowed: 20"),
        ({"prompt": [1] * 40_000}, 400, "maximum context length is 32768"),
    ],
)
def test_what_cannot_be_done_is_refused(body: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as refused:
        read_completion(json.dumps(body).encode(), {}, SETTINGS)
    assert refused.value.status == status


def test_rank_that_does_not_exist_is_refused() -> None:
    for rank in ("1", "-1", "x"):
        with pytest.raises(RefusedError, match="out of range"):
            read_completion(b'{"prompt":[1]}', {"X-data-parallel-rank": rank}, SETTINGS)


def test_list_with_one_prompt_is_that_prompt() -> None:
    for prompt in ([[1, 2]], ["\x01\x02"], "\x01\x02"):
        data = json.dumps({"prompt": prompt}).encode()
        assert read_completion(data, {}, SETTINGS).request.prompt == (1, 2)


def test_chat_takes_text_parts_and_either_limit() -> None:
    for limit in ("max_tokens", "max_completion_tokens"):
        parts = [{"type": "text", "text": "hi"}, {"type": "image_url"}]
        body = {"messages": [{"role": "user", "content": parts}], limit: 3}
        found = read_chat(json.dumps(body).encode(), {}, SETTINGS)
        assert found.request.new_tokens == 3
        assert bytes(found.request.prompt) == b"<|user|>\nhi\n<|assistant|>\n"
    assert found.top is None


def test_chat_log_probabilities_name_tokens() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2}
    wanted = read_chat(json.dumps({**body, "max_tokens": 1}).encode(), {}, SETTINGS)
    content = answered(wanted, token(300)).whole()["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "t300 "
    assert [entry["logprob"] for entry in content[0]["top_logprobs"]] == [-1.5, -3.0]

"""The real lm-eval, in its process, against a server that knows half of the answers.

These hold the parts of lm-eval that kvbench stands on: the stock task by an include, the request
body, the order, the filters and the score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gsm8k_rows
import msgspec
import pytest
from gsm8k_spec import spec
from small_server import Handler, SmallServer, serving

from kvbench import tiny
from kvbench.workloads.gsm8k.run import Limits, Round, ToolError, Watching
from kvbench.workloads.gsm8k.spec import PROMPTS, Answered, Result, Spec

ROUTE = "POST /v1/completions"
SHOTS = 5


def doc_of(headers: dict[str, str]) -> int:
    return int(headers["X-Request-Id"].removeprefix("w001-s.q").removesuffix("-1"))


def reply(handler: Handler) -> None:
    """Right for even questions; for odd ones a sum that only the flexible filter can read."""
    doc = doc_of(dict(handler.headers))
    right = gsm8k_rows.answer(doc)
    text = f" It is so.\n#### {right}" if doc % 2 == 0 else f" I think it is {right}"
    prompt = json.loads(handler.body)["prompt"]
    length = len(prompt[0]) if isinstance(prompt, list) else len(prompt.encode())
    names = {"token_id:7": -0.5, "token_id:8": -1.5}
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": "stop",
        "token_ids": [7],
        "logprobs": {
            "tokens": ["token_id:7"],
            "token_logprobs": [-0.5],
            "top_logprobs": [names],
        },
    }
    usage = {
        "prompt_tokens": length,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    handler.give(200, json.dumps({"choices": [choice], "usage": usage}).encode())


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with serving() as small:
        small.routes[ROUTE] = reply
        yield small


class Calm:
    pause_s = 1.0

    def look(self) -> None:
        pass


def a_round(tmp_path: Path, server: SmallServer, told: Spec) -> Round:
    folder = tmp_path / "folder"
    folder.mkdir()
    return Round(
        spec=msgspec.structs.replace(told, url=server.url),
        folder=folder,
        log=tmp_path / "child.log",
        limits=Limits(silence_s=120, round_s=240),
        watching=Watching(
            on_answer=lambda _: None,
            on_asking=lambda _: None,
            look=lambda: None,
            make_watch=Calm,
        ),
    )


def run(played: Round) -> tuple[Result, dict[int, Answered]]:
    result = played.run()
    return result, {answer.doc_id: answer for answer in played.answers}


def bodies(server: SmallServer) -> dict[int, dict[str, Any]]:
    return {doc_of(seen.headers): json.loads(seen.body) for seen in server.seen}


def test_stock_task_is_asked_and_scored_by_lm_eval(tmp_path: Path, server: SmallServer) -> None:
    checkpoint = tiny.build("qwen3", cache_dir=tmp_path)
    told = spec(
        "m",
        data=gsm8k_rows.write(tmp_path, test=14),
        samples=12,
        shots=SHOTS,
        tokenizer=str(checkpoint.path),
        max_length_tokens=4096,
        max_new_tokens=64,
        top_logprobs=2,
    )
    played = a_round(tmp_path, server, told)
    result, answers = run(played)

    assert (result.task, result.task_version, result.tool_version) == ("gsm8k_own", "3.0", "0.4.13")
    assert (result.shots, result.asked, result.answered) == (SHOTS, 12, 12)
    value, stderr = result.scores["strict"]
    assert value == 0.5
    assert stderr == pytest.approx(math.sqrt(0.5 * 0.5 / 11))
    assert result.scores["flexible"] == (1.0, 0.0)
    strict = {
        row.doc_id: (row.answer, row.correct) for row in result.rows if row.filter == "strict"
    }
    assert strict == {
        doc: (str(gsm8k_rows.answer(doc)), True) if doc % 2 == 0 else (None, False)
        for doc in range(12)
    }

    sent = bodies(server)
    first = sent[0]
    assert {name: value for name, value in first.items() if name != "prompt"} == {
        "model": "m",
        "max_tokens": 64,
        "temperature": 0.0,
        "stop": ["Question:", "</s>", "<|im_end|>"],
        "seed": 1234,
        "stream": False,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    lengths = [len(json.loads(seen.body)["prompt"][0]) for seen in server.seen]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 1
    assert all(answers[doc].prompt_tokens == len(sent[doc]["prompt"][0]) for doc in range(12))
    prompts = {
        int(doc): ids for doc, ids in json.loads((played.folder / PROMPTS).read_text()).items()
    }
    assert prompts == {doc: body["prompt"][0] for doc, body in sent.items()}
    heads = {tuple(ids[:60]) for ids in prompts.values()}
    assert len(heads) > 1, "stock: every question has examples of its own"


@pytest.mark.e2e
def test_first_n_shares_its_examples_and_a_lost_answer_leaves_no_score(
    tmp_path: Path, server: SmallServer
) -> None:
    def refuse_one(handler: Handler) -> None:
        if doc_of(dict(handler.headers)) == 3:
            handler.give(400, b'{"error": {"message": "no"}}')
        else:
            reply(handler)

    server.routes[ROUTE] = refuse_one
    data = gsm8k_rows.write(tmp_path)
    told = spec("m", data=data, samples=None, shots=SHOTS, shots_kind="first_n", concurrency=3)
    result, answers = run(a_round(tmp_path, server, told))

    assert (result.asked, result.answered, result.scores) == (12, 11, {})
    assert {row.doc_id for row in result.rows} == {*range(12)} - {3}
    assert (answers[3].http_status, answers[3].error_kind, answers[3].text) == (400, "http", None)
    assert len(server.seen) == 12
    texts = {doc: body["prompt"] for doc, body in bodies(server).items()}
    rows = [json.loads(line) for line in Path(data.train).read_text().splitlines()[:SHOTS]]
    shared = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows)
    for doc, text in texts.items():
        question = gsm8k_rows.row(doc, "test")["question"]
        assert text == f"{shared}Question: {question}\nAnswer:"


def test_prompt_that_lm_eval_would_cut_is_refused_before_anything_is_sent(
    tmp_path: Path, server: SmallServer
) -> None:
    checkpoint = tiny.build("qwen3", cache_dir=tmp_path)
    data = gsm8k_rows.write(tmp_path)
    told = spec("m", data=data, tokenizer=str(checkpoint.path), max_length_tokens=300)
    played = a_round(tmp_path, server, told)
    with pytest.raises(ToolError, match=r"4 of 4 prompts do not fit.* the server takes 300"):
        played.run()
    assert server.seen == []


@pytest.mark.e2e
def test_more_questions_than_there_are_is_an_error(tmp_path: Path, server: SmallServer) -> None:
    told = spec("m", data=gsm8k_rows.write(tmp_path, test=3))
    with pytest.raises(ToolError, match="4 questions are asked for, the data has 3"):
        a_round(tmp_path, server, told).run()
    assert server.seen == []


@pytest.mark.e2e
def test_too_few_examples_end_in_lm_evals_own_words(tmp_path: Path, server: SmallServer) -> None:
    told = spec("m", data=gsm8k_rows.write(tmp_path, train=3))
    with pytest.raises(ToolError, match=r"status 1 (?s:.*)sample"):
        a_round(tmp_path, server, told).run()
    assert server.seen == []

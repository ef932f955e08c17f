"""Faults of the front: what a client, or a reader of /metrics, sees with and without them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_front import FakeFront, client, front

from kvbench.client import Answer, Client
from kvbench.engine.fake.faults import ActiveFaults
from kvbench.engine.fake.faults.metrics_names import HIT_COUNTERS
from kvbench.engine.fake.settings import FaultSetting
from kvbench.events import Sample
from kvbench.telemetry import metrics, names

PROMPT = tuple(range(300, 350))
HIT_NAMES = {"local_queries", "local_hits", "external_queries", "external_hits"}


@contextmanager
def asked(
    folder: Path, kind: str | None = None, *, settings: dict[str, Any] | None = None, **fault: Any
) -> Iterator[tuple[FakeFront, Client]]:
    faults = [] if kind is None else [FaultSetting(kind=kind, **fault)]
    with front(folder, *faults, **(settings or {})) as fake, client(fake) as found:
        yield fake, found


def ask(found: Client, request_id: str = "x.p1-0", prompt: tuple[int, ...] = PROMPT) -> Answer:
    return found.complete(prompt, request_id=request_id, new_tokens=6, top_logprobs=2)


# ---- F17 ----------------------------------------------------------------------------------------


def test_reset_is_refused_so_often_and_then_done(tmp_path: Path) -> None:
    with asked(tmp_path, "reset_refused", options={"refusals": 2}) as (fake, found):
        said = [found.reset_prefix_cache(external=True).success for _ in range(6)]
        assert said == [False, False, True, False, False, True]
        assert len(fake.applied()) == 4


def test_reset_is_refused_for_ever(tmp_path: Path) -> None:
    with asked(tmp_path, "reset_refused", options={"refusals": None}) as (_, found):
        assert [found.reset_prefix_cache(external=True).success for _ in range(4)] == [False] * 4
        ask(found)
        assert ask(found).cached_tokens == 48


def test_empty_answer_is_a_reset_that_happened(tmp_path: Path) -> None:
    options = {"refusals": None, "body": "empty"}
    with asked(tmp_path, "reset_refused", options=options) as (_, found):
        ask(found)
        answer = found.reset_prefix_cache(external=True)
        assert (answer.http_status, answer.body, answer.success) == (200, "", None)
        assert ask(found).cached_tokens == 0


def test_reset_endpoint_is_missing(tmp_path: Path) -> None:
    options = {"refusals": None, "body": "missing"}
    with asked(tmp_path, "reset_refused", options=options) as (_, found):
        assert found.reset_prefix_cache(external=True).http_status == 404


# ---- F21 ----------------------------------------------------------------------------------------


def read_page(folder: Path, what: str | None, **settings: Any) -> metrics.Page:
    kind = None if what is None else "metrics_names"
    fault = {} if what is None else {"options": {"what": what}}
    with asked(folder, kind, settings=settings, **fault) as (fake, found):
        ask(found)
        ask(found)
        page = metrics.read(found.metrics_page())
        found.metrics_page()
        assert len(fake.applied()) == (0 if what is None else 1)
        return page


def test_healthy_page_lacks_no_hit_counter(tmp_path: Path) -> None:
    page = read_page(tmp_path, None)
    assert not HIT_NAMES & set(page.missing)
    assert metrics.total(page.samples, "local_hits") == 48


@pytest.mark.parametrize("what", ["renamed", "missing", "created_only"])
def test_counters_are_not_found(tmp_path: Path, what: str) -> None:
    page = read_page(tmp_path, what)
    assert set(page.missing) >= HIT_NAMES
    assert not page.conflicts
    assert metrics.total(page.samples, "prompt_tokens") == 100


def test_what_is_left_of_counters() -> None:
    text = "".join(
        f"# HELP {name}{end} w\n# TYPE {name}{end} counter\n{name}{end} 7.0\n"
        for name in ("vllm:prefix_cache_hits", "vllm:prompt_tokens")
        for end in ("_total", "_created")
    )
    faults = ActiveFaults(lambda _: None)

    def left(what: str) -> set[str]:
        faults.start_with((FaultSetting(kind="metrics_names", options={"what": what}),))
        (fault,) = faults
        lines = fault.on_page(text).splitlines()
        return {line.split(" ")[0].removeprefix("vllm:") for line in lines} - {"#"}

    others = {"prompt_tokens_total", "prompt_tokens_created"}
    assert left("missing") == others
    assert left("created_only") == others | {"prefix_cache_hits_created"}
    assert left("renamed") == others | {
        "prefix_cache_hits_tokens_total",
        "prefix_cache_hits_tokens_created",
    }


@pytest.mark.parametrize("generation", ["0.32", "0.8"])
def test_equal_twins_are_one_counter(tmp_path: Path, generation: str) -> None:
    page = read_page(tmp_path, "both_equal", generation=generation)
    assert not page.conflicts
    assert metrics.total(page.samples, "local_hits") == 48
    assert metrics.total(page.samples, "local_queries") == 100


@pytest.mark.parametrize("generation", ["0.32", "0.8"])
def test_unequal_twins_are_a_conflict(tmp_path: Path, generation: str) -> None:
    page = read_page(tmp_path, "both_unequal", generation=generation)
    assert len(page.conflicts) == (4 if generation == "0.32" else 2)
    assert "local_hits" in page.missing


def test_default_names_are_those_of_the_hit_counters() -> None:
    aliases = {alias for name in HIT_NAMES for alias in names.CANONICAL[name].aliases}
    assert {f"{name}_total" for name in HIT_COUNTERS} <= aliases


# ---- F23 ----------------------------------------------------------------------------------------


def test_counters_start_anew_in_the_middle(tmp_path: Path) -> None:
    with asked(tmp_path) as (fake, found):

        def samples() -> tuple[Sample, ...]:
            return metrics.read(found.metrics_page()).samples

        ask(found)
        ask(found)
        before = samples()
        fake.switch({"kind": "count_restart", "options": {"after_requests": 2}})
        ask(found)
        assert metrics.delta(before, samples(), "prompt_tokens") == 50
        ask(found)
        ask(found)
        after = samples()
        assert metrics.total(after, "prompt_tokens") == 50
        start = "process_start_time_s"
        assert (metrics.total(after, start) or 0) > (metrics.total(before, start) or 0)
        with pytest.raises(metrics.CounterRestartedError):
            metrics.delta(before, after, "prompt_tokens")
        assert [entry["kind"] for entry in fake.applied()] == ["count_restart"]


# ---- F32 ----------------------------------------------------------------------------------------


def test_answer_from_a_cache_never_reaches_the_engine(tmp_path: Path) -> None:
    with asked(tmp_path) as (fake, found):
        first = ask(found)
        fake.switch({"kind": "answer_from_cache"})
        counters = fake.cores[0].counters
        before = (counters.prompt_tokens, counters.finished["length"])
        again = ask(found, "x.p1-1")
        assert (again.error, again.tokens) == (None, first.tokens)
        assert (counters.prompt_tokens, counters.finished["length"]) == before
        assert ask(found, "x.p2-0", PROMPT[::-1]).error is None  # nothing to repeat
        assert counters.prompt_tokens == before[0] + 50


def test_changed_prompt_shows_in_the_usage_only(tmp_path: Path) -> None:
    with asked(tmp_path, "prompt_changed", request=".p1-", options={"drop_tokens": 16}) as (
        fake,
        found,
    ):
        answer = ask(found)
        assert (answer.error, answer.prompt_tokens) == (None, 34)
        assert ask(found, "x.p2-0").prompt_tokens == 50
        assert [entry["request"] for entry in fake.applied()] == ["x.p1-0"]


def test_exchanged_examples_keep_the_length(tmp_path: Path) -> None:
    with asked(tmp_path) as (fake, found):
        exchanged = (*PROMPT[16:32], *PROMPT[:16], *PROMPT[32:])
        wanted = ask(found, prompt=exchanged).tokens
        fake.switch({"kind": "prompt_changed", "options": {"part_tokens": 16}})
        answer = ask(found)
        assert (answer.prompt_tokens, answer.tokens) == (50, wanted)


# ---- F33 ----------------------------------------------------------------------------------------


def test_answer_is_cut_at_a_limit_of_its_own(tmp_path: Path) -> None:
    with asked(tmp_path) as (fake, found):
        whole = ask(found)
        fake.switch({"kind": "answers_cut", "options": {"keep_tokens": 2}, "times": 1})
        cut = ask(found)
        assert cut.error_kind == "truncated"
        assert (cut.finish_reason, cut.completion_tokens) == ("length", 2)
        assert cut.tokens == whole.tokens[:2]
        assert ask(found).tokens == whole.tokens


def test_answer_has_no_visible_text(tmp_path: Path) -> None:
    with asked(tmp_path, "answers_cut", options={"what": "empty"}, times=1) as (fake, _):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
        contents = [post(fake, "/v1/chat/completions", body) for _ in range(2)]
        texts = [found["choices"][0]["message"]["content"] for found in contents]
        assert texts[0] == ""
        assert texts[1] != ""
        assert contents[0]["usage"]["completion_tokens"] == 3


def test_stream_has_no_visible_text(tmp_path: Path) -> None:
    with asked(tmp_path, "answers_cut", options={"what": "empty"}, times=1) as (fake, found):
        answer = ask(found)
        assert (answer.error, len(answer.tokens)) == (None, 6)
        assert len(fake.applied()) == 1


def post(fake: FakeFront, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(fake.url + path, json.dumps(body).encode()) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_answer_is_lost(tmp_path: Path) -> None:
    with asked(tmp_path, "answers_cut", options={"what": "lost"}, times=1) as (fake, found):
        answer = ask(found)
        assert (answer.http_status, answer.error_kind) == (None, "connection")
        assert ask(found, "x.p1-1").error is None
        assert fake.cores[0].counters.finished["length"] == 2


def test_stream_ends_early(tmp_path: Path) -> None:
    with asked(tmp_path, "answer_truncated", options={"keep_chunks": 3}, times=1) as (fake, found):
        answer = ask(found)
        assert (answer.http_status, answer.error_kind) == (200, "truncated")
        assert (answer.finish_reason, len(answer.tokens)) == (None, 3)
        whole = ask(found, "x.p1-1")
        assert whole.error is None
        assert whole.tokens[:3] == answer.tokens
        assert len(fake.applied()) == 1

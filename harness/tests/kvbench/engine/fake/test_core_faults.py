"""Each fault of the core: what it changes when it is on, and that its twin without it is clean."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_bench import Bench, ids, running, settings, tokens

from kvbench.engine.fake.content import Content
from kvbench.engine.fake.faults import Load, registered
from kvbench.engine.fake.model import FakeModel
from kvbench.engine.fake.request import FakeRequest, TokenOut
from kvbench.engine.fake.settings import FakeSettings, FaultSetting

EAGER = settings(gpu_blocks=60, tier="simple_eager", host_blocks=60)
NATIVE = settings(gpu_blocks=60, tier="native", host_blocks=60)
BOTH = pytest.mark.parametrize("config", [EAGER, NATIVE], ids=["simple", "native"])
PROMPT = tokens(1, 100)
"""6 full blocks of 16 and a rest of 4"""

Scenario = Callable[[Bench], Awaitable[Any]]


def play(config: FakeSettings, scenario: Scenario, *faults: FaultSetting) -> tuple[Any, Bench]:
    async def main() -> tuple[Any, Bench]:
        async with running(config, faults=faults, with_events=True) as bench:
            return await scenario(bench), bench

    return asyncio.run(main())


def fault(kind: str, **more: Any) -> FaultSetting:
    return FaultSetting(kind=kind, **more)


async def reload(bench: Bench, new_tokens: int = 30, top: int = 5) -> list[FakeRequest]:
    """Cold, then from the host."""
    cold = await bench.ask(PROMPT, new_tokens, top=top, request_id="cold-1")
    assert bench.core.reset(external=False)
    return [cold, await bench.ask(PROMPT, new_tokens, top=top, request_id="replay-1")]


def facts(request: FakeRequest) -> list[TokenOut]:
    return request.output


LOADS = ["swap_blocks", "stale_block", "skip_copy", "late_corruption", "soft_corruption"]


@BOTH
@pytest.mark.parametrize("kind", [None, *LOADS])
def test_a_fault_in_a_load_changes_the_answer_and_not_the_hit(
    kind: str | None, config: FakeSettings
) -> None:
    async def scenario(bench: Bench) -> list[FakeRequest]:
        await bench.ask(tokens(2, 100))
        return await reload(bench)

    options = {"after_tokens": 10} if kind == "late_corruption" else {}
    faults = [fault(kind, request="replay", times=1, options=options)] if kind else []
    [cold, replay], bench = play(config, scenario, *faults)
    assert replay.cached_tokens == 96
    assert bench.core.counters.external_hits == 96
    assert (facts(cold) == facts(replay)) is (kind is None)
    assert len(bench.journal) == (1 if kind else 0)
    if kind == "late_corruption":
        assert facts(cold)[:10] == facts(replay)[:10]
        assert facts(cold)[10] != facts(replay)[10]
    elif kind == "soft_corruption":
        assert ids(cold) == ids(replay)
        deltas = [
            abs(float(a.logprob or 0) - float(b.logprob or 0))
            for a, b in zip(facts(cold), facts(replay), strict=True)
        ]
        assert deltas == pytest.approx([0.01] * len(deltas), abs=1e-5)
    elif kind:
        assert facts(cold)[0] != facts(replay)[0]


@pytest.mark.parametrize("index", [0, 3, -1])
def test_one_block_of_one_request_is_damaged_and_no_other(index: int) -> None:
    async def scenario(bench: Bench) -> list[bool]:
        prompts = [tokens(seed, 100) for seed in range(3)]
        cold = [await bench.ask(p, 5, top=5) for p in prompts]
        bench.core.reset(external=False)
        names = ["p0", "p1", "p2"]
        warm = [
            await bench.ask(p, 5, top=5, request_id=n) for p, n in zip(prompts, names, strict=True)
        ]
        bench.core.reset(external=False)
        later = [await bench.ask(p, 5, top=5) for p in prompts]
        return [
            *(facts(a) == facts(b) for a, b in zip(cold, warm, strict=True)),
            *(facts(a) == facts(b) for a, b in zip(cold, later, strict=True)),
        ]

    setting = fault("stale_block", request="p1", block_index=index)
    same, bench = play(EAGER, scenario, setting)
    assert same == [True, False, True, True, True, True]
    assert bench.journal == [
        {"kind": "stale_block", "request": "p1", "block": index % 6, "source": "other_prompt"}
    ]


def test_swap_exchanges_two_neighbours() -> None:
    journal: list[dict[str, Any]] = []
    swap = registered()["swap_blocks"](fault("swap_blocks", block_index=1), journal.append)
    contents = [Content(i, 0) for i in range(4)]
    load = Load("r", 0, contents, 1, list, list)
    swap.on_load(load)
    assert [content.digest for content in load.contents] == [0, 2, 1, 3]
    swap.on_load(Load("r", 0, contents[:2], 1, list, list))
    assert len(journal) == 1


def test_foreign_content_speaks_of_the_other_prompt() -> None:
    async def scenario(bench: Bench) -> tuple[FakeRequest, set[int]]:
        await bench.ask(tokens(2, 100), 1)
        foreign = bench.core._device.cells[1].topic
        cold, replay = await reload(bench, 60)
        own = set(FakeModel(EAGER).topic_ids(foreign))
        assert not own & set(ids(cold))
        return replay, own

    (replay, own), _ = play(EAGER, scenario, fault("stale_block", request="replay"))
    assert own & set(ids(replay))


def test_stale_content_may_be_an_earlier_one() -> None:
    (cold, replay), bench = play(
        EAGER, reload, fault("stale_block", options={"source": "earlier"}, request="replay")
    )
    assert ids(cold) != ids(replay)
    assert bench.journal[0]["source"] == "earlier"


def test_without_another_prompt_nothing_foreign_is_claimed() -> None:
    (cold, replay), bench = play(EAGER, reload, fault("stale_block"))
    assert facts(cold) == facts(replay)
    assert bench.journal == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_skipped_copy_shows_even_where_the_old_block_was_right(whole: bool) -> None:
    (cold, replay), _ = play(EAGER, reload, fault("skip_copy", options={"whole": whole}))
    assert facts(cold)[0] != facts(replay)[0]


@BOTH
@pytest.mark.parametrize("together", [False, True])
def test_a_torn_store_needs_company(config: FakeSettings, together: bool) -> None:
    async def scenario(bench: Bench) -> list[bool]:
        prompts = [tokens(seed, 100) for seed in range(4)]
        if together:
            cold = await bench.together(prompts, new_tokens=5)
        else:
            cold = [await bench.ask(prompt, 5) for prompt in prompts]
        bench.core.reset(external=False)
        warm = [await bench.ask(prompt, 5) for prompt in prompts]
        assert all(request.cached_tokens == 96 for request in warm)
        return [ids(a) == ids(b) for a, b in zip(cold, warm, strict=True)]

    same, bench = play(config, scenario, fault("torn_store"))
    assert same == [not together] * 4
    assert len(bench.journal) == (4 if together else 0)
    same, _ = play(config, scenario)
    assert same == [True] * 4


def test_a_broken_layout_is_wrong_and_agrees_with_itself() -> None:
    (cold, replay), bench = play(EAGER, reload, fault("broken_layout"))
    (right, _), _ = play(EAGER, reload)
    assert facts(cold) == facts(replay)
    assert ids(cold) != ids(right)
    assert [entry["request"] for entry in bench.journal] == ["cold-1", "replay-1"]


@pytest.mark.parametrize("what", ["nan", "inf", "missing", "fewer"])
def test_bad_log_probabilities_come_with_hits(what: str) -> None:
    def bad(token: TokenOut) -> bool:
        values = [token.logprob, *(value for _, value in token.top)]
        is_short = len(token.top) < 5
        return is_short or any(v is None or not math.isfinite(v) for v in values)

    setting = fault("bad_logprobs", options={"what": what})
    (cold, replay), _ = play(EAGER, reload, setting)
    assert not any(map(bad, facts(cold)))
    assert all(map(bad, facts(replay)))
    assert ids(cold) == ids(replay)
    setting = fault("bad_logprobs", options={"what": what, "cold": True}, times=1)
    (cold, replay), _ = play(EAGER, reload, setting)
    assert [bad(token) for token in facts(cold)] == [True] + [False] * 29
    assert not any(map(bad, facts(replay)))


@BOTH
def test_a_hit_that_is_too_long_is_wrong(config: FakeSettings) -> None:
    async def scenario(bench: Bench) -> list[FakeRequest]:
        first = await bench.ask(tokens(1, 96), 5, request_id="cold")
        second = await bench.ask(tokens(1, 96), 5, request_id="hot")
        bench.core.reset(external=False)
        return [first, second, await bench.ask(tokens(1, 96), 5, request_id="replay")]

    (cold, hot, replay), bench = play(config, scenario, fault("hit_too_long"))
    assert cold.cached_tokens == 16  # where nothing is stored
    assert hot.cached_tokens == 96  # 80 of the device, and the rest claimed: the whole prompt
    assert replay.cached_tokens == 96
    (clean, _, clean_replay), _ = play(config, scenario)
    assert clean.cached_tokens == 0
    assert clean_replay.cached_tokens == (80 if config is EAGER else 96)
    assert ids(cold) != ids(clean)
    assert bench.journal[0] == {"kind": "hit_too_long", "request": "cold", "found": 0, "claimed": 1}


@BOTH
def test_a_hit_that_is_too_short_is_right(config: FakeSettings) -> None:
    (cold, replay), _ = play(config, reload, fault("hit_too_short"))
    assert replay.cached_tokens == 80
    assert facts(cold) == facts(replay)


@BOTH
@pytest.mark.parametrize("kind", ["drop_stores", "idle_connector"])
def test_dropped_stores_leave_nothing(kind: str, config: FakeSettings) -> None:
    (cold, replay), bench = play(config, reload, fault(kind))
    counters = bench.core.counters
    assert replay.cached_tokens == 0
    assert counters.store_bytes == 0
    assert bench.core.host_content_blocks == 0
    assert counters.external_queries == 200
    assert [e for e in bench.events if e.get("medium") == "CPU"] == []
    assert facts(cold) == facts(replay)
    assert counters.usage == 0


@BOTH
def test_what_is_never_served_is_stored(config: FakeSettings) -> None:
    (cold, replay), bench = play(config, reload, fault("never_serve"))
    assert replay.cached_tokens == 0
    assert bench.core.counters.store_bytes > 0
    assert facts(cold) == facts(replay)


@BOTH
@pytest.mark.parametrize(
    ("options", "cached"), [({}, 16), ({"every": 4}, 48), ({"shape": "half"}, 48)]
)
def test_holes_end_a_hit(options: dict[str, Any], cached: int, config: FakeSettings) -> None:
    async def scenario(bench: Bench) -> list[FakeRequest]:
        return await reload(bench, 1)

    (cold, replay), bench = play(config, scenario, fault("store_holes", options=options))
    assert replay.cached_tokens == cached
    assert facts(cold) == facts(replay)
    assert bench.core.counters.usage == 0


@pytest.mark.parametrize("tier", ["simple_eager", "simple_lazy", "native"])
@pytest.mark.parametrize("kind", [None, "never_evict", "evict_everything"])
def test_capacity_faults(kind: str | None, tier: str) -> None:
    async def scenario(bench: Bench) -> list[int]:
        held = []
        for seed in range(6):
            await bench.ask(tokens(seed, 100))
            held.append(bench.core.host_content_blocks)
        return held

    config = settings(
        gpu_blocks=9 if tier == "simple_lazy" else 60,
        tier=tier,
        host_blocks=20,
        chunk_tokens=128,
    )
    held, bench = play(config, scenario, *([fault(kind)] if kind else []))
    removed = [e for e in bench.events if e["type"] == "BlockRemoved" and e["medium"] == "CPU"]
    assert bool(bench.journal) is (kind is not None)
    if kind == "never_evict":
        assert max(held) > 20
        assert not removed
    elif kind == "evict_everything":
        assert min(held[2:]) <= 6
        assert removed
    else:
        assert max(held) <= 20
        assert min(held[3:]) >= 12
        assert removed


@BOTH
def test_a_double_store_takes_two_slots(config: FakeSettings) -> None:
    (cold, replay), bench = play(config, reload, fault("double_store"))
    (_, _), clean = play(config, reload)
    assert bench.core.counters.store_bytes == 2 * clean.core.counters.store_bytes
    assert bench.core.host_content_blocks == 2 * clean.core.host_content_blocks
    hashes = [
        e["block_hashes"][0]
        for e in bench.events
        if e["type"] == "BlockStored" and e["medium"] == "CPU"
    ]
    assert len(hashes) == 2 * len(set(hashes))
    assert replay.cached_tokens == 96
    assert facts(cold) == facts(replay)


@BOTH
@pytest.mark.parametrize("kind", [None, "reset_keeps_tier"])
def test_a_reset_may_keep_the_tier(kind: str | None, config: FakeSettings) -> None:
    async def scenario(bench: Bench) -> tuple[bool, int]:
        await bench.ask(PROMPT)
        success = bench.core.reset(external=True)
        return success, (await bench.ask(PROMPT)).cached_tokens

    answer, bench = play(config, scenario, *([fault(kind)] if kind else []))
    assert answer == (True, 96 if kind else 0)
    assert len(bench.journal) == (1 if kind else 0)


def totals(bench: Bench) -> list[float]:
    counters = bench.core.counters
    return [
        counters.local_queries,
        counters.local_hits,
        counters.external_queries,
        counters.external_hits,
        counters.prompt_tokens,
    ]


COUNTED = [
    (None, {}, [300, 96, 204, 96, 300]),
    ("count_frozen", {}, [0, 0, 0, 0, 300]),
    ("count_frozen", {"counters": ["external_hits"]}, [300, 96, 204, 0, 300]),
    ("count_repeated", {}, [600, 192, 408, 192, 300]),
    ("count_repeated", {"times": 3}, [900, 288, 612, 288, 300]),
    ("whole_prompt_queries", {}, [300, 96, 300, 96, 300]),
]


@pytest.mark.parametrize(("kind", "options", "expected"), COUNTED)
def test_counter_faults_leave_answers_alone(
    kind: str | None, options: dict[str, Any], expected: list[float]
) -> None:
    async def scenario(bench: Bench) -> list[FakeRequest]:
        cold = await bench.ask(PROMPT)
        hot = await bench.ask(PROMPT)
        bench.core.reset(external=False)
        return [cold, hot, await bench.ask(PROMPT)]

    requests, bench = play(EAGER, scenario, *([fault(kind, options=options)] if kind else []))
    assert [request.cached_tokens for request in requests] == [0, 96, 96]
    assert totals(bench) == expected


def test_a_hanging_engine_waits_for_ever() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.ask(PROMPT, request_id="before")
        hung = bench.submit(PROMPT, request_id="hang-1")
        other = bench.submit(PROMPT, request_id="later")
        for _ in range(3):
            await asyncio.sleep(0.01)
        counters = bench.core.counters
        assert (counters.running, counters.waiting) == (0, 2)
        assert hung.done is not None
        assert other.done is not None
        assert not hung.done.done()
        assert not other.done.done()
        assert not hung.output

    _, bench = play(EAGER, scenario, fault("engine_hangs", request="hang"))
    assert len(bench.journal) == 1


def test_a_fault_of_another_engine_does_nothing_here() -> None:
    for kind, cached in (("never_serve", 96), ("skip_copy", 96), ("drop_stores", 96)):
        (cold, replay), bench = play(EAGER, reload, fault(kind, engine=1))
        assert replay.cached_tokens == cached
        assert facts(cold) == facts(replay)
        assert bench.journal == []


def test_earlier_answers_can_be_repeated_without_the_engine() -> None:
    class Repeats:
        def on_prompt(self, request_id: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
            return (*prompt, 7) if request_id == "changed" else prompt

        def answers_from_cache(self, request_id: str) -> bool:
            return request_id == "again"

    async def scenario(bench: Bench) -> None:
        first = await bench.ask(PROMPT, 3, top=2)
        counted = bench.core.counters.local_queries
        bench.faults._passing = [Repeats()]  # type: ignore[list-item]
        streamed: list[TokenOut] = []
        again = bench.submit(PROMPT, 3, top=2, request_id="again", on_token=streamed.append)
        assert again.done is not None
        await again.done
        assert facts(again) == facts(first) == streamed
        assert bench.core.counters.local_queries == counted
        unknown = bench.submit(tokens(9, 30), 3, request_id="again")
        assert unknown.request_id == "again"
        changed = bench.submit(PROMPT, 3, request_id="changed")
        assert changed.prompt == (*PROMPT, 7)
        bench.faults._passing = []
        await bench.settle()
        assert len(unknown.output) == 3

    play(EAGER, scenario)


def test_every_kind_explains_itself() -> None:
    mine = [*LOADS, "torn_store", "broken_layout", "hit_too_long", "hit_too_short", "never_serve"]
    for kind in mine:
        assert len(registered()[kind].__doc__ or "") > 30


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(Exception, match="unknown field"):
        play(EAGER, reload, fault("never_serve", options={"typo": 1}))

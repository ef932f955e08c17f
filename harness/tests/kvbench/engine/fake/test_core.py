"""One engine core: counting, resets, aborts, death, time and KV events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_bench import Bench, group, ids, running, settings, tokens

from kvbench.engine.fake.faults import EngineDeath, Fault
from kvbench.engine.fake.request import EngineDeadError, FakeRequest, TokenOut
from kvbench.engine.fake.settings import FakeSettings, FaultSetting

HOST = {"tier": "simple_eager", "host_blocks": 100}


def counted(bench: Bench) -> dict[str, Any]:
    counters = bench.core.counters
    names = ("local_queries", "local_hits", "external_queries", "external_hits", "computed_tokens")
    return {name: getattr(counters, name) for name in names}


def test_counters_follow_vllm() -> None:
    """The cycle of a cold prompt, a hot one and one from the host."""

    async def scenario() -> None:
        async with running(settings(**HOST)) as bench:
            prompt = tokens(1, 100)
            assert not bench.core.counters.has_external_activity
            await bench.ask(prompt, 3)
            assert counted(bench) == {
                "local_queries": 100,
                "local_hits": 0,
                "external_queries": 100,
                "external_hits": 0,
                "computed_tokens": 100,
            }
            hot = await bench.ask(prompt)
            assert hot.cached_tokens == 96
            assert bench.core.counters.external_queries == 104
            assert bench.core.reset(external=False)
            host = await bench.ask(prompt)
            assert host.cached_tokens == 96
            counters = bench.core.counters
            assert counted(bench) == {
                "local_queries": 300,
                "local_hits": 96,
                "external_queries": 204,
                "external_hits": 96,
                "computed_tokens": 108,
            }
            assert counters.prompt_tokens == 300
            assert counters.prompt_tokens_cached == 192
            assert counters.generation_tokens == 5
            assert counters.finished == {"stop": 0, "length": 3, "abort": 0}
            assert counters.simple_load_blocks == 6
            assert counters.load_bytes == counters.store_bytes == 6 * 65_536
            assert counters.has_external_activity
            assert bench.core.reset(external=True)
            assert (await bench.ask(prompt)).cached_tokens == 0

    asyncio.run(scenario())


def test_without_a_connector_nothing_is_asked_of_one() -> None:
    async def scenario() -> None:
        async with running(settings()) as bench:
            await bench.ask(tokens(1, 100))
            assert bench.core.counters.external_queries == 0
            assert not bench.core.counters.has_external_activity

    asyncio.run(scenario())


def test_counters_are_final_when_the_answer_is() -> None:
    async def scenario() -> None:
        async with running(settings()) as bench:
            request = bench.submit(tokens(1, 20), 2)
            seen: list[tuple[float, int]] = []
            assert request.done is not None
            request.done.add_done_callback(
                lambda _: seen.append(
                    (bench.core.counters.finished["length"], bench.core.counters.running)
                )
            )
            await request.done
            assert seen == [(1, 0)]

    asyncio.run(scenario())


@pytest.mark.parametrize(("tier", "cached"), [("simple_eager", 48), ("native", 64)])
def test_only_the_native_connector_loads_a_whole_prompt(tier: str, cached: int) -> None:
    async def scenario() -> None:
        async with running(settings(tier=tier, host_blocks=50)) as bench:
            first = await bench.ask(tokens(1, 64), 4)
            bench.core.reset(external=False)
            second = await bench.ask(tokens(1, 64), 4)
            assert second.cached_tokens == cached
            assert ids(first) == ids(second)

    asyncio.run(scenario())


def test_a_reset_is_refused_while_a_store_holds_blocks() -> None:
    async def scenario() -> None:
        slow = settings(**HOST, stores="overlapped")
        async with running(
            FakeSettings(
                **{f: getattr(slow, f) for f in slow.__struct_fields__} | {"store_bytes_per_s": 1e7}
            )
        ) as bench:
            request = bench.submit(tokens(1, 33))
            assert request.done is not None
            await request.done
            await asyncio.sleep(0)
            assert not bench.core.reset(external=True)
            assert bench.core.counters.pending_store_blocks == 2
            assert bench.core.counters.usage > 0
            await bench.settle()  # 2 x 65,536 bytes at 1e7 a second: 13 ms
            assert bench.core.counters.pending_store_blocks == 0
            assert bench.core.reset(external=True)

    asyncio.run(scenario())


def test_an_abort_frees_everything_at_any_stage() -> None:
    async def scenario() -> None:
        async with running(settings(gpu_blocks=6)) as bench:
            runs = [bench.submit(tokens(i, 40), 20) for i in range(4)]
            while not runs[0].output:
                await asyncio.sleep(0)
            for request in reversed(runs):
                bench.core.abort(request.request_id)
            bench.core.abort("unknown")
            for request in runs:
                assert request.done is not None
                await request.done
                assert request.finish_reason == "abort"
            await bench.settle()
            counters = bench.core.counters
            assert counters.finished == {"stop": 0, "length": 0, "abort": 4}
            assert counters.usage == 0
            assert counters.running == counters.waiting == 0

    asyncio.run(scenario())


def test_a_load_that_is_aborted_still_ends() -> None:
    async def scenario() -> None:
        config = {**HOST, "load_bytes_per_s": 2e7}
        async with running(settings(**config)) as bench:
            await bench.ask(tokens(1, 60))
            bench.core.reset(external=False)
            request = bench.submit(tokens(1, 60))
            while not bench.core.counters.external_hits:
                await asyncio.sleep(0)
            bench.core.abort(request.request_id)
            await bench.settle()
            assert request.finish_reason == "abort"
            assert not request.output
            assert bench.core.counters.load_bytes == 3 * 65_536
            assert bench.core.counters.usage == 0

    asyncio.run(scenario())


def test_impossible_requests_are_refused_at_once() -> None:
    async def scenario() -> None:
        async with running(settings(gpu_blocks=4)) as bench:
            with pytest.raises(ValueError, match="needs 4 blocks, the pool has 3"):
                bench.submit(tokens(1, 50))
            with pytest.raises(ValueError, match="at least one"):
                bench.submit(())
            bench.submit(tokens(1, 5), request_id="twice")
            with pytest.raises(ValueError, match="open already"):
                bench.submit(tokens(1, 5), request_id="twice")

    asyncio.run(scenario())


def test_a_death_fails_every_open_request() -> None:
    async def scenario() -> None:
        bench = Bench(settings())
        requests = [bench.submit(tokens(i, 20)) for i in range(3)]
        bench.core.die("EngineCore encountered an issue")
        assert bench.core.is_dead
        for request in requests:
            assert request.done is not None
            with pytest.raises(EngineDeadError, match="encountered"):
                await request.done
        with pytest.raises(EngineDeadError, match="encountered"):
            bench.submit(tokens(9, 20))

    asyncio.run(scenario())


class Dies(Fault):
    """Not registered: only for this test."""

    def on_admitted(self, request_id: str, engine: int) -> None:
        raise EngineDeath(f"{request_id} killed engine {engine}")


def test_a_fault_can_kill_the_loop() -> None:
    async def scenario() -> None:
        bench = Bench(settings())
        Dies.kind, Dies.Options = "dies", FaultSetting
        bench.faults._passing = [Dies(FaultSetting(kind="x", options={"kind": "x"}), print)]
        request = bench.submit(tokens(1, 20), request_id="r")
        with pytest.raises(EngineDeath, match="r killed engine 0"):
            await bench.core.run()
        assert request.done is not None
        with pytest.raises(EngineDeadError, match="killed"):
            await request.done
        assert bench.core.is_dead

    asyncio.run(scenario())


def test_tokens_come_one_by_one() -> None:
    async def scenario() -> None:
        seen: list[TokenOut] = []
        async with running(settings()) as bench:
            request = await bench.ask(tokens(1, 20), 5, on_token=seen.append)
            assert seen == request.output
            assert len(seen) == 5

    asyncio.run(scenario())


def test_a_salt_separates_caches_and_not_answers() -> None:
    async def scenario() -> None:
        async with running(settings()) as bench:
            plain = await bench.ask(tokens(1, 40), 3)
            salted = await bench.ask(tokens(1, 40), 3, salt="other tenant")
            again = await bench.ask(tokens(1, 40), 3, salt="other tenant")
            assert [r.cached_tokens for r in (plain, salted, again)] == [0, 0, 32]
            assert ids(plain) == ids(salted) == ids(again)

    asyncio.run(scenario())


def test_steps_take_the_time_of_the_model() -> None:
    async def timed(bench: Bench, prompt: tuple[int, ...], new_tokens: int) -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await bench.ask(prompt, new_tokens)
        return loop.time() - start

    async def scenario() -> None:
        slow = settings(
            gpu_blocks=200,
            prefill_tokens_per_s=50_000,
            decode_tokens_per_s=1_000,
            load_bytes_per_s=62 * 65_536 / 0.02,
            tier="simple_eager",
            host_blocks=200,
        )
        async with running(slow) as bench:
            assert await timed(bench, tokens(1, 1000), 1) >= 0.019
            assert await timed(bench, tokens(1, 1000), 1) < 0.015
            assert await timed(bench, tokens(2, 16), 21) >= 0.019
            bench.core.reset(external=False)
            assert await timed(bench, tokens(1, 1000), 1) >= 0.019

    asyncio.run(scenario())


def test_events_have_the_form_of_vllm() -> None:
    async def scenario() -> list[list[dict[str, Any]]]:
        config = settings(gpu_blocks=6, tier="simple_eager", host_blocks=20)
        async with running(config, with_events=True) as bench:
            await bench.ask(tokens(1, 40))
            await bench.ask(tokens(2, 70))
            bench.core.reset(external=True)
            assert bench.batches[-1][-1]["type"] != "AllBlocksCleared"
            await bench.ask(tokens(3, 5))
            return bench.batches

    batches = asyncio.run(scenario())
    events = [event for batch in batches for event in batch]
    stored = events[0]
    prompt = tokens(1, 40)
    assert stored == {
        "type": "BlockStored",
        "block_hashes": stored["block_hashes"],
        "parent_block_hash": None,
        "token_ids": list(prompt[:32]),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    assert len(stored["block_hashes"]) == 2
    host = [e for e in events if e["type"] == "BlockStored" and e["medium"] == "CPU"][:2]
    assert [e["block_hashes"] for e in host] == [[h] for h in stored["block_hashes"]]
    assert [e["token_ids"] for e in host] == [list(prompt[:16]), list(prompt[16:32])]
    assert host[1]["parent_block_hash"] == stored["block_hashes"][0]
    assert host[0]["locality"] == "LOCAL"
    assert "extra_keys" not in host[0]
    removed = [e for e in events if e["type"] == "BlockRemoved"]
    assert removed[0] == {
        "type": "BlockRemoved",
        "block_hashes": [stored["block_hashes"][0]],  # its store held it: freed late, head first
        "medium": "GPU",
        "group_idx": 0,
    }
    assert [e["type"] for e in batches[-1]].count("AllBlocksCleared") == 2
    assert all(0 <= h < 1 << 64 for e in events for h in e.get("block_hashes", []))


def test_native_events_name_no_tokens() -> None:
    async def scenario() -> list[dict[str, Any]]:
        config = settings(gpu_blocks=20, tier="native", host_blocks=3)
        async with running(config, with_events=True) as bench:
            await bench.ask(tokens(1, 40), salt="s")
            await bench.ask(tokens(2, 40))
            return bench.events

    events = asyncio.run(scenario())
    device = [e for e in events if e["type"] == "BlockStored" and e["medium"] == "GPU"]
    host = [e for e in events if e["type"] == "BlockStored" and e["medium"] == "CPU"]
    assert device[0]["extra_keys"] == [("s",), None]
    assert [e["block_hashes"][0] for e in host[:2]] == device[0]["block_hashes"]
    assert (host[0]["token_ids"], host[0]["block_size"]) == ([], 0)
    assert "kv_cache_spec_kind" not in host[0]
    assert [e["medium"] for e in events if e["type"] == "BlockRemoved"] == ["CPU"]


def test_a_store_event_comes_before_its_removal() -> None:
    async def scenario() -> None:
        config = settings(
            groups=(group(block_tokens=16),), gpu_blocks=8, tier="native", host_blocks=4
        )
        async with running(config, with_events=True) as bench:
            for seed in range(12):
                await bench.ask(tokens(seed % 5, 60), 20)
            held: dict[str, list[int]] = {"GPU": [], "CPU": []}
            for event in bench.events:
                for block in event["block_hashes"]:
                    if event["type"] == "BlockStored":
                        held[event["medium"]].append(block)
                    else:
                        held[event["medium"]].remove(block)
            assert len(held["CPU"]) == bench.core.host_content_blocks == 4
            assert len(held["GPU"]) <= 7

    asyncio.run(scenario())


def test_noise_of_a_batch_flips_ties_under_load_only() -> None:
    async def scenario() -> list[bool]:
        config = settings(noise_logprob_nats=0.02, noise_tie_share=0.5, max_num_seqs=8)
        prompts = [tokens(i, 20) for i in range(8)]
        async with running(config) as bench:
            alone = [ids(await bench.ask(p, 10)) for p in prompts]
            bench.core.reset(external=False)
            again = [ids(await bench.ask(p, 10)) for p in prompts]
            bench.core.reset(external=False)
            beside = [ids(r) for r in await bench.together(prompts, new_tokens=10)]
            return [alone == again, alone != beside]

    assert asyncio.run(scenario()) == [True, True]


def test_an_open_request_is_known_by_its_id_only_once() -> None:
    async def scenario() -> None:
        async with running(settings()) as bench:
            first = await bench.ask(tokens(1, 5), request_id="same")
            second = await bench.ask(tokens(1, 5), request_id="same")
            assert ids(first) == ids(second)
            assert isinstance(second, FakeRequest)

    asyncio.run(scenario())

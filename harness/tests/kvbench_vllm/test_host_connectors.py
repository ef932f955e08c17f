"""The standard cycle on real servers: what each tier must serve, and that its bytes come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HOST_POOL = {"cpu_bytes_to_use": 64 << 20}


def simple(**extra: object) -> dict[str, object]:
    return {
        "kv_connector": "HostSimpleCPUOffloadConnector",
        "kv_connector_module_path": "kvb_host_simple",
        "kv_role": "kv_both",
        "kv_connector_extra_config": HOST_POOL | extra,
    }


def native(**extra: object) -> dict[str, object]:
    spec = {"spec_name": "HostOffloadingSpec", "spec_module_path": "kvb_host_native"}
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": HOST_POOL | spec | extra,
    }


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("connector", "external_tokens"),
    [
        pytest.param(simple(), 896, id="simple-eager"),
        pytest.param(simple(lazy_offload=True), 896, id="simple-lazy"),
        pytest.param(native(), 896, id="native"),
        # Two device blocks to a host chunk: hits round down to whole chunks.
        pytest.param(native(block_size=256), 768, id="native-chunk-of-two-blocks"),
    ],
)
def test_evicted_prompt_is_served_by_the_host_tier_until_that_is_reset(
    serve: Callable[..., Any],
    prompt: Callable[..., list[int]],
    connector: dict[str, object],
    external_tokens: int,
) -> None:
    with serve(connector) as server:
        server.complete(prompt(1))
        server.complete(prompt(1))
        assert server.hits() == {"local": 896, "external": 0}
        # 32 device blocks hold four of these prompts.
        for other in range(2, 8):
            server.complete(prompt(other))
        replayed = server.complete(prompt(1))
        assert replayed.cached_tokens == external_tokens
        assert server.hits() == {"local": 896, "external": external_tokens}
        server.reset(external=True)
        assert server.complete(prompt(1)).cached_tokens == 0


@pytest.mark.vllm
@pytest.mark.parametrize(
    "connector", [pytest.param(simple(), id="simple"), pytest.param(native(), id="native")]
)
def test_loaded_blocks_give_the_device_hits_logprobs_bit_for_bit(
    serve: Callable[..., Any], prompt: Callable[..., list[int]], connector: dict[str, object]
) -> None:
    with serve(connector) as server:
        server.complete(prompt(1))
        device_hit = server.complete(prompt(1))
        server.reset(external=False)
        host_hit = server.complete(prompt(1))
        other = server.complete(prompt(2))
    assert device_hit.cached_tokens == host_hit.cached_tokens == 896
    assert host_hit.top_logprobs == device_hit.top_logprobs
    assert other.top_logprobs != device_hit.top_logprobs


@pytest.mark.vllm
def test_external_hit_may_start_in_the_middle_of_a_chunk(
    serve: Callable[..., Any], prompt: Callable[..., list[int]]
) -> None:
    whole = prompt(1)
    with serve(native(block_size=256)) as server:
        server.complete(whole)
        device_hit = server.complete(whole[:897])
        server.reset(external=False)
        # One block of prefix on the device: the load begins in the second half of a chunk.
        server.complete(whole[:128])
        before = server.hits()
        host_hit = server.complete(whole[:897])
        after = server.hits()
    assert after["local"] - before["local"] == 128
    assert after["external"] - before["external"] == 640
    assert host_hit.cached_tokens == 768
    assert device_hit.cached_tokens == 896
    largest = max(
        abs(value - device_hit.top_logprobs[0].get(token, value))
        for token, value in host_hit.top_logprobs[0].items()
    )
    # Cached lengths differ, so the rest is computed in another shape: not bit for bit.
    assert largest < 1e-4

"""What became of the stores: never made, made and never served, or made twice?

A replay without external hits looks the same whether the connector dropped every store (F11) or
cannot find what it stored (F12); events and the connector's own counters tell them apart. A block
that takes two slots halves the tier (F15), which shows only when it is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.checks.common import HIT_KINDS, MAX_LISTED, What, about_arm, tested_pairs
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.path import stored_amount
from kvbench.checks.reset_proof import not_cold
from kvbench.checks.tiers import Cache, artifact, cache_of, events_of
from kvbench.checks.witnesses import is_suspect
from kvbench.ledger.facts import Ledger, Request, Window
from kvbench.ledger.kv_event_facts import Double
from kvbench.scenario.connectors import NativeConnector

CLAIM = "hits"
SERVED = "stored_and_served"
ONCE = What("stores_once", CLAIM, "events")
ONCE_BY_BYTES = What("stores_once", CLAIM, "counters")
PINNED_BLOCKS = "simple_used_blocks"
"""SimpleCPU's gauge of blocks that are held by transfers or hits: a sign of stores when it shows
any, and none of their absence when it does not (vLLM 0.32, simple_kv_offload/metrics.py)."""
NULL_BLOCKS = 1
"""SimpleCPU's pool always holds its null block: the gauge of an idle engine reads 1."""
_PAGE_BYTES = 4096
"""vLLM pads each chunk of the native connector to memory pages (CPUOffloadingSpec, 0.32)."""


class Stores(NamedTuple):
    """Signs of stores in a stage under an arm; None where there is no such witness."""

    event_blocks: int | None
    removed_blocks: int
    """by events"""
    amount: float | None
    """by the connector's own counters, in their unit"""


class Asked(NamedTuple):
    """External hits of the requests that one engine was to serve from the tier."""

    engine: int | None
    """None: all of them"""
    expected_tokens: int
    observed_tokens: int
    requests: tuple[Request, ...]


# ---- stored, and served ----------------------------------------------------------------------


def _stores(ledger: Ledger, stage: str, arm: str, engine: int | None) -> Stores:
    windows = ledger.measured(stage, arm)
    found = [(window, events_of(ledger, window)) for window in windows]
    blocks: int | None = None
    removed = 0
    is_certain = True
    for window, events in found:
        cache = cache_of(ledger, window.life)
        if events is None or cache is None or not cache.emits_host_events:
            is_certain = False
            continue
        tiers = [t for t in events.stored if t.is_host and engine in (None, t.engine)]
        blocks = (blocks or 0) + sum(len(events.stored[tier]) for tier in tiers)
        removed += sum(len(events.removed.get(tier, ())) for tier in tiers)
        lossy = events.lossy_engines
        is_certain = is_certain and not (lossy if engine is None else engine in lossy)
    if not blocks and not is_certain:
        blocks = None  # what was not seen may have been in what is missing
    return Stores(blocks, removed, _amount(ledger, stage, arm, windows))


def _amount(ledger: Ledger, stage: str, arm: str, windows: tuple[Window, ...]) -> float | None:
    counted = stored_amount(ledger, stage, arm)
    pinned = [each.value for w in windows for each in w.gauges if each.name == PINNED_BLOCKS]
    if not pinned:
        return counted
    return max(counted or 0.0, max(pinned) - NULL_BLOCKS, 0.0)


def _asked(ledger: Ledger, stage: str, arm: str) -> Iterator[Asked]:
    """What each engine was to serve in replay and reload, where the oracle expects anything."""
    denied = not_cold(ledger)
    windows = [
        window
        for window in ledger.measured(stage, arm)
        if window.kind in HIT_KINDS
        and window.has_connector
        and window.id not in denied
        and not is_suspect(window, ledger)
    ]
    wanted: dict[int | None, list[Request]] = {}
    for window in windows:
        for request in window.scored:
            if request.expected is not None and request.expected.external.low_tokens:
                wanted.setdefault(request.done.engine, []).append(request)
    for engine, requests in wanted.items():
        served = _served(windows, engine)
        if served is not None:
            low = sum(r.expected.external.low_tokens for r in requests if r.expected is not None)
            yield Asked(engine, low, served, tuple(requests))


def _served(windows: list[Window], engine: int | None) -> int | None:
    """External hit tokens of an engine, by its counters."""
    total = 0.0
    for window in windows:
        if window.deltas is None:
            return None
        hits = (
            window.deltas.total("external_hits")
            if engine is None
            else window.deltas.of(str(engine), "external_hits")
        )
        if hits is None:
            return None
        total += hits
    return round(total)


def _words(stores: Stores, asked: Asked, *, is_native: bool) -> tuple[Outcome, str] | None:
    """What the stores say about hits that did, or did not, come."""
    blocks, removed, amount = stores
    if asked.observed_tokens:
        if blocks is None:
            return None
        words = f"{blocks} blocks stored in the tier, {asked.observed_tokens} hit tokens served"
        return Outcome.PASS, words
    if blocks:
        words = f"stored, never served: {blocks} blocks stored in the tier, 0 hit tokens"
        words += f" ({removed} blocks were removed again)" if removed else ""
    elif amount:
        unit = "bytes" if is_native else "by its own counters"
        words = f"stored, never served: {amount:.0f} {unit} stored in the tier, 0 hit tokens"
    elif blocks == 0:
        words = "nothing stored: no BlockStored event of the tier, 0 hit tokens"
    elif amount == 0 and is_native:
        words = "nothing stored: 0 bytes by the connector's counter, 0 hit tokens"
    elif amount == 0:
        words = "nothing stored, as far as the connector's counters show; 0 hit tokens"
    else:
        return None
    return Outcome.FAIL, words


def _of_engine(ledger: Ledger, stage: str, arm: str, asked: Asked) -> Finding | None:
    stores = _stores(ledger, stage, arm, asked.engine)
    cache = cache_of(ledger, asked.requests[0].done.life)
    is_native = cache is not None and isinstance(cache.connector, NativeConnector)
    said = _words(stores, asked, is_native=is_native)
    if said is None:
        return None
    outcome, words = said
    where = "" if asked.engine is None else f"engine {asked.engine}: "
    witness = "counters" if stores.event_blocks is None else "counters, events"
    finding = about_arm(
        stage,
        arm,
        outcome,
        where + words,
        what=What(SERVED, CLAIM, witness),
        expected=f"{asked.expected_tokens} external hit tokens in replay and reload",
        observed=f"{asked.observed_tokens}",
    )
    if outcome is Outcome.PASS:
        return finding
    return replace(
        finding,
        prompts=tuple(dict.fromkeys(request.prompt_id for request in asked.requests)),
        evidence=tuple(request.where for request in asked.requests),
    )


# ---- stored once -----------------------------------------------------------------------------


def _is_reannounced(double: Double, cache: Cache | None) -> bool:
    """A self-describing native connector names the blocks of overlapping chunks once a chunk."""
    if cache is None or not isinstance(cache.connector, NativeConnector):
        return False
    is_chunked = cache.tier is None or cache.tier.chunk_blocks > 1
    return is_chunked and bool(double.block_tokens)


def _by_events(ledger: Ledger, stage: str, arm: str) -> Finding | None:
    doubles: list[tuple[Window, Double]] = []
    stored = 0
    for window in ledger.windows:
        events = events_of(ledger, window)
        if events is None or (window.stage, window.arm) != (stage, arm):
            continue
        cache = cache_of(ledger, window.life)
        stored += sum(len(each) for tier, each in events.stored.items() if tier.is_host)
        doubles += [(window, d) for d in events.doubles if not _is_reannounced(d, cache)]
    if not stored:
        return None
    if not doubles:
        reason = f"no block was stored twice in the tier ({stored} stored)"
        return about_arm(stage, arm, Outcome.PASS, reason, what=ONCE)
    notes = [
        f"{window.label}: engine {double.tier.engine} stored block {double.hash} again in "
        f"{double.tier.medium}, which still held it"
        for window, double in doubles[:MAX_LISTED]
    ]
    distinct = len({(double.tier, double.hash) for _, double in doubles})
    finding = about_arm(
        stage,
        arm,
        Outcome.PASS,
        f"double stores: {distinct} blocks were stored again in a tier that still held them",
        what=ONCE,
        expected="each block once, until it is removed",
        observed=f"{len(doubles)} second stores among {stored} blocks",
        notes=notes,
    )
    places = tuple(artifact(window, double.line) for window, double in doubles[:MAX_LISTED])
    return replace(finding, evidence=places)


def _most_bytes(window: Window, cache: Cache) -> int | None:
    """The most that the full blocks of a window's requests can take, each stored once."""
    tier, block_bytes, geometry = cache.tier, cache.block_bytes, cache.geometry
    if tier is None or block_bytes is None or geometry is None or not cache.has_single_group:
        return None
    size = geometry.groups[0].block_tokens
    blocks = 0
    for request in window.requests:
        done = request.done
        if done.prompt_tokens is None or done.error is not None:
            return None
        blocks += (done.prompt_tokens + (done.completion_tokens or 0)) // size
    chunk_bytes = -(-block_bytes * tier.chunk_blocks // _PAGE_BYTES) * _PAGE_BYTES
    return blocks * -(-chunk_bytes // tier.chunk_blocks)


def _by_bytes(ledger: Ledger, stage: str, arm: str) -> Finding | None:
    """Bytes stored against what there was to store, window by window."""
    over = []
    compared = 0
    for window in ledger.measured(stage, arm):
        cache = cache_of(ledger, window.life)
        stored = window.deltas.total("native_store_bytes") if window.deltas is not None else None
        most = _most_bytes(window, cache) if cache is not None else None
        if stored is None or not most:
            continue
        compared += 1
        if stored > most:
            over.append(f"{window.label}: {stored:.0f} bytes stored, all full blocks have {most}")
    if not compared:
        return None
    reason = f"no more bytes were stored than {compared} phases computed"
    if over:
        reason = f"double stores: more bytes stored than there are blocks in {len(over)} phases"
    return about_arm(stage, arm, Outcome.PASS, reason, what=ONCE_BY_BYTES, notes=over)


def check(ledger: Ledger) -> list[Finding]:
    """The stores of every tested arm, by whichever witness there is."""
    findings: list[Finding] = []
    for stage, arm in tested_pairs(ledger):
        found = [_of_engine(ledger, stage, arm, asked) for asked in _asked(ledger, stage, arm)]
        once = _by_events(ledger, stage, arm) or _by_bytes(ledger, stage, arm)
        findings += [each for each in (*found, once) if each is not None]
    return findings

"""Did the tier hold every block that the oracle expects it to serve, or are there holes (F13)?

A connector that stores half of the blocks still hits, up to the first hole. Only what the oracle
expects counts, so a pool that is smaller than the working set raises no alarm. Events name the
missing blocks of each prompt; without them, hits that end at one token for all prompts still give
away a hole at a chunk border.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvbench.checks.common import (
    HIT_KINDS,
    MAX_LISTED,
    What,
    about,
    about_arm,
    listed,
    short,
    tested_pairs,
)
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.reset_proof import not_cold
from kvbench.checks.tiers import Cache, cache_of, stream_of
from kvbench.checks.witnesses import is_suspect
from kvbench.ledger.facts import Ledger, Request, Window
from kvbench.ledger.kv_event_facts import Hash, KvEvents, Tier

CLAIM = "hits"
CHECK = "stores_cover"


class HitEnd(NamedTuple):
    """Where a request's cached prefix ended, and where it should have, in tokens."""

    expected_tokens: int
    observed_tokens: int


class Cover(NamedTuple):
    """Blocks of one request that should have been in the tier."""

    request: Request
    wanted: int
    lacking: tuple[int, ...]
    """indices in the prompt"""
    removed: int
    """of the lacking ones, how many were stored and removed again"""


def hole_border(ends: Iterable[HitEnd]) -> int | None:
    """The token at which all hits end that should be longer; None where they do not.

    One short hit is no pattern, and hits of 0 tokens are no hole.
    """
    known = list(ends)
    short_ones = [end for end in known if end.observed_tokens < end.expected_tokens]
    borders = {end.observed_tokens for end in short_ones}
    if len(short_ones) < 2 or len(borders) != 1:
        return None
    border = borders.pop()
    longer = [end for end in known if end.expected_tokens > border]
    return border if border > 0 and len(longer) == len(short_ones) else None


def _end(request: Request) -> HitEnd | None:
    if request.expected is None or request.cached is None:
        return None
    if request.expected.external.low_tokens == 0:
        return None
    return HitEnd(request.expected.cached.low_tokens, request.cached)


def _is_short(request: Request) -> bool:
    end = _end(request)
    return end is not None and end.observed_tokens < end.expected_tokens


def _held(window: Window, request: Request, stream: KvEvents, tier: Tier) -> frozenset[Hash]:
    """What the tier held when the window opened.

    What was stored since may have served as well, unless the hit was short: then it is what the
    miss left behind.
    """
    names = list(stream.windows)
    place = names.index(window.id)
    before = stream.windows[names[place - 1]].held.get(tier, frozenset())
    since = stream.windows[window.id].stored.get(tier, frozenset())
    return before if _is_short(request) else before | since


def _cover(
    ledger: Ledger, window: Window, request: Request, stream: KvEvents, cache: Cache
) -> Cover | None:
    """Which of the blocks that the oracle wants from the tier it lacked; None where unknown."""
    tokens = ledger.plan.prompts.get(request.prompt_id) if ledger.plan is not None else None
    expected, geometry, model = request.expected, cache.geometry, cache.tier
    if tokens is None or expected is None or geometry is None or model is None:
        return None
    size = geometry.groups[0].block_tokens
    engine = request.done.engine
    if engine is None and cache.engine.data_parallel == 1:
        engine = 0
    if engine is None or engine in stream.windows[window.id].lossy_engines:
        return None
    last = expected.cached.low_tokens // size
    first = last - expected.external.low_tokens // size
    chunk = model.chunk_blocks  # events of a chunk name its last block, at least
    wanted = [index for index in range(first, last) if (index + 1) % chunk == 0]
    tiers = [t for each in stream.windows.values() for t in each.stored if t.is_host]
    tier = next((t for t in tiers if t.engine == engine), None)
    if tier is None:
        return None
    hashes = stream.blocks_of_prompt(tokens, engine=engine, group=tier.group, block_tokens=size)
    if len(hashes) < last or not wanted:
        return None
    held = _held(window, request, stream, tier)
    lacking = tuple(index for index in wanted if hashes[index] not in held)
    gone = set().union(*(each.removed.get(tier, ()) for each in stream.windows.values()))
    removed = sum(hashes[index] in gone for index in lacking)
    if lacking and engine in stream.windows[window.id].open_engines:
        return None
    return Cover(request, len(wanted), lacking, removed)


def _covers(ledger: Ledger, window: Window) -> list[Cover]:
    stream, cache = stream_of(ledger, window), cache_of(ledger, window.life)
    if stream is None or cache is None or not cache.has_single_group:
        return []
    if window.id not in stream.windows or not cache.emits_host_events:
        return []
    found = [_cover(ledger, window, request, stream, cache) for request in window.scored]
    return [cover for cover in found if cover is not None]


def _cover_words(cover: Cover) -> str:
    there = cover.wanted - len(cover.lacking)
    words = f"{short(cover.request.prompt_id)}: {there} of {cover.wanted} blocks in the tier"
    words += f", hole at block {cover.lacking[0]}"
    return words + (f", {cover.removed} were removed again" if cover.removed else "")


def _finding(window: Window, covers: Sequence[Cover]) -> Finding | None:
    """A fail where a hit was short and something lacked, or all end at one border."""
    ends = [end for end in map(_end, window.scored) if end is not None]
    border = hole_border(ends)
    holes = [cover for cover in covers if cover.lacking and _is_short(cover.request)]
    if border is None and not holes:
        return None
    requests = [cover.request for cover in holes] or [r for r in window.scored if _is_short(r)]
    words = [_cover_words(cover) for cover in holes]
    notes = list(words)
    if border is not None:
        words.insert(0, f"hits end at token {border} for all prompts: hole at a chunk border")
        notes.insert(0, words[0])
    there = sum(cover.wanted - len(cover.lacking) for cover in covers)
    wanted = sum(cover.wanted for cover in covers)
    witness = "counters, events" if holes else "counters"
    return about(
        window,
        Outcome.FAIL,
        f"the tier lacks blocks that {window.label} should get from it: {listed(words)}",
        what=What(CHECK, CLAIM, witness),
        requests=requests,
        expected=f"{wanted} blocks in the tier" if covers else "hits beyond one border",
        observed=f"{there} blocks" if covers else f"hits that end at token {border}",
        notes=notes,
    )


def _summary(stage: str, arm: str, covers: Sequence[Cover]) -> Finding | None:
    if not covers:
        return None
    unseen = [cover for cover in covers if cover.lacking]
    wanted = sum(cover.wanted for cover in covers)
    there = wanted - sum(len(cover.lacking) for cover in covers)
    notes = [
        f"hit although no event says that it was stored: {_cover_words(cover)}"
        for cover in unseen[:MAX_LISTED]
    ]
    reason = f"{there} of {wanted} blocks that the oracle expects in the tier were stored"
    what = What(CHECK, CLAIM, "events")
    return about_arm(stage, arm, Outcome.PASS, reason, what=what, notes=notes)


def check(ledger: Ledger) -> list[Finding]:
    """Blocks of the scored prompts in the tier, in every phase that is to load them."""
    denied = not_cold(ledger)
    findings: list[Finding] = []
    for stage, arm in tested_pairs(ledger):
        windows = [
            window
            for window in ledger.measured(stage, arm)
            if window.kind in HIT_KINDS
            and window.has_connector
            and window.id not in denied
            and not is_suspect(window, ledger)
        ]
        covers = {window.id: _covers(ledger, window) for window in windows}
        holes = [_finding(window, covers[window.id]) for window in windows]
        found = [finding for finding in holes if finding is not None]
        if not found:
            whole = [cover for each in covers.values() for cover in each]
            summary = _summary(stage, arm, whole)
            found = [summary] if summary is not None else []
        findings += found
    return findings

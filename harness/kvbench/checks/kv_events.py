"""Is the stream of KV events sound, and is it whole?

An index that is fed by such a stream sends requests to blocks that are not there when an event
names a tier, a group or a size that does not exist (F24). And a stream with holes in it, or without
a word about the connector's tier, proves nothing either way (F25): counters are used instead.

The empty form of older host-tier events (no tokens, block size 0) is taken from the native
connector and from hybrid models; no scenario can declare it for others yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.checks.common import MAX_LISTED, What, about, about_arm, listed
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.path import external_tokens, stored_amount
from kvbench.checks.tiers import Cache, artifact, cache_of, stream_of
from kvbench.ledger.facts import Ledger, Window
from kvbench.ledger.kv_event_facts import MEDIA, Anomaly, KvEvents, Shape, Tier, WindowEvents
from kvbench.scenario.connectors import NativeConnector
from kvbench.scenario.geometry import Geometry, Group

CLAIM = "hits"
SANE = What("events_sane", CLAIM, "events")
COMPLETE = What("events_complete", CLAIM, "events")
COMPLETE_BY_COUNTERS = What("events_complete", CLAIM, "events, counters")
UNSOUND = frozenset({"removed_before_stored", "undecodable"})
"""Kinds of anomalies that are wrong; the others only leave something unknown."""


class Bad(NamedTuple):
    """One thing that must not be in a stream."""

    line: int
    words: str
    times: int


class Part(NamedTuple):
    """A window with its events; the first one of a life has what came before it, too."""

    window: Window
    events: tuple[WindowEvents, ...]
    anomalies: tuple[Anomaly, ...]
    stream: KvEvents


def _parts(ledger: Ledger, stage: str, arm: str) -> list[Part]:
    first: dict[str, str] = {}
    for window in ledger.windows:
        first.setdefault(window.life, window.id)
    parts = []
    for window in ledger.windows:
        stream = stream_of(ledger, window)
        if stream is None or (window.stage, window.arm) != (stage, arm):
            continue
        ids = ("", window.id) if first[window.life] == window.id else (window.id,)
        parts.append(
            Part(
                window,
                tuple(stream.windows[name] for name in ids if name in stream.windows),
                tuple(each for each in stream.anomalies if each.window in ids),
                stream,
            )
        )
    return parts


# ---- sound -----------------------------------------------------------------------------------


def _group(tier: Tier, geometry: Geometry) -> Group | None:
    """The declared group of an event; None where it does not say which of several."""
    if tier.group is None:
        return geometry.groups[0] if len(geometry.groups) == 1 else None
    return geometry.groups[tier.group]


def _wrong_group(shape: Shape, geometry: Geometry) -> str | None:
    index = shape.tier.group
    if index is not None and not 0 <= index < len(geometry.groups):
        return f"for group {index} of {len(geometry.groups)}"
    group = _group(shape.tier, geometry)
    if group is not None and group.kind == "scratch" and shape.type == "BlockStored":
        return f"for group {index}, a scratch group that is not cacheable"
    return None


def _is_partial(size: int, group: Group, cache: Cache, geometry: Geometry) -> bool:
    """A hybrid with a match unit announces parts of its blocks."""
    unit = cache.engine.prefix_match_unit_tokens
    if unit is None or all(each.kind != "mamba" for each in geometry.groups):
        return False
    return size > 0 and size % unit == 0 and group.block_tokens % size == 0


def _wrong_size(shape: Shape, cache: Cache, geometry: Geometry) -> str | None:
    group = _group(shape.tier, geometry)
    if group is None or shape.type != "BlockStored":
        return None
    size = shape.block_tokens
    if size is None:
        return f"without a block size, its group has {group.block_tokens}"
    says_nothing = size == 0 and not shape.has_tokens and shape.tier.is_host
    may_say_nothing = isinstance(cache.connector, NativeConnector) or len(geometry.groups) > 1
    if size == group.block_tokens or (says_nothing and may_say_nothing):
        return None
    if _is_partial(size, group, cache, geometry):
        return None
    return f"with block size {size}, its group has {group.block_tokens}"


def _wrong(shape: Shape, window: Window, cache: Cache | None) -> str | None:
    """What is wrong with events of a shape, as the end of a sentence."""
    medium = shape.tier.medium
    if medium not in MEDIA:
        return f"in medium {medium}, known are {', '.join(sorted(MEDIA))}"
    if shape.tier.is_host and not window.has_connector:
        return f"in medium {medium}, though the arm has no connector"
    if cache is None or cache.geometry is None:
        return None
    geometry = cache.geometry
    return _wrong_group(shape, geometry) or _wrong_size(shape, cache, geometry)


def _bad(part: Part, cache: Cache | None) -> Iterator[Bad]:
    for events in part.events:
        for shape, seen in events.shapes.items():
            wrong = _wrong(shape, part.window, cache)
            if wrong is not None:
                words = f"engine {shape.tier.engine}: {shape.type} {wrong} (batch {seen.seq})"
                yield Bad(seen.line, words, seen.times)
    for anomaly in part.anomalies:
        if anomaly.kind in UNSOUND:
            yield Bad(anomaly.line, anomaly.words, 1)


def _unsound(part: Part, cache: Cache | None) -> Finding | None:
    bad = sorted(_bad(part, cache))
    if not bad:
        return None
    total = sum(each.times for each in bad)
    finding = about(
        part.window,
        Outcome.FAIL,
        f"{total} bad KV events in {part.window.label}, first: {bad[0].words}",
        what=SANE,
        expected="events that fit the declared groups, tiers and block sizes",
        observed=bad[0].words,
        notes=[each.words for each in bad[:MAX_LISTED]],
    )
    places = tuple(artifact(part.window, each.line) for each in bad[:MAX_LISTED])
    return replace(finding, evidence=places)


def _sane(ledger: Ledger, stage: str, arm: str, parts: list[Part]) -> list[Finding]:
    unsound = [_unsound(part, cache_of(ledger, part.window.life)) for part in parts]
    findings = [finding for finding in unsound if finding is not None]
    count = sum(sum(each.events.values()) for part in parts for each in part.events)
    if findings or not count:
        return findings
    notes = []
    caches = [cache_of(ledger, part.window.life) for part in parts]
    if any(cache is None or cache.geometry is None for cache in caches):
        notes.append("groups and block sizes are n/a: the model's geometry is not declared")
    unknown = sorted({name for part in parts for name in part.stream.unknown_types})
    if unknown:
        notes.append(f"types of events that kvbench does not know: {', '.join(unknown)}")
    reason = f"{count} KV events in {len(parts)} windows are sound"
    return [about_arm(stage, arm, Outcome.PASS, reason, what=SANE, notes=notes)]


# ---- complete --------------------------------------------------------------------------------


def _media(stream: KvEvents) -> str:
    return f"media seen: {', '.join(stream.media) or 'none'}"


def _holes(part: Part) -> Finding | None:
    holes = [each for each in part.anomalies if each.kind not in UNSOUND]
    if not holes:
        return None
    words = [each.words for each in holes]
    finding = about(
        part.window,
        Outcome.INCONCLUSIVE,
        f"KV events are missing in {part.window.label}: {listed(words)}; {_media(part.stream)}",
        what=COMPLETE,
        expected="every sequence number once",
        observed=listed(words),
        notes=words,
    )
    return replace(finding, evidence=tuple(artifact(part.window, each.line) for each in holes))


def _silent_engines(ledger: Ledger, parts: list[Part]) -> list[str]:
    """Engines that computed a block of a prompt and published nothing."""
    silent = set()
    for part in parts:
        step = ledger.hit_step_tokens(part.window)
        cache = cache_of(ledger, part.window.life)
        if step is None or cache is None:
            continue
        for request in part.window.requests:
            engine = request.done.engine
            if engine is None and cache.engine.data_parallel == 1:
                engine = 0
            computed = (request.done.prompt_tokens or 0) - (request.cached or 0)
            if engine is not None and computed >= step and not part.stream.batches.get(engine):
                silent.add(engine)
    return [str(engine) for engine in sorted(silent)]


def _host_silence(
    ledger: Ledger, stage: str, arm: str, parts: list[Part]
) -> tuple[Finding | None, str | None]:
    """No event about the connector's tier although it worked; or a note where that is by design."""
    with_tier = [part for part in parts if part.window.has_connector]
    stored = sum(each.blocks_of("BlockStored", host=True) for p in with_tier for each in p.events)
    if not with_tier or stored:
        return None, None
    hits = sum(external_tokens(part.window) or 0 for part in with_tier)
    if not hits and not stored_amount(ledger, stage, arm):
        return None, None
    words = f"no CPU events: {_media(with_tier[0].stream)}; counters are used instead"
    cache = cache_of(ledger, with_tier[0].window.life)
    if cache is not None and not cache.emits_host_events:
        return None, f"{words} ({cache.connector_class} emits none by design)"
    finding = about_arm(
        stage,
        arm,
        Outcome.INCONCLUSIVE,
        words,
        what=COMPLETE_BY_COUNTERS,
        expected="BlockStored events of the connector's tier",
        observed=f"0 of them, {hits} external hit tokens by the counters",
    )
    return finding, None


def _complete(ledger: Ledger, stage: str, arm: str, parts: list[Part]) -> list[Finding]:
    findings = [hole for hole in map(_holes, parts) if hole is not None]
    for part in {part.window.life: part for part in parts}.values():
        if part.stream.failed is not None:
            reason = f"KV events of {part.window.life} were not recorded: {part.stream.failed}"
            findings.append(_incomplete(stage, arm, reason))
    silent = _silent_engines(ledger, parts)
    if silent:
        reason = f"no KV event came from engine {', '.join(silent)}, which computed prompts"
        findings.append(_incomplete(stage, arm, reason))
        return findings
    finding, note = _host_silence(ledger, stage, arm, parts)
    findings += [finding] if finding is not None else []
    if findings:
        return findings
    streams = {part.window.life: part.stream for part in parts}.values()
    batches = sum(sum(stream.batches.values()) for stream in streams)
    reason = f"no KV event is missing: {batches} batches; {_media(next(iter(streams)))}"
    notes = [note] if note is not None else []
    return [about_arm(stage, arm, Outcome.PASS, reason, what=COMPLETE, notes=notes)]


def _incomplete(stage: str, arm: str, reason: str) -> Finding:
    return about_arm(stage, arm, Outcome.INCONCLUSIVE, reason, what=COMPLETE)


def _unrecorded(ledger: Ledger, stage: str, arm: str) -> Iterable[str]:
    """Lives that were to publish events, and of which there is no file."""
    for life in dict.fromkeys(w.life for w in ledger.windows if (w.stage, w.arm) == (stage, arm)):
        cache = cache_of(ledger, life)
        if cache is not None and cache.engine.kv_events and life not in (ledger.kv_events or {}):
            yield life


def check(ledger: Ledger) -> list[Finding]:
    """Soundness and completeness of the events of every stage and arm that published any."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        missing = list(_unrecorded(ledger, stage, arm))
        if missing:
            reason = f"KV events were asked for, and none were recorded of {', '.join(missing)}"
            findings.append(_incomplete(stage, arm, reason))
        parts = _parts(ledger, stage, arm)
        if parts:
            findings += _sane(ledger, stage, arm, parts)
            findings += _complete(ledger, stage, arm, parts)
    return findings

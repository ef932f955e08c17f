"""From planned or recorded requests to expected hits: one translation for `plan` and `ledger`.

The oracle models block pools; this module turns scenario words (geometry, engine, connector) into
its terms, so that a plan and a judgement can never disagree about what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kvbench.engine.command import pool_bytes_per_engine
from kvbench.oracle import (
    CacheGeometry,
    Expected,
    GroupGeometry,
    Oracle,
    TierModel,
    TokenRange,
    max_hit_tokens,
)
from kvbench.oracle.geometry import GroupKind, TransferTiming
from kvbench.plan_types import PlannedPhase
from kvbench.scenario.connectors import Connector, NativeConnector, NoConnector
from kvbench.scenario.engines import FakeEngine, ServedEngine
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.models import DTYPE_BYTES
from kvbench.scenario.resolve import geometry_under

# vLLM pads each chunk of the native connector to memory pages (CPUOffloadingSpec, 0.32).
_PAGE_BYTES: Final = 4096
# Prompts that differ in so many first tokens share no block of any vLLM backend.
_SHORTEST_BLOCK_TOKENS: Final = 16

# The oracle's word for each kind of group; scratch groups are not prefix-cacheable.
_GROUP_KINDS: Final[Mapping[str, GroupKind]] = {
    "full_attention": "full_attention",
    "mla": "full_attention",
    "sliding_window": "sliding_window",
    "chunked_local": "sliding_window",
    "mamba": "mamba",
}

NOTE_NO_GEOMETRY: Final = "geometry of the model is not declared: range"
NOTE_NO_POOL: Final = "engine.gpu_blocks is not set: range"
NOTE_DATA_PARALLEL: Final = "data parallel: which engine gets a request is not known: range"


class WaveStep(NamedTuple):
    """Requests sent together: (prompt id, token ids) each."""

    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    new_tokens: int
    concurrency: int
    engines: tuple[int | None, ...] = ()
    """data-parallel engine that each is pinned to; empty: none is"""


class ResetStep(NamedTuple):
    """A reset of the device cache, and of the connector's tier where `external`."""

    external: bool


Step = WaveStep | ResetStep
Steps = Sequence[Step]


class PhaseSteps(NamedTuple):
    """What a phase sends: first the proof of its reset (a window of its own), then its waves."""

    phase: PlannedPhase
    proof: tuple[Step, ...]
    waves: tuple[WaveStep, ...]


def predict(
    steps: Steps, *, geometry: Geometry | None, engine: ServedEngine, connector: Connector
) -> list[tuple[Expected, ...] | None]:
    """Return the expected hits of each wave's requests, in order; None for a reset.

    The steps are those of one server life from its start, because every request leaves blocks
    behind.
    """
    geometry = geometry_under(geometry, engine)
    if engine.data_parallel > 1 and _all_pinned(steps, engine.data_parallel):
        return _predict_each(steps, geometry=geometry, engine=engine, connector=connector)
    note = _why_unknown(geometry, engine)
    if note is not None or geometry is None:
        bounds = _Bounds(geometry, engine, connector, note or "")
        return [bounds.advance(step) for step in steps]
    oracle = Oracle(
        cache_geometry(geometry, engine),
        tier_model(geometry, engine, connector),
        timing=_timing(connector, engine),
    )
    return [_advance(oracle, step) for step in steps]


def _all_pinned(steps: Steps, engines: int) -> bool:
    waves = [step for step in steps if isinstance(step, WaveStep)]
    pins = [pin for wave in waves for pin in wave.engines or (None,) * len(wave.prompts)]
    return all(pin is not None and pin < engines for pin in pins)


def _predict_each(
    steps: Steps, *, geometry: Geometry | None, engine: ServedEngine, connector: Connector
) -> list[tuple[Expected, ...] | None]:
    """Each data-parallel engine has pools of its own, so its requests are replayed by themselves.

    A reset goes to all engines.
    """
    expected: list[list[Expected | None] | None] = [
        None if isinstance(step, ResetStep) else [None] * len(step.prompts) for step in steps
    ]
    # The connector's capacity is a total over the engines.
    alone = engine.model_copy(update={"data_parallel": 1})
    shared = engine.data_parallel
    for number in range(engine.data_parallel):
        own = [_of_engine(step, number) for step in steps]
        kept = [(index, step) for index, step in enumerate(own) if step is not None]
        answers = predict(
            [step for _, step in kept],
            geometry=geometry,
            engine=alone,
            connector=_share_of(connector, shared),
        )
        for (index, _), found in zip(kept, answers, strict=True):
            slots, step = expected[index], steps[index]
            if slots is None or found is None or not isinstance(step, WaveStep):
                continue
            mine = [place for place, pin in enumerate(step.engines) if pin == number]
            for place, each in zip(mine, found, strict=True):
                slots[place] = each
    return [
        None if slots is None else tuple(each for each in slots if each is not None)
        for slots in expected
    ]


def _of_engine(step: Step, number: int) -> Step | None:
    if isinstance(step, ResetStep):
        return step
    prompts = tuple(
        prompt for prompt, pin in zip(step.prompts, step.engines, strict=True) if pin == number
    )
    return step._replace(prompts=prompts, engines=()) if prompts else None


def _share_of(connector: Connector, engines: int) -> Connector:
    if isinstance(connector, NoConnector) or connector.host_pool_bytes_total is None:
        return connector
    total = connector.host_pool_bytes_total // engines
    return connector.model_copy(update={"host_pool_bytes_total": total})


def steps_of(
    phases: Iterable[PlannedPhase],
    *,
    prompts: Mapping[str, tuple[int, ...]],
    has_connector: bool,
) -> list[Step]:
    """Return everything that the phases of one life send, in order."""
    grouped = phase_steps(phases, prompts=prompts, has_connector=has_connector)
    return [step for each in grouped for step in (*each.proof, *each.waves)]


def phase_steps(
    phases: Iterable[PlannedPhase],
    *,
    prompts: Mapping[str, tuple[int, ...]],
    has_connector: bool,
) -> list[PhaseSteps]:
    """Return the same steps, phase by phase."""
    return [
        PhaseSteps(
            phase,
            _proof(phase, prompts, has_connector=has_connector),
            tuple(
                WaveStep(
                    tuple((request.prompt_id, prompts[request.prompt_id]) for request in wave),
                    phase.new_tokens,
                    phase.concurrency,
                    tuple(request.engine for request in wave),
                )
                for wave in phase.waves
            ),
        )
        for phase in phases
    ]


def longest_hit_tokens(
    prompt_tokens: int, *, geometry: Geometry | None, engine: ServedEngine, connector: Connector
) -> int | None:
    """Return the longest hit that the geometry allows; None where it is not declared."""
    geometry = geometry_under(geometry, engine)
    if geometry is None:
        return None
    return max_hit_tokens(
        prompt_tokens, cache_geometry(geometry, engine), tier_model(geometry, engine, connector)
    )


def cache_geometry(geometry: Geometry, engine: ServedEngine) -> CacheGeometry:
    """Return the oracle's geometry; an unset pool counts as the smallest (for lengths only)."""
    groups = tuple(
        GroupGeometry(_GROUP_KINDS[group.kind], group.block_tokens, group.window_tokens)
        for group in geometry.groups
        if group.kind in _GROUP_KINDS
    )
    return CacheGeometry(
        groups=groups,
        hash_block_tokens=geometry.hash_block_tokens,
        hit_alignment_tokens=geometry.hit_alignment_tokens,
        gpu_blocks=engine.gpu_blocks or 2,
        chunk_tokens=engine.chunk_tokens or engine.max_model_len_tokens or 2**20,
    )


def tier_model(geometry: Geometry, engine: ServedEngine, connector: Connector) -> TierModel:
    """Return the oracle's model of the connector of one engine."""
    if isinstance(connector, NoConnector):
        return TierModel("none", None)
    block_bytes = bytes_of_block(geometry, engine)
    pool_bytes = pool_bytes_per_engine(connector, engine)
    if isinstance(connector, NativeConnector):
        chunk = max((connector.chunk_tokens or 0) // geometry.groups[0].block_tokens, 1)
        chunks = None if block_bytes is None else pool_bytes // _padded(block_bytes * chunk)
        return TierModel("native", (chunks * chunk if chunks else None), chunk)
    blocks = None if block_bytes is None else max(pool_bytes // block_bytes, 1)
    if connector.mode == "lazy":
        # Its target of free blocks follows from the chunk, which vLLM chooses where we do not.
        return TierModel("simple_lazy" if engine.chunk_tokens else "unknown", blocks)
    return TierModel("simple_eager", blocks)


def bytes_of_block(geometry: Geometry, engine: ServedEngine) -> int | None:
    """Return the bytes of one block over all layers and ranks; None where it is not declared."""
    if geometry.block_bytes is not None:
        return geometry.block_bytes
    follows_model = engine.kv_cache_dtype in {None, "auto"}
    dtype = engine.dtype if follows_model else str(engine.kv_cache_dtype)
    size = DTYPE_BYTES.get("fp8" if dtype.startswith("fp8") else dtype)
    if size is None or geometry.kv_values_per_token is None or len(geometry.groups) != 1:
        return None
    return geometry.kv_values_per_token * geometry.groups[0].block_tokens * size


def _why_unknown(geometry: Geometry | None, engine: ServedEngine) -> str | None:
    if geometry is None:
        return NOTE_NO_GEOMETRY
    if engine.gpu_blocks is None:
        return NOTE_NO_POOL
    return NOTE_DATA_PARALLEL if engine.data_parallel > 1 else None


class _Bounds:
    """What can be said without a model of the pools: a prompt that was never sent cannot hit."""

    def __init__(
        self, geometry: Geometry | None, engine: ServedEngine, connector: Connector, note: str
    ) -> None:
        self._geometry = geometry
        self._engine = engine
        self._connector = connector
        self._notes = (note,)
        self._local: set[tuple[int, ...]] = set()
        self._external: set[tuple[int, ...]] = set()

    def advance(self, step: Step) -> tuple[Expected, ...] | None:
        if isinstance(step, ResetStep):
            self._local.clear()
            if step.external:
                self._external.clear()
            return None
        heads = [tokens[:_SHORTEST_BLOCK_TOKENS] for _, tokens in step.prompts]
        expected = [
            self._one(tokens, heads[:i] + heads[i + 1 :])
            for i, (_, tokens) in enumerate(step.prompts)
        ]
        self._local |= set(heads)
        if not isinstance(self._connector, NoConnector):
            self._external |= set(heads)
        return tuple(expected)

    def _one(self, tokens: tuple[int, ...], beside: list[tuple[int, ...]]) -> Expected:
        longest = longest_hit_tokens(
            len(tokens), geometry=self._geometry, engine=self._engine, connector=self._connector
        )
        if longest is None:
            # Only the native connector may report a whole prompt as cached.
            longest = len(tokens) - (not isinstance(self._connector, NativeConnector))
        head = tokens[:_SHORTEST_BLOCK_TOKENS]
        reach, nothing = TokenRange(0, longest), TokenRange(0, 0)
        local = reach if head in self._local or head in beside else nothing
        external = reach if head in self._external else nothing
        if not isinstance(self._connector, NoConnector) and head in beside:
            external = reach
        cached = nothing if local == external == nothing else reach
        return Expected(local, external, cached, longest, self._notes)


def _advance(oracle: Oracle, step: Step) -> tuple[Expected, ...] | None:
    if isinstance(step, ResetStep):
        oracle.reset(external=step.external)
        return None
    prompts = [tokens for _, tokens in step.prompts]
    if step.concurrency == 1 or len(prompts) == 1:
        return tuple(oracle.request(tokens, new_tokens=step.new_tokens) for tokens in prompts)
    return tuple(
        oracle.concurrent(prompts, new_tokens=step.new_tokens, concurrency=step.concurrency)
    )


def _timing(connector: Connector, engine: ServedEngine) -> TransferTiming:
    if isinstance(engine, FakeEngine):
        return engine.stores
    is_immediate = isinstance(connector, NoConnector) or connector.copies == "host_memory"
    return "immediate" if is_immediate else "overlapped"


def _proof(
    phase: PlannedPhase, prompts: Mapping[str, tuple[int, ...]], *, has_connector: bool
) -> tuple[Step, ...]:
    """Return sentinel, sentinel (seen to hit), reset, sentinel; one reset more for both tiers."""
    if phase.reset == "none" or phase.sentinel_id is None:
        return ()
    prompt = (phase.sentinel_id, prompts[phase.sentinel_id])
    sentinel = [WaveStep((prompt,), 1, 1, (engine,)) for engine in phase.engines]
    steps: list[Step] = [*sentinel, *sentinel]
    if phase.reset == "local" or has_connector:
        # With a connector the tier is seen to hit after the local reset, so that the reset of all
        # has something to clear.
        steps += [ResetStep(external=False), *sentinel]
    if phase.reset == "all":
        steps += [ResetStep(external=True), *sentinel]
    return tuple(steps)


def _padded(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES

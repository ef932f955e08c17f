"""What a plan refuses, and what it warns of.

Refused is what can prove nothing or cannot run: a vacuous pass costs more than a message. Warned of
is what runs but proves less than its claims say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvbench.engine.command import is_faulty
from kvbench.engine.fake.faults import registered
from kvbench.errors import UsageError
from kvbench.expectations import longest_hit_tokens, tier_model
from kvbench.plan_types import PlannedPhase
from kvbench.scenario.connectors import NativeConnector, NoConnector
from kvbench.scenario.engines import FakeEngine, ServedEngine
from kvbench.scenario.load import Loaded
from kvbench.scenario.models import Claim, HubModel, PathModel, Scenario
from kvbench.scenario.replay import PhaseKind, ReplayWorkload
from kvbench.scenario.resolve import engine_of, geometry_under
from kvbench.scenario.suggest import did_you_mean
from kvbench.workloads.prompts import prompt_lengths
from kvbench.workloads.room import Room

BAND_RUNS = 3
_NEED_RESET = (PhaseKind.RELOAD, PhaseKind.COLD_AGAIN)


def refuse(loaded: Loaded, stage: str, arm: str, engine: ServedEngine) -> None:
    """Raise UsageError, with file and line, where a stage under an arm cannot work."""
    scenario = loaded.scenario
    workload = scenario.stages[stage].workload
    _refuse_faults(loaded, arm)
    if isinstance(engine, FakeEngine):
        _refuse_fake_faults(loaded, stage, arm, engine)
    _refuse_block_size(loaded, engine)
    if not isinstance(workload, ReplayWorkload):
        return
    _refuse_without_resets(loaded, stage, workload, engine)
    place = loaded.where("stages", stage, "workload", "prompts")
    try:
        lengths = prompt_lengths(workload.prompts, geometry_under(scenario.model.geometry, engine))
    except UsageError as error:
        raise UsageError(f"{place}: stages.{stage}.workload.{error}") from error
    problem = _too_short(scenario, arm, engine, lengths) or _too_long(
        scenario, engine, workload, lengths
    )
    if problem is not None:
        raise UsageError(f"{place}: stages.{stage}.workload.prompts: {problem}")


def refuse_faults(
    loaded: Loaded, stage: str, arm: str, phases: Sequence[PlannedPhase], scored: Sequence[str]
) -> None:
    """Raise UsageError where a fault names a phase or prompt that the stage does not have."""
    names = list(dict.fromkeys([*(p.kind for p in phases), *(p.name for p in phases)]))
    prompts = [prompt_id.removeprefix(f"{stage}/") for prompt_id in scored]
    engine = engine_of(loaded.scenario, stage, arm)
    fakes = engine.faults if isinstance(engine, FakeEngine) else ()
    own: list[tuple[str, str | None, str | None]] = [
        (f"arms.{arm}.faults.{index}", fault.phase, fault.prompt)
        for index, fault in enumerate(loaded.scenario.arms[arm].faults)
    ]
    own += [
        (f"arms.{arm}.engine.faults.{index}", fake.phase, fake.prompt)
        for index, fake in enumerate(fakes)
    ]
    for place, phase, prompt in own:
        for key, named, known in (("phase", phase, names), ("prompt", prompt, prompts)):
            if named is not None and named not in known:
                path = [int(part) if part.isdigit() else part for part in place.split(".")]
                raise UsageError(
                    f"{loaded.where(*path, key)}: {place}.{key}: stage {stage} has no {key} "
                    f"{named!r}; {did_you_mean(named, known)}"
                )


def warn(
    scenario: Scenario,
    stage: str,
    arm: str,
    engine: ServedEngine,
    phases: Sequence[PlannedPhase],
    lengths: Mapping[str, int],
) -> list[str]:
    """Return sentences on what the stage will not prove although it runs."""
    claims = scenario.stages[stage].claims
    workload = scenario.stages[stage].workload
    warnings: list[str] = []
    values_claimed = [claim.value for claim in (Claim.IDENTITY, Claim.LOGPROBS) if claim in claims]
    if _has_dummy_weights(scenario) and values_claimed:
        warnings.append(
            f"stage {stage} claims {' and '.join(values_claimed)} with dummy weights: every prompt "
            "gets the same answer, so the run proves hits and liveness only"
        )
    is_replay = isinstance(workload, ReplayWorkload)
    fresh_runs = workload.fresh_runs if isinstance(workload, ReplayWorkload) else 0
    has_band = (
        isinstance(workload, ReplayWorkload)
        and PhaseKind.FRESH in workload.phases
        and fresh_runs >= BAND_RUNS
    )
    if Claim.LOGPROBS in claims and is_replay and not has_band:
        warnings.append(
            f"stage {stage} claims logprobs with {fresh_runs} fresh runs: a band needs {BAND_RUNS}"
        )
    warnings += _host_pool_warning(scenario, stage, arm, engine, phases, lengths)
    return warnings


def _refuse_faults(loaded: Loaded, arm: str) -> None:
    chosen = loaded.scenario.arms[arm]
    if chosen.faults and not is_faulty(chosen.connector):
        raise UsageError(
            f"{loaded.where('arms', arm, 'faults')}: arms.{arm}.faults: only a faulty twin can "
            f"damage loads; write arms.{arm}.connector: "
            "{kind: simple, copies: host_memory, faulty: true, ...}"
        )
    if is_faulty(chosen.connector) and not chosen.faults:
        raise UsageError(
            f"{loaded.where('arms', arm, 'connector', 'faulty')}: arms.{arm}.connector.faulty: the "
            f"twin has nothing to damage; write arms.{arm}.faults: "
            "[{mode: zero_block, phase: replay-1, prompt: p2}], or use the healthy connector"
        )


def _refuse_fake_faults(loaded: Loaded, stage: str, arm: str, engine: FakeEngine) -> None:
    for index, fault in enumerate(engine.faults):
        where = f"engine.faults.{index} (stage {stage}, arm {arm})"
        if fault.kind not in registered():
            hint = did_you_mean(fault.kind, list(registered()))
            raise UsageError(
                f"{loaded.sources[0]}: {where}: no fault is called {fault.kind!r}; {hint}; "
                "`kvbench engine faults` lists them"
            )
        try:
            msgspec.convert(fault.options, registered()[fault.kind].Options)
        except msgspec.ValidationError as error:
            raise UsageError(f"{loaded.sources[0]}: {where}: options: {error}") from error


def _refuse_block_size(loaded: Loaded, engine: ServedEngine) -> None:
    geometry = loaded.scenario.model.geometry
    if geometry is None or engine.block_tokens is None or len(geometry.groups) != 1:
        return
    declared = geometry.groups[0].block_tokens
    if declared != engine.block_tokens * engine.decode_context_parallel:
        raise UsageError(
            f"{loaded.where('engine', 'block_tokens')}: engine.block_tokens: {engine.block_tokens} "
            f"contradicts model.geometry ({declared} tokens a block); change "
            "model.geometry.groups.0.block_tokens, hash_block_tokens and hit_alignment_tokens too"
        )


def _refuse_without_resets(
    loaded: Loaded, stage: str, workload: ReplayWorkload, engine: ServedEngine
) -> None:
    if engine.dev_mode:
        return
    needing = [kind.value for kind in workload.phases if kind in _NEED_RESET]
    if PhaseKind.FRESH in workload.phases and workload.fresh_runs * len(workload.concurrency) > 1:
        needing.append("more than one fresh run")
    if needing:
        raise UsageError(
            f"{loaded.where('engine', 'dev_mode')}: engine.dev_mode: false, but stage {stage} "
            f"needs cache resets ({', '.join(needing)}), which vLLM offers in dev mode only"
        )


def _too_short(
    scenario: Scenario, arm: str, engine: ServedEngine, lengths: Sequence[int]
) -> str | None:
    geometry = geometry_under(scenario.model.geometry, engine)
    connector = scenario.arms[arm].connector
    longest = [
        longest_hit_tokens(length, geometry=geometry, engine=engine, connector=connector)
        for length in lengths
    ]
    if geometry is None or any(longest):
        return None
    unit = geometry.hit_alignment_tokens
    return (
        f"no prompt can hit: the longest has {max(lengths)} tokens, hits are multiples of {unit}, "
        f"and the last token is always computed; the smallest useful length is {unit + 1} tokens"
    )


def _too_long(
    scenario: Scenario, engine: ServedEngine, workload: ReplayWorkload, lengths: Sequence[int]
) -> str | None:
    longest = max(lengths)
    total = longest + workload.new_tokens
    limit = engine.max_model_len_tokens
    if limit is not None and total > limit:
        return (
            f"a prompt of {longest} tokens with {workload.new_tokens} new ones is longer than "
            f"engine.max_model_len_tokens ({limit}); shorten it to {limit - workload.new_tokens}"
        )
    filler = max(workload.filler_lengths_tokens, default=0)
    if limit is not None and filler + 1 > limit:
        return (
            f"a filler of {filler} tokens (filler_lengths_tokens) with one new one is longer than "
            f"engine.max_model_len_tokens ({limit})"
        )
    room = Room(geometry_under(scenario.model.geometry, engine), engine)
    if room.blocks is None or room.least_blocks(total) <= room.blocks:
        return None
    return (
        f"a prompt of {longest} tokens with {workload.new_tokens} new ones needs "
        f"{room.least_blocks(total)} blocks, and the GPU pool has {room.blocks} usable ones "
        f"(engine.gpu_blocks: {engine.gpu_blocks}, one is vLLM's null block)"
    )


def _has_dummy_weights(scenario: Scenario) -> bool:
    model = scenario.model
    return isinstance(model, PathModel | HubModel) and model.weights == "dummy"


def _host_pool_warning(
    scenario: Scenario,
    stage: str,
    arm: str,
    engine: ServedEngine,
    phases: Sequence[PlannedPhase],
    lengths: Mapping[str, int],
) -> list[str]:
    """Compare what is stored between two full resets with the connector's pool."""
    connector = scenario.arms[arm].connector
    geometry = geometry_under(scenario.model.geometry, engine)
    if geometry is None or isinstance(connector, NoConnector):
        return []
    host_blocks = tier_model(geometry, engine, connector).host_blocks
    if host_blocks is None:
        return []
    usable = host_blocks if isinstance(connector, NativeConnector) else host_blocks - 1
    room = Room(geometry, engine)
    stored: dict[str, int] = {}
    most = 0
    for phase in phases:
        if phase.reset == "all":
            stored = {}
        sent = [request.prompt_id for wave in phase.waves for request in wave]
        for prompt_id in [*sent, *([phase.sentinel_id] if phase.sentinel_id else [])]:
            stored[prompt_id] = room.most_blocks(lengths[prompt_id] + phase.new_tokens)
        most = max(most, sum(stored.values()))
    if most <= usable:
        return []
    warning = (
        f"stage {stage}, arm {arm}: up to {most} blocks are stored between two full resets and the "
        f"host pool holds {usable}: some replays will miss, as predicted where the oracle is exact"
    )
    return [warning]

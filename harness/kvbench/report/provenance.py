"""T0 for a pull request: every condition that decides a number, and how to get the number again.

Servers that were set up alike share a line; where they differ each is named by its arms. What the
engine said of itself stands first, and where something else was asked for, that stands beside it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from kvbench.ledger import Ledger, Life
from kvbench.report.gfm import bold, clean, clipped, code, text
from kvbench.report.header import capacity, connector_words, run_facts
from kvbench.report.numbers import bytes_words, count
from kvbench.report.text import MISSING
from kvbench.scenario.connectors import Connector, NoConnector
from kvbench.scenario.engines import FakeEngine, ServedEngine, parse_engine
from kvbench.scenario.resolve import geometry_under

MAX_SERVERS: Final = 8
"""Servers that are named one by one in a line where they differ."""
MAX_COMMAND_CHARACTERS: Final = 2_000
_CONNECTOR: TypeAdapter[Connector] = TypeAdapter(Connector)
_COMMIT = re.compile(r"\+(?:.*\.)?g([0-9a-f]{7,40})\b")
_DECISIVE_ENV: Final = ("PYTHONHASHSEED", "VLLM_BATCH_INVARIANT")
_LIMITS: Final = "_limit_s"


class Fact(NamedTuple):
    """One line of T0: its name, and its value as markup."""

    name: str
    value: str


class Server(NamedTuple):
    """One life with what was planned for it, as models."""

    life: Life
    engine: ServedEngine
    connector: Connector

    @property
    def effective(self) -> Mapping[str, Any]:
        """What the engine said of itself; empty where it did not get so far."""
        return self.life.ready[1].effective if self.life.ready is not None else {}

    @property
    def asked(self) -> Mapping[str, Any]:
        """What was asked for, under the same names."""
        planned = self.life.planned
        return planned.asked if planned is not None else {}

    def read(self, key: str) -> str:
        """A setting as it was in effect, and what was asked where that is something else."""
        asked = self.asked.get(key, getattr(self.engine, key, None))
        if key not in self.effective:
            if asked is None:
                return MISSING
            return f"{text(_words(asked))} (asked; in effect {MISSING})"
        effective = self.effective[key]
        shown = "none" if effective is None else text(_words(effective))
        if asked is None or asked == "auto" or _is_same(asked, effective):
            return shown
        return bold(f"{shown}, but asked was {text(_words(asked))}")


def _words(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _is_same(asked: Any, effective: Any) -> bool:
    """JSON has no tuples."""
    pair = [list(each) if isinstance(each, tuple) else each for each in (asked, effective)]
    return bool(pair[0] == pair[1])


def servers(ledger: Ledger) -> list[Server]:
    """The lives that the plan knows."""
    return [
        Server(
            life,
            parse_engine(life.planned.engine),
            _CONNECTOR.validate_python(life.planned.connector),
        )
        for life in ledger.lives
        if life.planned is not None
    ]


def _labels(found: Sequence[Server]) -> list[str]:
    arms = [server.life.arm_words for server in found]
    return [
        arm if arms.count(arm) == 1 else f"{arm}, {server.life.id}"
        for arm, server in zip(arms, found, strict=True)
    ]


def _per_server(found: Sequence[Server], say: Callable[[Server], str]) -> str:
    """What a function says of each server; once where it says the same of all."""
    by_words: dict[str, list[str]] = {}
    for label, server in zip(_labels(found), found, strict=True):
        by_words.setdefault(say(server), []).append(label)
    if not by_words:
        return MISSING
    if len(by_words) == 1:
        return next(iter(by_words))
    lines = [
        f"{text(' and '.join(labels), most=80)}: {words}" for words, labels in by_words.items()
    ]
    rest = len(lines) - MAX_SERVERS
    more = [f"and {rest} more in report.md"] if rest > 0 else []
    return "<br>".join([*lines[:MAX_SERVERS], *more])


# ---- builds ----------------------------------------------------------------------------------


def _kvbench(ledger: Ledger) -> str:
    source = ledger.run.source
    commit, dirty = source.get("commit"), source.get("dirty")
    state = {True: bold("with local changes"), False: "no local changes"}
    words = [
        code(ledger.run.kvbench_version),
        f"commit {code(commit) if commit else MISSING}",
        state[bool(dirty)] if dirty is not None else f"local changes {MISSING}",
    ]
    repository = source.get("repository")
    return ", ".join([*words, *([text(repository)] if repository else [])])


def _vllm(server: Server) -> str:
    started = server.life.started.vllm_version
    running = server.effective.get("vllm_version")
    if isinstance(server.engine, FakeEngine):
        return bold(text(started or MISSING))
    shown = code(running or started) if running or started else MISSING
    if running and started and running != started:
        shown += f" ({bold(f'installed is {code(started)}')})"
    commit = _COMMIT.search(f"{running or ''} {started or ''}")
    words = f"commit {code(commit[1])}" if commit else f"commit {MISSING}"
    start = f"start {text(server.life.started.start_mode)}"
    return f"{shown}, {words}; local patches {MISSING} (not recorded); {start}"


def _vllm_without_plan(ledger: Ledger) -> str:
    versions = dict.fromkeys(life.started.vllm_version or MISSING for life in ledger.lives)
    return text(", ".join(versions) or MISSING)


def _clients(ledger: Ledger) -> str:
    names = [f"kvbench {text(ledger.run.kvbench_version)}"]
    names.append(f"Python {text(ledger.run.machine.get('python') or MISSING)}")
    for window in ledger.windows:
        for _, done in window.evaluations:
            shots = f"{done.shots if done.shots is not None else MISSING} shots"
            task = f"{done.task} {done.task_version or MISSING}, {shots}, {done.shots_kind}"
            names.append(text(f"{done.tool} {done.tool_version or MISSING} ({task})"))
        if window.agent_run is not None:
            names.append(text(f"AIPerf {window.agent_run.done.tool_version or MISSING}"))
    return ", ".join(dict.fromkeys(names))


def _gpus(machine: Mapping[str, Any]) -> str:
    gpus = machine.get("gpus")
    if gpus is None:
        return f"GPUs {MISSING}"
    words: dict[str, int] = {}
    for gpu in gpus:
        if isinstance(gpu, Mapping):
            memory = bytes_words(gpu.get("memory_bytes"))
            name = f"{gpu.get('name')} ({memory}, driver {gpu.get('driver') or MISSING})"
        else:
            name = str(gpu)
        words[name] = words.get(name, 0) + 1
    return ", ".join(f"{number} × {name}" for name, number in words.items()) or "no GPU"


def _hardware(machine: Mapping[str, Any]) -> str:
    memory = bytes_words(machine.get("memory_bytes"))
    cores = machine.get("cores") or MISSING
    cpu = machine.get("cpu") or MISSING
    system = machine.get("os") or MISSING
    return text(f"{_gpus(machine)}; {cores} cores, {cpu}; memory {memory}; {system}")


# ---- settings --------------------------------------------------------------------------------


def _topology(server: Server) -> str:
    named = (("TP", "tensor"), ("PP", "pipeline"), ("DP", "data"), ("DCP", "decode_context"))
    sizes = [f"{short} {server.read(f'{name}_parallel')}" for short, name in named]
    return ", ".join([*sizes, f"EP {'on' if server.engine.expert_parallel else 'off'}"])


def _types(server: Server) -> str:
    engine = server.engine
    backend = text(engine.attention_backend or "the engine's own choice")
    graph = "eager" if engine.enforce_eager else "graphs"
    return (
        f"{server.read('dtype')}, KV cache {server.read('kv_cache_dtype')}; "
        f"attention backend {backend}; {graph}"
    )


def _connector(server: Server) -> str:
    connector = server.connector
    runs = server.read("connector")
    if isinstance(connector, NoConnector) and runs == "none":
        return "none"
    words = f"{text(connector_words(connector))}; in effect: {runs}"
    config = server.effective.get("connector_config")
    shown = json.dumps(config, sort_keys=True, default=str)
    return f"{words} {code(shown)}" if config else words


def _gpu_pool(server: Server) -> str:
    chosen = "set by the scenario" if server.engine.gpu_blocks else "the engine's own choice"
    size = server.effective.get("kv_cache_size_tokens")
    tokens = count(size) if isinstance(size, int) else MISSING
    return (
        f"{server.read('gpu_blocks')} blocks ({chosen}) of {server.read('block_tokens')} tokens; "
        f"{tokens} tokens in all"
    )


def _hits(ledger: Ledger, server: Server) -> str:
    declared = ledger.scenario.model.geometry if ledger.scenario is not None else None
    geometry = geometry_under(declared, server.engine)
    words = [f"groups of {server.read('group_block_tokens')} tokens"]
    if geometry is None:
        words.append("geometry not declared: expected hits are ranges")
    else:
        words.append(f"aligned to {geometry.hit_alignment_tokens}")
    words.append(f"hash block {server.read('hash_block_tokens')}")
    words.append(f"match unit {server.read('prefix_match_unit_tokens')}")
    words.append(f"retention interval {server.read('retention_interval')}")
    return ", ".join(words)


def _limits(server: Server) -> str:
    return (
        f"{server.read('max_model_len_tokens')} tokens a sequence, "
        f"{server.read('max_num_seqs')} sequences, prefill chunk {server.read('chunk_tokens')}"
    )


def _determinism(server: Server) -> str:
    env = server.engine.env
    shown = [f"{name} {text(env.get(name, 'not set'))}" for name in _DECISIVE_ENV]
    events = "on" if server.engine.kv_events else "off"
    return ", ".join([f"engine seed {server.engine.seed}", *shown, f"KV events {events}"])


def _further(server: Server) -> str:
    env = [f"{k}={v}" for k, v in sorted(server.engine.env.items()) if k not in _DECISIVE_ENV]
    passed = [f"{name} (passed through)" for name in server.engine.env_from_agent]
    words = [shlex.join(server.engine.args), *env, *passed]
    return " ".join(code(word) for word in words if word) or "none"


def _faults_of(ledger: Ledger, server: Server) -> list[str]:
    found: list[str] = []
    if isinstance(server.engine, FakeEngine):
        found += [
            f"{each.kind} in {each.phase or 'every phase'}, prompt {each.prompt or 'any'}"
            for each in server.engine.faults
        ]
    arms = ledger.scenario.arms if ledger.scenario is not None else {}
    for name in server.life.arms:
        planned = arms[name].faults if name in arms else ()
        found += [f"{each.mode} in {each.phase}, prompt {each.prompt}" for each in planned]
    return found


def injected_faults(ledger: Ledger) -> list[str]:
    """What the scenario damages on purpose, fault by fault with the arm."""
    found = servers(ledger)
    return [
        f"{fault} ({label})"
        for label, server in zip(_labels(found), found, strict=True)
        for fault in _faults_of(ledger, server)
    ]


def _faults(ledger: Ledger, server: Server) -> str:
    found = _faults_of(ledger, server)
    return bold(text("; ".join(found))) if found else "none"


def _difference_words(found: Sequence[Server]) -> str:
    """Whether the engine ran with what was asked for, over all servers."""
    compared, differs, unread = 0, [], []
    for label, server in zip(_labels(found), found, strict=True):
        for key, asked in sorted(server.asked.items()):
            if key not in server.effective:
                unread += [key] if asked is not None else []
            elif _is_same(asked, server.effective[key]):
                compared += 1
            else:
                running = server.effective[key]
                differs.append(f"{label}: {key} asked {asked}, in effect {running}")
    words = [bold(text("; ".join(differs)))] if differs else []
    words.append(f"{compared if found else MISSING} settings are as asked")
    if unread:
        words.append(f"not readable from the engine: {text(', '.join(dict.fromkeys(unread)))}")
    return "; ".join(words)


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif not key.endswith(_LIMITS) and value not in (None, [], ()):
            yield f"{above}{key}", value


def _workload(ledger: Ledger, stage: str) -> str:
    """All settings of a workload but its time limits, as the scenario spells them."""
    assert ledger.scenario is not None
    tree = ledger.scenario.stages[stage].workload.model_dump(mode="json")
    pairs = [f"{key}={value}" for key, value in _flat(tree)]
    return text(", ".join(pairs).replace("'", ""), most=900)


# ---- the whole -------------------------------------------------------------------------------


def _setting_facts(ledger: Ledger) -> list[Fact]:
    found = servers(ledger)

    def fact(name: str, say: Callable[[Server], str]) -> Fact:
        return Fact(name, _per_server(found, say))

    facts = [
        fact("connector", _connector),
        fact("host pool", lambda s: text(capacity(s.connector, s.engine, ledger))),
        fact("GPU pool", _gpu_pool),
        fact("hits", lambda s: _hits(ledger, s)),
        fact("topology", _topology),
        fact("types", _types),
        fact("limits", _limits),
        fact("determinism", _determinism),
        fact("further settings", _further),
        fact("injected faults", lambda s: _faults(ledger, s)),
        Fact("asked and in effect", _difference_words(found)),
    ]
    optional = ("further settings", "injected faults")
    return [
        each for each in facts if not (each.name in optional and each.value in ("none", MISSING))
    ]


def facts(ledger: Ledger) -> list[Fact]:
    """T0, line by line."""
    found = servers(ledger)
    known = dict(run_facts(ledger))
    lines = [
        Fact("kvbench", _kvbench(ledger)),
        Fact("vLLM", _per_server(found, _vllm) if found else _vllm_without_plan(ledger)),
        Fact("model", text(known.get("model", MISSING))),
        Fact("hardware", _hardware(ledger.run.machine)),
        *_setting_facts(ledger),
    ]
    if ledger.scenario is not None:
        ran = dict.fromkeys(stage for server in found for stage in server.life.stages)
        stages = [stage for stage in ran if stage in ledger.scenario.stages]
        lines += [
            Fact(f"workload of {text(stage, most=60)}", _workload(ledger, stage))
            for stage in stages[:MAX_SERVERS]
        ]
        if len(stages) > MAX_SERVERS:
            lines.append(Fact("more stages", f"{len(stages) - MAX_SERVERS}, in scenario.json"))
        lines.append(Fact("error rate", f"{ledger.scenario.error_rate:g} per comparison"))
    lines.append(Fact("clients", _clients(ledger)))
    return lines


def record_folder(ledger: Ledger) -> str:
    """Where records lie as kvbench writes them: `results/<scenario>/<run>`."""
    return f"results/{ledger.run.scenario_name}/{ledger.run.run_id}"


def commands(ledger: Ledger) -> list[str]:
    """Shell lines that measure this again: from the record, and as it was typed then."""
    first, *rest = ledger.run.command or ("kvbench",)
    typed = shlex.join([PurePath(first).name or first, *rest])
    return [
        f"kvbench rerun {shlex.quote(record_folder(ledger))}",
        clipped(clean(typed).replace("\n", " "), MAX_COMMAND_CHARACTERS),
    ]

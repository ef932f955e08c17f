"""A run made again from its record: the scenario as it was resolved, and what is different now.

The record is enough: fragments were merged and overrides applied before it was written. Two traps:
`scenario.json` has its keys sorted, while the order of arms decides which server is started first;
and secrets are masked in it, so a run made from the mask alone would fail far from the reason, or
measure something else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kvbench import __version__, environments
from kvbench.errors import PrerequisiteError, RecordError, UsageError
from kvbench.events import LifeStarted, RunStarted
from kvbench.masking import MASK, mask_tree, secrets_in
from kvbench.plan_types import Plan, PlannedLife
from kvbench.record import SCENARIO, SEAL, StoredRecord, broken_seal
from kvbench.scenario.engines import FakeEngine, parse_engine
from kvbench.scenario.load import Loaded, load_tree
from kvbench.scenario.overrides import EXTENDS, parse_override
from kvbench.scenario.tree import Node, read_yaml
from kvbench.telemetry.machine import machine_facts, source_facts

_ORDERED: Final = ("arms", "stages")
_PASSED_ON: Final = "env_from_agent"
_UNREAD: Final = "n/a"
_MACHINE: Final = ("cpu", "cores", "memory_bytes", "os", "python")
_GPU: Final = ("name", "memory_bytes", "driver")
"""what of a GPU stays the same from one minute to the next"""


class Difference(NamedTuple):
    """One condition that is not what it was."""

    what: str
    recorded: str
    now: str


@dataclass(frozen=True)
class Recorded:
    """What a record says about how it was made."""

    directory: Path
    started: RunStarted
    plan: Plan
    lives: tuple[LifeStarted, ...]
    """servers that were started; an interrupted run may have fewer than were planned"""
    notes: tuple[str, ...]

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.started.run_id


def read(directory: Path) -> Recorded:
    """Read a record; raises RecordError where there is none, or where it was edited."""
    record = StoredRecord(directory)
    notes: tuple[str, ...] = ()
    started = record.started()
    if (directory / SEAL).is_file():
        _refuse_edited(directory)
    else:
        notes = ("the run was interrupted, so nothing says whether its record was edited since",)
    lives = tuple(event for _, event in record.events() if isinstance(event, LifeStarted))
    return Recorded(directory, started, record.plan(), lives, notes)


def load(recorded: Recorded, sets: Sequence[str]) -> Loaded:
    """Return the recorded scenario with overrides.

    Raises UsageError, with the fields, where a masked secret was not given again, and
    PrerequisiteError where a variable that the servers were given is not set now.
    """
    for text in sets:
        path = parse_override(text).path
        if path[-1] == EXTENDS:
            raise UsageError(
                f"--set {text}: in a record fragments are merged already, and what they said would "
                f"win; write the values out: --set '{'.'.join(path[:-1])}={{kind: ..., ...}}'"
            )
    file = recorded.directory / SCENARIO
    tree = read_yaml(file, name=str(file))
    tree = _in_order(tree, recorded.plan.scenario)
    loaded = load_tree(tree, file, sets=sets)
    _refuse_masked(loaded)
    given = {name for life in recorded.lives for name in life.env}
    missing = sorted(_passed_on(loaded.resolved) & given - os.environ.keys())
    if missing:
        raise PrerequisiteError(
            f"{file}: the recorded servers were given {', '.join(missing)} from the environment of "
            f"kvbench, where it is not set now; export it first"
        )
    return loaded


def differences(recorded: Recorded, plan: Plan) -> list[Difference]:
    """Compare with the recorded run: kvbench, vLLM of each server, machine, and what is sent.

    Secrets are masked as in a record, so that they neither differ nor are shown.
    """
    tree = msgspec.to_builtins(msgspec.structs.replace(plan, prompts={}))
    masked = mask_tree(tree, secrets_in(tree))
    return [
        *_of_kvbench(recorded.started),
        *_of_vllm(recorded, plan),
        *_of_machine(recorded.started.machine, machine_facts()),
        *_of_scenario(recorded.plan.scenario, masked["scenario"]),
        *_of_prompts(recorded.plan.prompts, plan.prompts),
        *_of_lives(msgspec.to_builtins(recorded.plan.lives), masked["lives"]),
    ]


def _refuse_edited(directory: Path) -> None:
    edited = broken_seal(directory)
    if edited:
        raise RecordError(
            f"{directory} was edited after its run: {', '.join(edited[:4])} "
            f"{'differs' if len(edited) == 1 else 'differ'} from {SEAL}, so this may not be what "
            f"ran; take an intact copy, or run the scenario file itself with `kvbench run`"
        )


def _in_order(tree: Node, planned: Mapping[str, Any]) -> Node:
    """Put arms and stages in the order of the plan, in which servers are started."""
    for key in _ORDERED:
        node = tree.child(key)
        if node is not None and isinstance(node.value, dict):
            children = node.value
            names = [name for name in planned.get(key, ()) if name in children]
            names += [name for name in children if name not in names]
            tree = tree.replaced((key,), Node({name: children[name] for name in names}, node.place))
    return tree


def _passed_on(tree: Any) -> set[str]:
    """Names of all `env_from_agent` in a scenario: of its engine, its arms and its stages."""
    if isinstance(tree, Mapping):
        own = tree.get(_PASSED_ON)
        names = set(own) if isinstance(own, list | tuple) else set()
        return names.union(*(_passed_on(value) for value in tree.values()))
    if isinstance(tree, list | tuple):
        return set().union(*(_passed_on(item) for item in tree))
    return set()


def _masked(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, str):
        if MASK in tree:
            yield path
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _masked(value, (*path, str(key)))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _masked(value, (*path, str(index)))


def _refuse_masked(loaded: Loaded) -> None:
    passed = _passed_on(loaded.resolved)
    lines = []
    for path in _masked(loaded.resolved):
        field, name = ".".join(path), path[-1]
        is_variable = len(path) > 1 and path[-2] == "env"
        if is_variable and name in passed and name in os.environ:
            continue  # what is passed on from the environment wins over `env`
        if is_variable:
            engine = ".".join(path[:-2])
            mend = f"export {name} and add --set '{engine}.{_PASSED_ON}=[{name}]'"
        else:
            mend = f"write it again: --set '{field}=...'"
        lines.append(f"{loaded.where(*path)}: {field} is masked in the record; {mend}")
    if lines:
        raise UsageError("\n".join(lines))


def _of_kvbench(started: RunStarted) -> Iterator[Difference]:
    if started.kvbench_version != __version__:
        yield Difference("kvbench", started.kvbench_version, __version__)
    now = source_facts()
    then, here = _checkout(started.source), _checkout(now)
    # Two checkouts with local changes are not known to be the same.
    if then != here:
        yield Difference("kvbench commit", then, here)
    elif now.get("dirty"):
        yield Difference("kvbench commit", then, "the same, perhaps with other local changes")


def _checkout(source: Mapping[str, Any]) -> str:
    commit = str(source.get("commit") or _UNREAD)[:12]
    return f"{commit} with local changes" if source.get("dirty") else commit


def _of_vllm(recorded: Recorded, plan: Plan) -> Iterator[Difference]:
    """By life; one that was never started has no version to compare with."""
    then = {life.life: life.vllm_version for life in recorded.lives}
    for life in plan.lives:
        if life.life in then:
            now = _vllm_version(life)
            if then[life.life] != now:
                yield Difference(f"vLLM of {life.life}", _words(then[life.life]), _words(now))


def _vllm_version(life: PlannedLife) -> str | None:
    engine = parse_engine(life.engine)
    if isinstance(engine, FakeEngine):
        return f"none: fake engine in the manner of {engine.generation}"
    return environments.vllm_version(environments.resolve_python(engine.python))


def _of_machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for key in _MACHINE:
        if then.get(key) != now.get(key):
            yield Difference(key, _words(then.get(key)), _words(now.get(key)))
    gpus = (_gpus(then.get("gpus")), _gpus(now.get("gpus")))
    if gpus[0] != gpus[1]:
        yield Difference("gpus", *gpus)
    flags = [set(facts.get("cpu_flags") or ()) for facts in (then, now)]
    if flags[0] != flags[1] and all(flags):
        lost, won = sorted(flags[0] - flags[1]), sorted(flags[1] - flags[0])
        yield Difference("cpu_flags", _some(lost, "only then"), _some(won, "only now"))


def _gpus(found: Any) -> str:
    if found is None:
        return _UNREAD
    words = [", ".join(_words(gpu.get(key)) for key in _GPU) for gpu in found]
    return "; ".join(words) or "none"


def _some(flags: Sequence[str], words: str) -> str:
    if not flags:
        return "-"
    more = f" and {len(flags) - 4} more" if len(flags) > 4 else ""
    return f"{words}: {', '.join(flags[:4])}{more}"


def _of_scenario(then: Any, now: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Settings that an override, or another default of this kvbench, has changed."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*then, *now)):
            yield from _of_scenario(then.get(key), now.get(key), (*path, str(key)))
    elif _plain(then) != _plain(now):
        yield Difference(".".join(path), _words(then), _words(now))


def _of_prompts(
    then: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]
) -> Iterator[Difference]:
    if then != now:
        same = sum(now.get(name) == tokens for name, tokens in then.items())
        yield Difference("prompts", f"{len(then)}", f"{len(now)}, {same} of them the same")


def _of_lives(then: Sequence[Any], now: Sequence[Any]) -> Iterator[Difference]:
    """Servers in the order of their start: what is sent to each, its command and variables."""
    if len(then) != len(now):
        yield Difference("servers", str(len(then)), str(len(now)))
    for before, after in zip(then, now, strict=False):
        name = after["life"]
        if _plain(before["phases"]) != _plain(after["phases"]):
            counts = [f"{len(life['phases'])} phases" for life in (before, after)]
            yield Difference(f"phases of {name}", counts[0], f"{counts[1]}, other content")
        if _plain(before["argv"]) != _plain(after["argv"]):
            lost = [word for word in before["argv"] if word not in after["argv"]]
            won = [word for word in after["argv"] if word not in before["argv"]]
            words = [_words(" ".join(each) or "-") for each in (lost, won)]
            yield Difference(f"command of {name}", *words)
        for variable in dict.fromkeys((*before["env"], *after["env"])):
            values = [life["env"].get(variable) for life in (before, after)]
            if values[0] != values[1]:
                yield Difference(f"{variable} of {name}", _words(values[0]), _words(values[1]))


def _plain(value: Any) -> Any:
    """Comparable form: JSON has no tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _words(value: Any) -> str:
    text = _UNREAD if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Like with like: which settings of two runs differ, and which of those decide a number.

Every key counts as deciding unless it is listed here as harmless: a setting that nobody thought of
must not slip through. What the person declares with `--allow` is what is being compared; that is
recorded, and everything else must be equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from kvbench.compare.runs import Run
from kvbench.errors import UsageError
from kvbench.ledger import Life
from kvbench.report.text import MISSING

Kind = Literal["decides", "machine", "build", "note"]
"""decides: no number may be compared. machine: no time may. build: named, because it is usually
what is compared. note: decides no number."""

BUILD: Final = ("build.*", "engine.python", "*.engine.python")
NOTES: Final = (
    "name",
    "title",
    "notes",
    "needs.*",
    "*.geometry.source",
    "engine.host",
    "engine.port",
    "*_limit_s",
    "stages.*.claims",
    "stages.*.arms",
)
NOT_COMPARED: Final = frozenset({"vllm_version", "model_path", "listener"})
"""Effective settings left out: the version is a key of the build, a path and a listener are the
machine's own business."""
MACHINE_KEYS: Final = ("cpu", "cpu_flags", "cores", "memory_bytes", "os")
GPU_KEYS: Final = ("name", "memory_bytes", "driver")

Flat = dict[str, Any]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One key in which two runs differ."""

    key: str
    base: str
    """value in the base, as text; n/a where the key is not there"""
    other: str
    kind: Kind
    allowed_by: str | None = None
    """the pattern of `--allow` that declares it"""

    @property
    def words(self) -> str:
        """For a list."""
        return f"{self.key}: {self.base} / {self.other}"


class _Absent:
    """Where a key is missing; None is a value of its own."""


ABSENT: Final = _Absent()


def _text(value: Any) -> str:
    if value is ABSENT:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested mappings as dotted keys; lists are values."""
    found: Flat = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        elif not isinstance(value, Mapping):
            found[f"{prefix}{key}"] = value
    return found


def _kind(key: str) -> Kind:
    if key.startswith("machine."):
        return "machine"
    if any(fnmatchcase(key, pattern) for pattern in BUILD):
        return "build"
    return "note" if any(fnmatchcase(key, pattern) for pattern in NOTES) else "decides"


def _unequal(base: Flat, other: Flat) -> list[Difference]:
    return [
        Difference(key=key, base=_text(left), other=_text(right), kind=_kind(key))
        for key in sorted(base.keys() | other.keys())
        if (left := base.get(key, ABSENT)) != (right := other.get(key, ABSENT))
    ]


def _scenario(run: Run, arms: frozenset[str], stages: frozenset[str]) -> Flat:
    """The resolved scenario, without arms and stages that the other run does not have."""
    assert run.ledger.scenario is not None
    tree = run.ledger.scenario.model_dump(mode="json")
    tree["arms"] = {name: arm for name, arm in tree["arms"].items() if name in arms}
    tree["stages"] = {name: stage for name, stage in tree["stages"].items() if name in stages}
    return flat(tree)


def _build(run: Run) -> Flat:
    source = run.ledger.run.source
    versions = run.vllm_versions
    return {
        "build.vllm_version": versions[0] if len(versions) == 1 else list(versions),
        "build.kvbench_version": run.ledger.run.kvbench_version,
        "build.kvbench_commit": source.get("commit", ABSENT),
        "build.kvbench_dirty": source.get("dirty", ABSENT),
    }


def _machine(run: Run) -> Flat:
    facts = run.ledger.run.machine
    found = {f"machine.{key}": facts[key] for key in MACHINE_KEYS if key in facts}
    gpus = facts.get("gpus")
    if gpus:
        found["machine.gpus"] = [
            {key: gpu.get(key) for key in GPU_KEYS} if isinstance(gpu, Mapping) else gpu
            for gpu in gpus
        ]
    elif "gpus" in facts:
        found["machine.gpus"] = gpus
    return found


def _prompts(run: Run, stages: Iterable[str]) -> Flat:
    """Digests of the token ids: equal seeds make equal prompts only in one kvbench."""
    assert run.ledger.plan is not None
    found: Flat = {}
    for stage in stages:
        ids = {k: v for k, v in run.ledger.plan.prompts.items() if k.startswith(f"{stage}/")}
        digest = hashlib.sha256(msgspec.json.encode(sorted(ids.items()))).hexdigest()[:12]
        tokens = sum(map(len, ids.values()))
        found[f"prompts.{stage}"] = f"{len(ids)} prompts, {tokens} tokens, sha256 {digest}"
    return found


def _follows(key: str, base: Life, other: Life) -> bool:
    """True where an effective setting differs because the two plans asked for something else."""
    if base.planned is None or other.planned is None:
        return False
    one, two = base.planned, other.planned
    if key.startswith("connector"):
        return one.connector != two.connector
    return one.engine.get(key) != two.engine.get(key) or one.asked.get(key) != two.asked.get(key)


def _effective(base: Run, other: Run, pairs: Iterable[tuple[str, str]]) -> list[Difference]:
    """Settings that the engines say of themselves, where they differ without being asked to.

    A key that only one engine tells is a note: another version may tell more of itself.
    """
    found: list[Difference] = []
    for stage, arm in pairs:
        lives = base.life_of(stage, arm), other.life_of(stage, arm)
        if lives[0] is None or lives[1] is None:
            continue
        assert lives[0].ready is not None
        assert lives[1].ready is not None
        left, right = lives[0].ready[1].effective, lives[1].ready[1].effective
        skipped = set(NOT_COMPARED)
        if "gpu_blocks" in left and "gpu_blocks" in right:
            skipped.add("kv_cache_size_tokens")  # follows from it
        for each in _unequal(left, right):
            if each.key in skipped or _follows(each.key, lives[0], lives[1]):
                continue
            is_told = each.key in left and each.key in right
            key = f"effective.{stage}.{arm}.{each.key}"
            kind: Kind = "decides" if is_told else "note"
            found.append(msgspec.structs.replace(each, key=key, kind=kind))
    return found


def _allowed(differences: Iterable[Difference], allow: Sequence[str]) -> list[Difference]:
    found = []
    for each in differences:
        pattern = next((p for p in allow if fnmatchcase(each.key, p)), None)
        found.append(msgspec.structs.replace(each, allowed_by=pattern))
    return found


def differences(base: Run, other: Run, allow: Sequence[str] = ()) -> list[Difference]:
    """Every key in which two runs with a plan differ, with the declaration that covers it.

    Arms and stages that only one of them has are no difference: they are not compared.
    """
    one, two = base.ledger, other.ledger
    assert one.scenario is not None
    assert two.scenario is not None
    arms = frozenset(one.scenario.arms) & frozenset(two.scenario.arms)
    stages = frozenset(one.scenario.stages) & frozenset(two.scenario.stages)
    asked = _unequal(_scenario(base, arms, stages), _scenario(other, arms, stages))
    found = [*asked, *_effective(base, other, [p for p in one.pairs if p in two.pairs])]
    if not any(each.kind == "decides" for each in asked):  # else they follow from that
        found += _unequal(_prompts(base, sorted(stages)), _prompts(other, sorted(stages)))
    found += _unequal(_build(base), _build(other))
    found += _unequal(_machine(base), _machine(other))
    return _allowed(found, allow)


def is_repeat(found: Iterable[Difference]) -> bool:
    """True where nothing differs that could change a number: such runs measure the noise."""
    return all(each.kind == "note" for each in found)


def refuse_fake(base: Run, other: Run) -> None:
    """Raise UsageError where one run is simulated and the other is not; nothing overrides that."""
    if base.is_fake == other.is_fake:
        return
    fake, real = (base, other) if base.is_fake else (other, base)
    raise UsageError(
        f"run {fake.letter} ({fake.ledger.run.run_id}) was made with the fake engine and run "
        f"{real.letter} ({real.ledger.run.run_id}) was not: a simulation is never compared with "
        "vLLM. Compare two runs of one kind; `kvbench report DIR` shows which it is"
    )


def refusal(base: Run, other: Run, found: Sequence[Difference]) -> str | None:
    """Why two runs are not compared, with keys, values and the flags that would declare them."""
    open_keys = [each for each in found if each.kind == "decides" and each.allowed_by is None]
    if not open_keys:
        return None
    head = (
        f"runs {base.letter} ({base.ledger.run.run_id}) and {other.letter} "
        f"({other.ledger.run.run_id}) differ in what decides a number "
        f"({base.letter} / {other.letter}):"
    )
    lines = [
        head,
        *(f"  {each.words}" for each in open_keys),
        "where that is what you compare, say so (patterns such as 'arms.*.connector*' work):",
        "  " + " ".join(f"--allow '{each.key}'" for each in open_keys),
        "else run the scenario again with equal settings",
    ]
    return "\n".join(lines)

"""From answers to a file that loads and plans, or a message that says what cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kvbench.errors import UsageError
from kvbench.init import text
from kvbench.init.checkpoint import Checkpoint
from kvbench.init.choices import (
    Answers,
    Library,
    choose_bytes,
    choose_connector,
    choose_model,
)
from kvbench.init.sizes import default_pool_bytes, sizes_of
from kvbench.plan import make_plan
from kvbench.scenario.load import load_scenario


class Written(NamedTuple):
    """A scenario that was written and planned."""

    words: str
    """what it is, for a person"""
    has_geometry: bool
    warnings: tuple[str, ...]
    """those of its plan"""


def write_scenario(file: Path, answers: Answers, *, is_forced: bool = False) -> Written:
    """Write the scenario of the answers to `file`, and load and plan it.

    Raises UsageError where the file exists (unless `is_forced`), an answer is wrong, or the result
    could not run.
    """
    refuse_existing(file, is_forced=is_forced)
    library, is_cpu = Library(file), answers.gpus == 0
    chosen = choose_model(answers.model, library)
    connector = choose_connector(answers.connector, library, is_cpu=is_cpu)
    sizes = sizes_of(chosen, is_cpu=is_cpu)
    memory = (
        default_pool_bytes(chosen, sizes, gpus=answers.gpus)
        if answers.host_memory is None
        else choose_bytes(answers.host_memory)
    )
    content = text.render(
        file,
        _name(file),
        chosen,
        connector=connector,
        host_memory_bytes=memory,
        gpus=answers.gpus,
        sizes=sizes,
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from error
    loaded = load_scenario(file)
    plan = make_plan(loaded)
    what = chosen.words if isinstance(chosen, Checkpoint) else text.model_words(chosen)
    machine = "vLLM's CPU build" if is_cpu else text.machine_words(answers.gpus)
    words = f"{what}; {connector} with {text.size_words(memory)} of host memory; {machine}"
    return Written(words, loaded.scenario.model.geometry is not None, plan.warnings)


def refuse_existing(file: Path, *, is_forced: bool) -> None:
    """Raise UsageError for a file that is there already, or that is no YAML file."""
    if file.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"{file}: name a YAML file, for example scenarios/first.yaml")
    if file.exists() and not is_forced:
        raise UsageError(f"{file} exists already; name another file, or overwrite it with --force")


def _name(file: Path) -> str:
    """Return the scenario's name, which is its file's and also that of its results folder."""
    name = re.sub(r"[^a-z0-9]+", "_", file.stem.lower()).strip("_")
    return name or "first"

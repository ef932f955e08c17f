"""`kvbench init`: a first scenario from three questions, or from flags."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kvbench.errors import UsageError
from kvbench.init import choices
from kvbench.init.choices import Answers
from kvbench.init.write import refuse_existing, write_scenario

DEFAULT_FILE = Path("scenarios/first.yaml")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = DEFAULT_FILE,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="a checkpoint's folder, a hub name (org/name), tiny, or a name in configs/models",
        ),
    ] = None,
    connector: Annotated[
        str | None, typer.Option("--connector", help="simple_eager, simple_lazy, native, ...")
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", help="the connector's pool over all ranks, e.g. 16GiB"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="number of GPUs, as tensor parallel ranks")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM's CPU build; the default")] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite FILE")] = False,
) -> None:
    """Write a first scenario: asks three questions, or none where a flag answers one.

    What no flag answers then has a default: the tiny model, simple_eager, this CPU, and as much
    host memory as such a run fills. The file is loaded and planned at once.
    """
    if cpu and gpus is not None:
        raise UsageError("--cpu and --gpus: name one of them")
    refuse_existing(file, is_forced=force)
    has_flags = cpu or any(flag is not None for flag in (model, connector, host_memory, gpus))
    answers = Answers(model, connector, host_memory, gpus or 0) if has_flags else _ask(file)
    written = write_scenario(file, answers, is_forced=force)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"wrote {file}: {escape(written.words)}")
    for warning in written.warnings:
        console.print(f"[yellow]note:[/yellow] {escape(warning)}")
    command = _command()
    console.print(f"next:\n  {command} plan {file}\n  {command} run {file}")
    if written.has_geometry:
        console.print(
            f"a rehearsal on the fake engine, without vLLM:\n"
            f"  {command} run {file} --set engine.kind=fake"
        )
    else:
        console.print(
            f"expected hits are ranges, and no rehearsal on the fake engine is possible, until "
            f"model.geometry is declared: see the comment under `model:` in {file}"
        )


def _ask(file: Path) -> Answers:
    """Ask the three questions; raises UsageError where nobody answers."""
    library = choices.Library(file)
    known = ", ".join(["tiny", *library.names("models")])
    try:
        model = typer.prompt(
            f"Which model? A checkpoint's folder, a hub name (org/name), or one of: {known}\n",
            default=choices.TINY,
            prompt_suffix=" ",
        )
        choices.choose_model(model, library)  # a wrong answer is said before the next question
        connector = typer.prompt(
            f"Which connector? {', '.join(library.connectors())}",
            default=choices.DEFAULT_CONNECTOR,
        )
        choices.choose_connector(connector, library, is_cpu=False)
        memory = typer.prompt(
            "How much host memory for it, over all ranks (for example 16GiB; auto: what such a run "
            "fills)",
            default="auto",
        )
        if memory != "auto":
            choices.choose_bytes(memory)
        gpus = typer.prompt("How many GPUs? A number, or cpu for vLLM's CPU build", default="cpu")
    except typer.Abort as error:
        raise UsageError(
            "kvbench init asks three questions, and nobody answered; answer by flags: --model, "
            "--connector, --host-memory, --gpus or --cpu"
        ) from error
    return Answers(
        model, connector, None if memory == "auto" else memory, choices.choose_gpus(gpus)
    )


def _command() -> str:
    """Return how kvbench was called, so that the lines printed can be pasted."""
    called = sys.argv[0]
    return called if Path(called).name == "kvbench" else "kvbench"

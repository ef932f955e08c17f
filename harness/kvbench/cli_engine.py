"""`kvbench engine`: the fake engine by hand, and the list of faults that it can show."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvbench.engine.fake.faults import registered
from kvbench.engine.fake.settings import FakeSettings, FaultSetting
from kvbench.engine.fake_command import FAKE_MODULE, fake_settings
from kvbench.errors import UsageError
from kvbench.scenario.engines import FAKE_WORDS, FakeEngine
from kvbench.scenario.load import load_scenario
from kvbench.scenario.resolve import arms_of, engine_of

app = typer.Typer(help="The fake engine, to try things by hand.", no_args_is_help=True)


@app.command()
def fake(
    scenario: Annotated[
        Path | None, typer.Option("--scenario", help="take geometry, pools and connector from it")
    ] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", help="of which arm; default: the last")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="port on 127.0.0.1")] = 8000,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="KIND", help="a fault that is on from the start"),
    ] = None,
) -> None:
    """Serve on 127.0.0.1 until Ctrl-C: completions, metrics and resets of a simulated vLLM.

    Everything it says is simulated and proves nothing about vLLM.
    """
    settings = FakeSettings() if scenario is None else _settings_of(scenario, arm)
    faults = tuple(_fault(kind) for kind in fault or ())
    settings = msgspec.structs.replace(
        settings, host="127.0.0.1", port=port, faults=(*settings.faults, *faults)
    )
    Console(stderr=True, highlight=False).print(
        f"[bold yellow]{FAKE_WORDS}[/bold yellow]\nhttp://127.0.0.1:{port}  (Ctrl-C ends it)"
    )
    argv = [sys.executable, "-m", FAKE_MODULE, "--settings", msgspec.json.encode(settings).decode()]
    os.execv(sys.executable, argv)  # noqa: S606 - our own interpreter and module, no shell


@app.command()
def faults() -> None:
    """List the faults that a scenario can switch on in the fake engine (`engine.faults`)."""
    table = Table("kind", "what goes wrong", "options", box=None, pad_edge=False)
    for kind, found in registered().items():
        options = ", ".join(
            f"{each.encode_name}={each.default!r}" for each in msgspec.structs.fields(found.Options)
        )
        table.add_row(kind, inspect.cleandoc(found.__doc__ or ""), options or "-")
    Console(highlight=False).print(table)


def _fault(kind: str) -> FaultSetting:
    if kind not in registered():
        raise UsageError(f"--fault {kind}: unknown; `kvbench engine faults` lists the kinds")
    return FaultSetting(kind=kind)


def _settings_of(scenario: Path, arm: str | None) -> FakeSettings:
    loaded = load_scenario(scenario, sets=["engine.kind=fake"]).scenario
    stage = next(iter(loaded.stages))
    known = arms_of(loaded, stage)
    chosen = known[-1] if arm is None else arm
    if chosen not in known:
        raise UsageError(f"--arm {chosen}: not in {scenario}; known: {', '.join(known)}")
    engine = engine_of(loaded, stage, chosen)
    assert isinstance(engine, FakeEngine)
    return fake_settings(engine, loaded.arms[chosen].connector, loaded.model)

"""`kvbench schema`: what a scenario file may say, for editors and for people."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from kvbench.scenario.reference import reference
from kvbench.scenario.schema import schema as scenario_schema


class Form(StrEnum):
    """How the schema is printed."""

    JSON = "json"
    MARKDOWN = "markdown"


def schema(
    form: Annotated[
        Form, typer.Option("--format", help="json: for editors; markdown: every field, to read")
    ] = Form.JSON,
) -> None:
    """Print what scenario files may say: their JSON schema, or the reference page."""
    if form is Form.MARKDOWN:
        typer.echo(reference(), nl=False)
    else:
        typer.echo(json.dumps(scenario_schema(), indent=2))

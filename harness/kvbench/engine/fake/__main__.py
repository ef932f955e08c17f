"""`python -m kvbench.engine.fake`: one fake server, as a process of its own."""

from __future__ import annotations

import argparse
import sys

import msgspec

from kvbench.engine.fake.process import run
from kvbench.engine.fake.settings import FakeSettings


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM; a mistake in the arguments ends it at once, with status 2."""
    parser = argparse.ArgumentParser(prog="python -m kvbench.engine.fake", description=__doc__)
    parser.add_argument("--settings", default="{}", help="FakeSettings as JSON; default: {}")
    parser.add_argument("--host", help="replaces the host of the settings")
    parser.add_argument("--port", type=int, help="replaces the port of the settings")
    parser.add_argument("--served-model-name", help="replaces the model id of the settings")
    words = parser.parse_args(argv)
    try:
        settings = msgspec.json.decode(words.settings, type=FakeSettings)
    except msgspec.DecodeError as error:
        parser.error(f"--settings: {error}")
    given = {"host": words.host, "port": words.port, "model_id": words.served_model_name}
    found = {name: value for name, value in given.items() if value is not None}
    return run(msgspec.structs.replace(settings, **found))


if __name__ == "__main__":
    sys.exit(main())

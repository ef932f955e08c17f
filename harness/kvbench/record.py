"""A run on disk: an append-only journal, artifacts beside it, and a seal over all of it.

Layout of `results/<scenario>/<UTC>-<id>/`:

    scenario.json   resolved scenario         plan.json   the plan, with every prompt's token ids
    journal.jsonl   one event a line          artifacts/  server logs, /metrics pages
    seal.json       sha256 of every file above; written after the last journal line

Each journal line is flushed and synced before the next thing happens, so a run killed at any moment
leaves a readable record. A record without its end line was interrupted; one whose files differ from
its seal was edited. `python -m kvbench.record seal DIR` seals anew (a deliberate act, for tests).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvbench import clock, masking
from kvbench.errors import PrerequisiteError, RecordError
from kvbench.events import SCHEMA_VERSION, AnyEvent, Event, RunEnded, RunStarted
from kvbench.plan_types import Plan

JOURNAL = "journal.jsonl"
SEAL = "seal.json"
PLAN = "plan.json"
SCENARIO = "scenario.json"
ARTIFACTS = "artifacts"
DERIVED = frozenset({SEAL, "verdict.json", "report.md", "report.txt", "report.html", "junit.xml"})


class Record:
    """A record being written by one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / ARTIFACTS).mkdir(parents=True, exist_ok=False)
        self._file = (directory / JOURNAL).open("ab")
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def create(cls, results: Path, scenario_name: str) -> Record:
        """Start a record in a folder of its own under `results`.

        Raises PrerequisiteError when nothing can be written there.
        """
        run_id = f"{clock.stamp()}-{uuid.uuid4().hex[:6]}"
        try:
            return cls(results / scenario_name / run_id)
        except OSError as error:
            raise PrerequisiteError(
                f"no record can be written to {results}: {error}; name another with --results"
            ) from error

    @property
    def run_id(self) -> str:
        """Name of the folder."""
        return self.directory.name

    def write(self, event: Event) -> None:
        """Append one event and make sure that it is on disk."""
        line = self._encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def artifact(self, name: str) -> Path:
        """Path for a file that belongs to the record; `name` may have folders."""
        path = self.directory / ARTIFACTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def relative(self, path: Path) -> str:
        """How the journal names a file of the record."""
        return path.relative_to(self.directory).as_posix()

    def write_plan(self, plan: Plan) -> None:
        """Write the resolved scenario and the plan, secrets masked, before anything is started."""
        tree = msgspec.to_builtins(plan)
        prompts = tree.pop("prompts")  # token ids, and by far the largest part
        masked = masking.mask_tree(tree, masking.secrets_in(tree))
        scenario = json.dumps(masked["scenario"], indent=2, sort_keys=True) + "\n"
        (self.directory / SCENARIO).write_text(scenario)
        (self.directory / PLAN).write_bytes(
            msgspec.json.encode({**masked, "prompts": prompts}) + b"\n"
        )

    def close(self, ended: RunEnded) -> None:
        """Write the end line, then the seal."""
        self.write(ended)
        self._file.close()
        seal(self.directory)


def _digests(directory: Path) -> dict[str, str]:
    files = (p for p in sorted(directory.rglob("*")) if p.is_file())
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.relative_to(directory).as_posix() not in DERIVED
    }


def seal(directory: Path) -> None:
    """Write `seal.json`: the sha256 of every measured file of the record."""
    text = json.dumps({"schema": SCHEMA_VERSION, "sha256": _digests(directory)}, indent=1)
    (directory / SEAL).write_text(text + "\n")


def broken_seal(directory: Path) -> list[str]:
    """Names of files that differ from the seal, are missing, or were added; empty when whole.

    Raises RecordError when there is no seal at all.
    """
    path = directory / SEAL
    if not path.is_file():
        raise RecordError(f"{directory} has no {SEAL}: the run was interrupted")
    sealed: dict[str, str] = json.loads(path.read_text())["sha256"]
    found = _digests(directory)
    return sorted(
        name for name in sealed.keys() | found.keys() if sealed.get(name) != found.get(name)
    )


class StoredRecord:
    """A record that is read; never changes anything on disk."""

    def __init__(self, directory: Path) -> None:
        if not (directory / JOURNAL).is_file():
            raise RecordError(
                f"{directory} is not a record: it has no {JOURNAL} (`kvbench run` makes records)"
            )
        self.directory = directory
        self._decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

    def events(self) -> Iterator[tuple[int, AnyEvent]]:
        """Line number (from 1) and event; a torn last line of a killed run is left out."""
        lines = (self.directory / JOURNAL).read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                yield number, self._decoder.decode(line)
            except msgspec.DecodeError as error:
                if number == len(lines):  # no newline after it: the write was cut off
                    return
                raise RecordError(f"{self.directory / JOURNAL}:{number}: {error}") from error

    def plan(self) -> Plan:
        """The plan of the run."""
        path = self.directory / PLAN
        if not path.is_file():
            raise RecordError(f"{self.directory} has no {PLAN}: the run ended before it had a plan")
        return msgspec.json.decode(path.read_bytes(), type=Plan)

    def scenario(self) -> dict[str, Any]:
        """The resolved scenario."""
        data: dict[str, Any] = json.loads((self.directory / SCENARIO).read_text())
        return data

    def started(self) -> RunStarted:
        """The first line; RecordError when it is not there or of another schema."""
        first = next((event for _, event in self.events()), None)
        if not isinstance(first, RunStarted):
            raise RecordError(f"{self.directory / JOURNAL} does not begin with run_started")
        if first.schema != SCHEMA_VERSION:
            raise RecordError(
                f"{self.directory} has schema {first.schema}; this kvbench reads {SCHEMA_VERSION}"
            )
        return first


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "seal":
        sys.exit("usage: python -m kvbench.record seal DIR")
    seal(Path(sys.argv[2]))

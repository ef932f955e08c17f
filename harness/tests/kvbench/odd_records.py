"""Records of every kind that a report must show: good, bad, cut off, changed, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import records
import tool_records

from kvbench.events import Event, LifeEnded, LifeFailed, Note, RunEnded, Skipped
from kvbench.judge import judge_ledger
from kvbench.ledger import load
from kvbench.record import StoredRecord, seal
from kvbench.report import github

EVIL = (
    "a | b <b>x</b> @octocat #12 GH-3 `co|de` ![x](http://x.example/p.png) www.x.example $x$ "
    ":100: </details> <!-- \n# head\n- x\n```\n*b* __u__ \x1b[31mred \u202e org/repo#7 \\| &lt;"
)
"""Everything that could notify somebody, load something or break a table."""


def block(directory: Path) -> str:
    """The block for a pull request of a record."""
    ledger = load(directory)
    return github.render(ledger, judge_ledger(ledger))


def damaged(sent: records.Sent) -> None:
    """One wrong load, with the answer that comes of it."""
    if (sent.arm, sent.phase, sent.name) == ("simple", "reload-1", "p2"):
        sent.tokens = records.flip(sent.tokens, 3)


def blind(sent: records.Sent) -> None:
    """Dummy weights: every prompt gets the same answer."""
    sent.tokens = list(records.answer("same", sent.new_tokens))


def evil_failure(sent: records.Sent) -> None:
    """One request fails with words that could do harm."""
    if (sent.arm, sent.phase, sent.name) == ("simple", "replay-1", "p2"):
        sent.error, sent.error_kind, sent.http_status = EVIL, "http", 500


def changing(kind: type[Event], **changes: object) -> Callable[[Event], Event]:
    """An `on_event` that gives all events of a kind other values."""

    def on_event(event: Event) -> Event:
        return records.replace(event, **changes) if isinstance(event, kind) else event

    return on_event


def died(directory: Path, *, message: str = "the engine died", tail: str = "last line") -> Path:
    """A run whose second engine dies in the middle of its fresh phase."""
    records.write(directory, seal=False)
    journal = directory / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    place = next(
        number
        for number, line in enumerate(lines)
        if b'"request_done"' in line and b'"life-2"' in line and b'"scored"' in line
    )
    events: list[Event] = [
        LifeFailed(
            time_s=1.0,
            life="life-2",
            kind="assertion",
            message=message,
            log_tail=tail,
            exit_status=None,
            phase="fresh-1",
        ),
        *(
            Skipped(time_s=1.0, stage=p.stage, arm=p.arm, phase=p.name, reason="life-2 failed")
            for p in StoredRecord(directory).plan().lives[1].phases[1:]
        ),
        Note(time_s=1.0, life=None, text="1. a note of @somebody about #7"),
        LifeEnded(
            time_s=1.0, life="life-2", orderly=False, exit_status=None, stop_s=1.0, survivors=()
        ),
        RunEnded(time_s=1.0, outcome="error", reason="engine error in life-2"),
    ]
    added = [msgspec.json.encode(event) + b"\n" for event in events]
    journal.write_bytes(b"".join([*lines[: place + 1], *added]))
    seal(directory)
    return directory


def interrupted(directory: Path, share: float = 0.5) -> Path:
    """A run that was killed when this share of its journal was written."""
    records.write(directory, seal=False)
    journal = directory / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data[: max(data.index(b"\n") + 1, int(len(data) * share))])
    return directory


def edited(directory: Path) -> Path:
    """A record that was changed after it was sealed."""
    records.write(directory)
    with (directory / "journal.jsonl").open("ab") as journal:
        journal.write(b"\n")
    return directory


def evaluated(directory: Path) -> Path:
    """Two rounds per arm; the connector's second one lost an answer."""
    first, second = tool_records.samples((3, 5)), tool_records.samples((3, 7), number=2)
    lost = tool_records.change(second, 9, answer=None, error="connection closed | @peer")
    return tool_records.write(
        directory,
        {
            "control": [tool_records.evaluated(first), tool_records.evaluated(second, number=2)],
            "simple": [tool_records.evaluated(first), tool_records.evaluated(lost, number=2)],
        },
    )


def loaded(directory: Path) -> Path:
    """AIPerf in both arms, of which the second run under the connector was cancelled."""
    whole = tool_records.agent_run(tool_records.GOLDEN / "agentx", finished=46)
    cut = tool_records.agent_run(tool_records.GOLDEN / "cancelled", finished=32)
    return tool_records.write(
        directory, {"control": [whole], "simple": [whole, cut]}, claim="performance"
    )


RECORDS: dict[str, Callable[[Path], Path]] = {
    "pass": records.write,
    "fail": lambda where: records.write(where, on_request=damaged),
    "inconclusive": lambda where: records.write(where, on_request=blind),
    "evil": lambda where: records.write(where, on_request=evil_failure),
    "two_engines": lambda where: records.write(where, engines=2),
    "died": died,
    "interrupted": interrupted,
    "edited": edited,
    "evaluation": evaluated,
    "aiperf": loaded,
}

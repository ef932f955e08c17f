from __future__ import annotations

from pathlib import Path

import event_lines
import pytest
import records
from event_lines import Line, with_events
from records import Sent

from kvbench.checks.coverage import HitEnd, hole_border
from kvbench.checks.finding import Outcome
from kvbench.verdict import Verdict

ONLY_SIMPLE = ("simple",)
BORDER = 128


@pytest.mark.parametrize(
    ("ends", "border"),
    [
        ([(256, 128), (384, 128)], 128),
        ([(256, 128), (384, 128), (128, 128)], 128),
        ([(256, 256), (384, 384)], None),
        ([(384, 128), (256, 256)], None),
        ([(384, 128), (512, 256)], None),
        ([(384, 128)], None),
        ([(256, 0), (384, 0)], None),
        ([], None),
    ],
    ids=[
        "all end there",
        "a shorter prompt is whole",
        "all are whole",
        "a longer prompt is whole",
        "they end at different tokens",
        "one alone is no pattern",
        "nothing served is no hole",
        "no prompt",
    ],
)
def test_hole_border_needs_all_hits_to_end_at_one_token(
    ends: list[tuple[int, int]], border: int | None
) -> None:
    assert hole_border([HitEnd(*each) for each in ends]) == border


def ends_at_border(sent: Sent) -> None:
    if sent.kind in ("replay", "reload") and sent.role == "scored":
        sent.external = min(sent.external, BORDER)


def half(lines: list[Line]) -> list[Line]:
    """Of each prompt only every other block is stored."""
    last: dict[str, int] = {"place": 0}

    def keep(event: Line) -> list[Line]:
        if event.get("medium") != "CPU" or event["type"] != "BlockStored":
            return [event]
        last["place"] = 0 if event["parent_block_hash"] is None else last["place"] + 1
        return [] if last["place"] % 2 else [event]

    return with_events(lines, keep)


def failed(verdict: Verdict) -> dict[str, str]:
    """Reasons by phase."""
    found = [f for f in verdict.findings if f.check == "stores_cover"]
    assert {f.outcome for f in found} == {Outcome.FAIL}
    return {f.phase: f.reason for f in found}


@pytest.mark.usefixtures("quick_disk")
class TestStoresCover:
    def test_whole_prompts_pass(self, run: Path) -> None:
        verdict = event_lines.judged(run, arm=ONLY_SIMPLE)
        finding = records.only(verdict, "stores_cover", Outcome.PASS)
        assert finding.reason.startswith("42 of 42 blocks")
        assert finding.notes == ()

    def test_half_of_the_blocks_fails_and_names_the_holes(self, run: Path) -> None:
        verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=half, on_request=ends_at_border)
        reasons = failed(verdict)
        assert set(reasons) == {"replay-1", "replay-2", "reload-1"}
        assert (
            "hits end at token 128 for all prompts: hole at a chunk border" in reasons["reload-1"]
        )
        assert "blocks in the tier, hole at block 1" in reasons["replay-1"]

    def test_hole_shows_in_the_hits_alone(self, run: Path) -> None:
        verdict = records.judged(run, arm=ONLY_SIMPLE, on_request=ends_at_border)
        assert all("hole at a chunk border" in reason for reason in failed(verdict).values())

    def test_one_short_prompt_is_no_hole(self, run: Path) -> None:
        def one(sent: Sent) -> None:
            if sent.phase == "replay-1" and sent.name == "p2":
                sent.external = 128

        verdict = records.judged(run, arm=ONLY_SIMPLE, on_request=one)
        assert records.outcomes(verdict, "hits_match_oracle") == {"fail"}
        assert records.outcomes(verdict, "stores_cover") == set()

    def test_pool_smaller_than_the_working_set_is_silent(self, run: Path) -> None:
        """The oracle expects the evictions, so nobody misses the blocks."""
        sets = (*event_lines.WITH_EVENTS, "arms.simple.connector.host_pool_bytes_total=4MiB")
        verdict = event_lines.judged(run, arm=ONLY_SIMPLE, sets=sets, host_blocks=15)
        assert Outcome.FAIL not in {
            f.outcome for f in verdict.findings if f.check == "stores_cover"
        }

    def test_hits_that_events_do_not_explain_are_a_note(self, run: Path) -> None:
        verdict = event_lines.judged(run, arm=ONLY_SIMPLE, change=half)
        finding = records.only(verdict, "stores_cover", Outcome.PASS)
        assert "hit although no event says that it was stored" in finding.notes[0]

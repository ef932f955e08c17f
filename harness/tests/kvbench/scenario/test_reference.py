from __future__ import annotations

import re
from pathlib import Path

from kvbench.scenario.models import Scenario
from kvbench.scenario.reference import reference

STORED = Path(__file__).parents[4] / "docs" / "reference.md"


def test_stored_page_is_the_current_one() -> None:
    assert STORED.read_text(encoding="utf-8") == reference(), (
        "stale; run: .venv/bin/kvbench schema --format markdown > docs/reference.md"
    )


def test_every_field_of_every_mapping_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE))
    made = Scenario.model_json_schema()
    fields = {key for node in (made, *made["$defs"].values()) for key in node.get("properties", {})}
    assert fields == rows


def test_every_row_says_what_it_takes_and_means() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows]
    assert {len(each) for each in cells} == {4}
    assert [each[0] for each in cells if not all(cell.strip() for cell in each)] == []
    assert "None" not in {each[1] for each in cells}


def test_every_link_to_a_section_has_one() -> None:
    page = reference()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors
    assert len(anchors) == len(headings)


def test_fake_engine_lists_only_what_vllm_does_not_have() -> None:
    section = reference().partition("## engine, kind fake\n")[2].partition("\n## ")[0]
    assert "`generation`" in section
    assert "`gpu_blocks`" not in section

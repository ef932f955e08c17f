from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.report.fitting import Part, cut_words, document, fitted, size_bytes

ROWS = tuple(f"row {number:02d}" for number in range(20))
TABLE = Part(("head",), ROWS, ("",), what="rows", rank=2)
HEADS = st.lists(st.text("ab", max_size=9), max_size=2).map(tuple)
LINES = st.lists(st.text("abΔ", max_size=30), max_size=12).map(tuple)
PARTS = st.lists(
    st.builds(
        Part,
        head=HEADS,
        rows=LINES,
        what=st.just("rows"),
        rank=st.integers(0, 4),
        fold=st.sampled_from(["", "one", "two"]),
        keeps_end=st.booleans(),
    ),
    max_size=6,
)


def test_parts_that_fit_are_left_alone() -> None:
    assert fitted([TABLE], limit_bytes=10_000) == [TABLE]
    assert cut_words([TABLE]) == []


def test_rows_go_from_the_end_and_are_counted() -> None:
    (part,) = fitted([TABLE], limit_bytes=120)
    kept = len(part.rows)
    assert 0 < kept < len(ROWS)
    assert part.rows == ROWS[:kept]
    assert f"Left out of rows: the last {20 - kept} of 20." in "\n".join(part.lines)
    assert cut_words([part]) == [f"rows ({20 - kept} of 20)"]


def test_last_lines_of_a_log_are_kept() -> None:
    (part,) = fitted([replace(TABLE, keeps_end=True)], limit_bytes=120)
    assert part.rows == ROWS[-len(part.rows) :]
    assert "the first" in "\n".join(part.lines)


def test_no_more_rows_go_than_must() -> None:
    (part,) = fitted([TABLE], limit_bytes=150)
    assert size_bytes(part.lines) <= 150
    one_more = replace(part, rows=ROWS[: len(part.rows) + 1], left_out=part.left_out - 1)
    assert size_bytes(one_more.lines) > 150


def test_least_important_part_goes_first_and_whole_before_the_next_is_touched() -> None:
    detail = replace(TABLE, rank=5, what="details")
    vital = replace(TABLE, rank=1, what="claims")
    first = fitted([vital, detail, TABLE], limit_bytes=400)
    assert [len(part.rows) == 20 for part in first] == [True, False, True]
    second = fitted([vital, detail, TABLE], limit_bytes=250)
    assert [part.left_out for part in second][:2] == [0, 20]
    assert 0 < second[2].left_out < 20


def test_part_without_a_row_left_is_not_printed_at_all() -> None:
    (part,) = fitted([TABLE], limit_bytes=10)
    assert part.lines == []
    assert cut_words([part]) == ["rows (20 of 20)"]


def test_neighbours_share_a_fold_and_an_empty_one_is_not_opened() -> None:
    inside = replace(TABLE, fold="more")
    gone = replace(inside, rows=(), left_out=20)
    lines = document([TABLE, inside, inside, gone])
    assert lines.count("<details>") == lines.count("</details>") == 1
    assert "<details>" not in document([TABLE, gone])


@given(PARTS, st.integers(0, 600))
def test_document_fits_unless_what_must_stay_is_longer(parts: list[Part], limit: int) -> None:
    kept = fitted(parts, limit_bytes=limit)
    must_stay = [replace(p, rows=(), left_out=len(p.rows)) if p.rank else p for p in parts]
    floor = size_bytes(document([p for p in must_stay if p.lines]))
    assert size_bytes(document(kept)) <= max(limit, floor)
    for before, after in zip(parts, kept, strict=True):
        assert len(before.rows) == len(after.rows) + after.left_out


@pytest.mark.parametrize("count", [12, 13])
def test_list_of_what_was_cut_stays_short(count: int) -> None:
    gone = [replace(TABLE, rows=(), left_out=20)] * count
    words = cut_words(gone)
    assert len(words) == count
    assert words[-1] == ("rows (20 of 20)" if count == 12 else "and 20 rows of other tables")

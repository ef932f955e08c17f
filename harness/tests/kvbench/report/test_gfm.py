from __future__ import annotations

import pytest
import rendered
from hypothesis import given
from hypothesis import strategies as st

from kvbench.report import gfm

PIECES = (
    *(
        "@octocat",
        "#12",
        "GH-3",
        "org/repo#7",
        "me@x.example",
        "www.x.example",
        "https://x.example",
    ),
    *("|", "`", "``` ", "*b*", "**", "__u__", "_", "~~s~~", "$x$", ":100:", ":smile:", "\\", "\\|"),
    *("<b>", "</details>", "<!--", "&lt;", "[l](x)", "![i](x)", "[^1]", "# ", "1. ", "- ", "> "),
    *("\n", "\t", "\x1b[31m", "\x00", "\u202e", "\u200b", "word", " ", "Δ", "0.5", "-->"),
)
AWKWARD = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join)


@given(AWKWARD)
def test_any_text_is_shown_as_it_is_and_does_nothing(words: str) -> None:
    source = f"a {gfm.text(words)} z"
    rendered.assert_is_sound(source)
    assert rendered.visible(source).split() == f"a {gfm.one_line(words)} z".split()


@given(AWKWARD)
def test_any_text_stays_inside_its_cell(words: str) -> None:
    head = gfm.table_head([gfm.Column("one"), gfm.Column("two")])
    source = "\n".join([*head, gfm.table_row([gfm.text(words), gfm.code(words)])])
    (table,) = rendered.tables(source)
    assert [len(row) for row in table] == [2, 2]
    rendered.assert_is_sound(source)


@given(AWKWARD)
def test_any_text_is_one_plain_item_of_a_list(words: str) -> None:
    kinds = [each.type for each in rendered.tokens(f"- {gfm.item(words)}x")]
    assert kinds.count("list_item_open") == 1
    assert "heading_open" not in kinds
    assert "ordered_list_open" not in kinds


@given(st.lists(AWKWARD, max_size=5))
def test_any_lines_stay_inside_their_fence(lines: list[str]) -> None:
    shown = [line.replace("\n", " ").replace("\x00", "") for line in lines]
    source = "\n".join([*gfm.fence(shown, "text"), "", "after"])
    kinds = [each.type for each in rendered.tokens(source)]
    assert kinds == ["fence", "paragraph_open", "inline", "text", "paragraph_close"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("hits_match_oracle", "hits_match_oracle"),
        ("a | b", "a &#124; b"),
        ("12 tokens, 0.5 nats (cold)", "12 tokens, 0.5 nats (cold)"),
        ("ask @bob", "ask @&#8203;bob"),
        ("see #12", "see #&#8203;12"),
        ("price $5", "price <span>$</span>5"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("two\nlines", "two lines"),
    ],
)
def test_plain_words_stay_readable_in_the_source(words: str, shown: str) -> None:
    assert gfm.text(words) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert gfm.text("x" * 500, most=10) == f"{'x' * 10}… (cut)"

"""What a Markdown renderer makes of a text: tests of reports look at that, not at the source."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ZERO_WIDTH_SPACE: Final = "\u200b"
HARMLESS_HTML: Final = frozenset({"b", "br", "code", "details", "span", "sub", "summary"})
"""Tags that the block for a pull request writes itself; GitHub lets all of them through."""
ACTING: Final = re.compile(
    r"@[A-Za-z0-9]|#[0-9]|(?i:\bgh-[0-9])|://|\bwww\.|:[a-z0-9_+-]+:|\$.|.\$|\bhttps?:/"
)
"""What GitHub looks for in rendered text outside of code: mentions, issues, addresses, emoji."""
_TAG = re.compile(r"</?([a-zA-Z]+)[^<>]*>|<!--")
_PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def tokens(source: str) -> list[Token]:
    """Blocks and, after each of them, what is inside of it."""
    return [each for block in _PARSER.parse(source) for each in (block, *(block.children or ()))]


def _tags(source: str) -> set[str]:
    return {found[1] or "comment" for found in _TAG.finditer(source)}


def html_tags(source: str) -> set[str]:
    """Names of all HTML tags that would reach the page as tags."""
    found = [each.content for each in tokens(source) if each.type in ("html_inline", "html_block")]
    return {tag for part in found for tag in _tags(part)}


def visible(source: str) -> str:
    """The text of a page, as read by a person: without tags and invisible spaces."""
    words = [each.content for each in tokens(source) if each.type in ("text", "code_inline")]
    return "".join(words).replace(ZERO_WIDTH_SPACE, "")


def texts(source: str) -> Iterator[str]:
    """Runs of text between tags, as GitHub's filters see them after rendering."""
    for block in _PARSER.parse(source):
        run = ""
        for each in block.children or ():
            if each.type == "text":
                run += each.content
            else:
                yield run
                run = ""
        yield run


def tables(source: str) -> list[list[list[str]]]:
    """Cells of all tables, row by row, as source."""
    found: list[list[list[str]]] = []
    inside = False
    for block in _PARSER.parse(source):
        if block.type == "table_open":
            found.append([])
        elif block.type == "tr_open":
            found[-1].append([])
        elif block.type in ("th_open", "td_open"):
            inside = True
        elif block.type == "inline" and inside:
            found[-1][-1].append(block.content)
            inside = False
    return found


def _lines_of(source: str, kind: str) -> list[int]:
    maps = [block.map for block in _PARSER.parse(source) if block.type == kind]
    return [line for place in maps if place for line in range(*place)]


def row_widths(source: str) -> list[set[int]]:
    """The numbers of cells in the rows of each table, from the source: a renderer fills short rows
    up and cuts long ones."""
    lines = source.splitlines()
    maps = [block.map for block in _PARSER.parse(source) if block.type == "table_open"]
    return [{len(lines[n].split("|")) - 2 for n in range(*place)} for place in maps if place]


def stray_rows(source: str) -> list[str]:
    """Rows that belong to no table: what is left of one that a text has torn apart."""
    known = {*_lines_of(source, "table_open"), *_lines_of(source, "fence")}
    lines = source.splitlines()
    return [line for n, line in enumerate(lines) if line.startswith("|") and n not in known]


def _folds(source: str) -> list[str]:
    return [each.content for each in _PARSER.parse(source) if each.type == "html_block"]


def assert_is_sound(source: str) -> None:
    """Nothing in it acts, every table holds together, every fold is closed."""
    assert html_tags(source) <= HARMLESS_HTML, html_tags(source)
    kinds = {each.type for each in tokens(source)}
    assert not kinds & {"link_open", "image", "em_open", "s_open", "strong_open"}, kinds
    summaries = [html.unescape(_TAG.sub("\n", block)) for block in _folds(source)]
    for run in (*texts(source), *summaries):
        assert not ACTING.search(run), run
    widths = row_widths(source)
    assert all(len(each) == 1 for each in widths), widths
    assert not stray_rows(source)
    folds = "".join(_folds(source))
    assert folds.count("<details>") == folds.count("</details>")

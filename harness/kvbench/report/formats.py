"""The forms in which a record is printed, by the names that the command line uses."""

from __future__ import annotations

from enum import StrEnum

from kvbench.ledger import Ledger
from kvbench.report import github, json_report, markdown
from kvbench.verdict import Verdict


class Format(StrEnum):
    """What `kvbench report` can print."""

    MARKDOWN = "markdown"
    GITHUB = "github"
    JSON = "json"


def render(form: Format, ledger: Ledger, verdict: Verdict) -> str:
    """The report of a record: all tables, the block for a pull request, or verdict.json."""
    renderers = {
        Format.MARKDOWN: markdown.render,
        Format.GITHUB: github.render,
        Format.JSON: json_report.render,
    }
    return renderers[form](ledger, verdict)

"""The tables of a comparison as text cells: one source for the terminal and for Markdown.

Rows without a difference are left out and counted, unless all are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from kvbench.compare import deltas
from kvbench.compare.comparison import Against, Comparison, RunFacts
from kvbench.compare.findings import MARKS, Change, FindingRow
from kvbench.compare.settings import Difference
from kvbench.errors import ExitCode
from kvbench.report.tables import BandRow
from kvbench.report.text import MISSING, milliseconds, nats, rate, share, whole
from kvbench.scenario.engines import FAKE_WORDS

Row = TypeVar("Row")
MAX_PROMPTS = 4
MAX_REASONS = 12
MAX_VALUE_CHARACTERS = 100
"""A longer value is cut where it is printed; it is whole in the JSON output."""


class Grid(NamedTuple):
    """One table: cells, and what stands under it."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    under: list[str]
    """sentences: how many rows are hidden, and why"""


def _shown(
    rows: Sequence[Row], differs: Callable[[Row], bool], *, every: bool
) -> tuple[list[Row], int]:
    chosen = [row for row in rows if every or differs(row)]
    return chosen, len(rows) - len(chosen)


def _hidden(count: int, words: str) -> list[str]:
    return [f"{count} {words} (hidden; --all shows them)"] if count else []


def _worse_words(comparison: Comparison) -> str:
    pairs = comparison.against
    counts = {
        "newly failing": sum(r.change is Change.NEWLY_FAILING for a in pairs for r in a.findings),
        "rates with fewer hits": sum(r.verdict == deltas.FEWER for a in pairs for r in a.rates),
        "times slower": sum(r.verdict == deltas.SLOWER for a in pairs for r in a.times),
    }
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


def headline(comparison: Comparison) -> str:
    """The answer in one line."""
    if comparison.exit_code == ExitCode.FAIL:
        return f"WORSE: {_worse_words(comparison)}"
    if comparison.exit_code == ExitCode.PASS:
        return "NOTHING SIGNIFICANT GOT WORSE"
    if all(each.numbers_refused for each in comparison.against):
        return "NOTHING COMPARABLE"
    return "LESS IS PROVED: nothing newly fails, but something cannot be compared or is unproved"


def run_lines(facts: RunFacts) -> list[str]:
    """What the head says of one run: its name first."""
    reason = f": {facts.reason}" if facts.reason else ""
    lines = [
        f"{facts.letter}: {facts.scenario} {facts.run_id}",
        f"verdict {facts.verdict}{reason}",
        f"vLLM {facts.vllm} ({facts.python}); kvbench {facts.kvbench}",
        f"machine: {facts.machine}",
    ]
    if facts.unusable:
        lines.append(f"its numbers are refused: {facts.unusable}")
    if facts.is_fake:
        lines.append(FAKE_WORDS)
    return lines


def _cut(value: str) -> str:
    longest = MAX_VALUE_CHARACTERS
    return value if len(value) <= longest else f"{value[:longest]}... (cut)"


def _key_line(each: Difference, words: str) -> str:
    return f"{words}: {each.key}: {_cut(each.base)} / {_cut(each.other)}"


def setting_lines(against: Against) -> list[str]:
    """What differs between two runs: declared, named, or without weight."""
    lines = [
        _key_line(each, f"declared as what is compared (--allow '{each.allowed_by}')")
        for each in against.differences
        if each.allowed_by is not None
    ]
    words = {"build": "differs", "machine": "machine differs", "note": "decides no number"}
    lines += [
        _key_line(each, words[each.kind])
        for each in against.differences
        if each.allowed_by is None and each.kind in words
    ]
    if against.is_repeat:
        lines.append(
            "as far as the records tell, settings, versions and machine are those of the base: "
            "what differs is noise"
        )
    for name, places in (("the base", against.only_base), (against.other, against.only_other)):
        if places:
            lines.append(f"measured in {name} only, not compared: {', '.join(places)}")
    if against.numbers_refused:
        lines.append(f"numbers refused: {against.numbers_refused}")
    return lines or ["nothing differs"]


def _place_words(row: FindingRow) -> str:
    return " / ".join(word for word in (row.stage, row.arm, row.phase) if word != "-") or "run"


def _finding_reason(row: FindingRow) -> str:
    reason = row.other_reason or row.base_reason
    return f"{row.change.value} {row.check} ({_place_words(row)}): {reason}"


LISTED = (Change.NEWLY_FAILING, Change.STILL_FAILING, Change.NEWLY_UNPROVED)
"""Changes whose reason is printed."""


def finding_grid(against: Against, *, every: bool) -> Grid:
    """Checks x stage x arm x phase, each with a mark of its own."""
    shown, hidden = _shown(against.findings, lambda row: row.change is not Change.SAME, every=every)
    counts = Counter(row.change for row in against.findings)
    said = [change for change in Change if counts[change] and (every or change is not Change.SAME)]
    under = [", ".join(f"{counts[change]} {change.value}" for change in said)] if said else []
    under += _hidden(hidden, "checks pass in both")
    if not against.findings:
        under.append("findings of an edited record are not compared")
    reasons = [_finding_reason(row) for row in shown if row.change in LISTED]
    under += reasons[:MAX_REASONS]
    if len(reasons) > MAX_REASONS:
        under.append(f"and {len(reasons) - MAX_REASONS} more reasons (--format json has them)")
    return Grid(
        "Findings",
        ("", "change", "check", "stage", "arm", "phase", "A", against.other, "prompts"),
        [
            (
                MARKS[row.change],
                row.change.value,
                row.check,
                row.stage,
                row.arm,
                row.phase,
                row.base or MISSING,
                row.other or MISSING,
                _prompts(row.prompts),
            )
            for row in shown
        ],
        under,
    )


def _prompts(names: Sequence[str]) -> str:
    short = [name.rpartition("/")[2] for name in names]
    rest = len(short) - MAX_PROMPTS
    return ", ".join(short[:MAX_PROMPTS]) + (f" and {rest} more" if rest > 0 else "")


def _difference(row: deltas.RateRow) -> str:
    if row.difference_tokens is None:
        return MISSING
    if not row.difference_tokens or not row.base.queries:
        return f"{row.difference_tokens:+d}" if row.difference_tokens else "0"
    points = 100 * row.difference_tokens / row.base.queries
    return f"{row.difference_tokens:+d} ({points:+.1f} points)"


def rate_grid(against: Against, *, every: bool) -> Grid:
    """Hits / queries of each tier; subtracted only where the queries are the same."""
    shown, hidden = _shown(against.rates, lambda row: row.verdict != deltas.EQUAL, every=every)
    other = against.other
    return Grid(
        "Hits (tokens, hits/queries)",
        ("stage", "arm", "phase", "tier", "A", other, f"{other} - A", ""),
        [
            (
                row.stage,
                row.arm,
                row.phase if row.engine is None else f"{row.phase}, engine {row.engine}",
                row.tier,
                rate(row.base),
                rate(row.other),
                _difference(row),
                row.verdict,
            )
            for row in shown
        ],
        _hidden(hidden, "rates are equal"),
    )


def _news(rows: Sequence[deltas.IdentityRow]) -> set[int]:
    """Indices of rows in which the runs differ in more than their arm's first phase shows.

    Two builds may answer differently from their first fresh run on: one row says that, not forty.
    """
    first: dict[tuple[str, str], tuple[int, int]] = {}
    found = set()
    for index, row in enumerate(rows):
        ours = (row.base_equal, row.base_answers, row.base_max_nats)
        theirs = (row.other_equal, row.other_answers, row.other_max_nats)
        between = (row.between_equal, row.between_answers)
        is_first = (row.stage, row.arm) not in first
        expected = first.setdefault((row.stage, row.arm), between)
        if is_first:
            expected = (row.between_answers, row.between_answers)
        if ours != theirs or between != expected:
            found.add(index)
    return found


def identity_grid(against: Against, *, every: bool) -> Grid:
    """Answers equal to their own run's first fresh ones, and to those of the other run."""
    news = _news(against.identity)
    shown = [row for index, row in enumerate(against.identity) if every or index in news]
    other = against.other
    return Grid(
        "Answers",
        (
            *("stage", "arm", "phase", "equal to fresh in A", f"in {other}"),
            *(f"A equals {other}", "max |Δ logprob| in A", f"in {other} (nats)"),
        ),
        [
            (
                row.stage,
                row.arm,
                row.phase,
                "-" if row.base_equal is None else share(row.base_equal, row.base_answers),
                "-" if row.other_equal is None else share(row.other_equal, row.other_answers),
                share(row.between_equal, row.between_answers),
                nats(row.base_max_nats),
                nats(row.other_max_nats),
            )
            for row in shown
        ],
        _hidden(len(against.identity) - len(shown), "phases show no other difference"),
    )


def _band_key(pair: deltas.BandPair) -> tuple[object, object]:
    def key(row: BandRow | None) -> object:
        return (row.max_nats, row.band_nats, row.inside) if row is not None else None

    return key(pair.base), key(pair.other)


def _band_cells(row: BandRow | None) -> tuple[str, str, str]:
    if row is None:
        return MISSING, MISSING, MISSING
    return nats(row.max_nats), nats(row.band_nats), row.inside


def band_grid(against: Against, *, every: bool) -> Grid:
    """Maxima beside the band that each run measured for itself."""
    shown, hidden = _shown(
        against.bands, lambda pair: _band_key(pair)[0] != _band_key(pair)[1], every=every
    )
    other = against.other
    return Grid(
        "Log-probabilities (max |Δ| in nats, each run against its own band)",
        (
            *("stage", "arm", "concurrency", "comparison", "A max", "A band", "A inside"),
            *(f"{other} max", f"{other} band", f"{other} inside"),
        ),
        [
            (
                pair.stage,
                pair.arm,
                whole(pair.concurrency),
                pair.comparison,
                *_band_cells(pair.base),
                *_band_cells(pair.other),
            )
            for pair in shown
        ],
        _hidden(hidden, "comparisons are equal"),
    )


SIGNIFICANT = frozenset({deltas.SLOWER, deltas.FASTER})


def _ratio(row: deltas.TimeRow, error_rate: float) -> str:
    if row.ratio is None or row.low is None or row.high is None or row.level is None:
        return MISSING
    words = f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"
    return words if row.level >= 1 - error_rate else f"{words} ({100 * row.level:.0f} %)"


def _p_words(row: deltas.TimeRow) -> str:
    return MISSING if row.p_adjusted is None else f"{row.p_adjusted:.2g}"


def _floor(row: deltas.TimeRow) -> str:
    return MISSING if row.floor_ratio is None else f"x{row.floor_ratio:.2f}"


def _times_under(against: Against, hidden: int) -> list[str]:
    rows = against.times
    if against.times_refused is not None:
        return [f"{len(rows)} times are printed with --all and not tested: {against.times_refused}"]
    moved = [row for row in rows if row.ratio is not None and row.ratio != 1]
    quiet = [row for row in moved if row.verdict not in SIGNIFICANT]
    return [
        f"{len(quiet)} of {len(moved)} differences inside the noise or undecided",
        *_hidden(hidden, "times without a significant difference"),
        *against.notes,
    ]


def time_grid(against: Against, comparison: Comparison, *, every: bool) -> Grid:
    """Times paired over prompts: absolute, and as a factor of the base."""
    shown, hidden = _shown(against.times, lambda row: row.verdict in SIGNIFICANT, every=every)
    other = against.other
    return Grid(
        "Times (paired over prompts; A is 1.00)",
        (
            *("stage", "arm", "phases", "time", "pairs", "A p50", f"{other} p50"),
            *(f"{other} / A [interval]", "p, corrected", "repeats differ by", ""),
        ),
        [
            (
                row.stage,
                row.arm,
                f"{row.phases} ({row.repeats}x)",
                row.metric,
                f"{row.pairs}" + (f", {row.unpaired} unpaired" if row.unpaired else ""),
                milliseconds(row.base_median_s),
                milliseconds(row.other_median_s),
                _ratio(row, comparison.error_rate),
                _p_words(row),
                _floor(row),
                row.verdict,
            )
            for row in shown
        ],
        _times_under(against, hidden),
    )


def grids(comparison: Comparison, against: Against, *, every: bool) -> list[Grid]:
    """All tables about one pair of runs; of refused numbers only the findings."""
    found = [finding_grid(against, every=every)]
    if against.numbers_refused is None:
        found += [
            rate_grid(against, every=every),
            identity_grid(against, every=every),
            band_grid(against, every=every),
            time_grid(against, comparison, every=every),
        ]
    return found


def closing_lines(comparison: Comparison) -> list[str]:
    """What a reader must know about the whole."""
    lines = [
        f"--allow '{pattern}' was declared, and nothing differs in it"
        for pattern in comparison.unused_allow
    ]
    if any(row.p_value is not None for each in comparison.against for row in each.times):
        lines.append(
            "one run a side: what the machine did differently on that day counts as a difference "
            "of times; more runs of one set-up measure that (kvbench compare A B A2)"
        )
    lines.append("scores of evaluations and figures of AIPerf are not compared here")
    return lines

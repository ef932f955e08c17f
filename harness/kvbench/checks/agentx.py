"""Is a result of AIPerf a result?

It exits with 0 after a cancel, after its own abort and with 91 % failed requests; it leaves out
what it did not measure, and requests that were still running when its window closed leave no trace
in its summary. So its files are judged field by field, its counts against its own log and against
the server's counters, and a number that is not there is n/a and never 0 (F34).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from kvbench.checks.common import What, about, listed
from kvbench.checks.finding import Finding, Outcome
from kvbench.ledger.aiperf import (
    CACHED,
    CACHED_TOTAL,
    LOG,
    PROMPT_TOTAL,
    RECORDS,
    SCHEMA,
    SUMMARY,
    AgentRun,
)
from kvbench.ledger.facts import JOURNAL, Ledger, Window
from kvbench.ledger.fields import Field

CLAIM = "performance"
RESULT = What("agent_result_valid", CLAIM, "files, counters")
CACHED_RATE = What("agent_cached_rate", CLAIM, "usage")

SMOKE: Final = "smoke"
SMOKE_REASONS: Final = ("unsafe_override",)
"""The only reason for which a declared smoke run may say that it is no submission."""

SMOKE_WORDS: Final = "smoke, not a submission"
NEEDS: Final = "a server tells cached tokens only with --enable-prompt-tokens-details"


# ---- what AIPerf says about itself -----------------------------------------------------------


def _submission(run: AgentRun) -> str | None:
    """Why the run is no submission although it was to be one; absent, false and true differ."""
    valid, reasons = run.submission_valid, run.submission_reasons
    if valid.value is True:
        return None
    if valid.value is False:
        if run.done.preset == SMOKE and reasons.value == SMOKE_REASONS:
            return None
        copied = ", ".join(reasons.value) if reasons.value else f"no reason given: {reasons.words}"
        return f"submission_valid is false: {copied}"
    if not run.scenario.is_present and valid.state.value == "absent":
        return None  # no locked scenario, so there is nothing to submit
    return f"submission_valid is {valid.words}"


def _state(run: AgentRun) -> Iterator[str]:
    """Whether it came to the end that it was to come to."""
    cancelled, complete = run.was_cancelled, run.is_complete
    if cancelled.value is not False:
        yield "it was cancelled" if cancelled.value else f"was_cancelled is {cancelled.words}"
    if complete.value is not True:
        reason = run.incomplete_reason.value or complete.words
        yield (
            f"it is incomplete: {reason}"
            if complete.value is False
            else (f"is_complete is {complete.words}")
        )
    if run.done.exit_status not in (0, None):
        yield f"AIPerf ended with status {run.done.exit_status}"


def _errors(run: AgentRun) -> str | None:
    failed = [record for record in run.profiled if record.error is not None]
    counted = run.metric("error_request_count")
    if not failed and not counted.value:
        return None
    number = max(len(failed), round(counted.value or 0.0))
    first = f": {failed[0].error}" if failed else ""
    return f"{number} requests failed{first}"


def _no_summary(run: AgentRun) -> str:
    """Why there is no summary, as far as the records tell it."""
    failed = [record for record in run.warmup if record.error is not None]
    if failed and not run.profiled:
        return (
            f"the warm-up was aborted, {len(failed)} of {len(run.warmup)} of its requests failed: "
            f"{failed[0].error}"
        )
    words = f"{SUMMARY} is {run.summary.words}, so it has no result"
    failed = [record for record in run.profiled if record.error is not None]
    if failed:
        words += f"; {len(failed)} of {len(run.profiled)} requests failed: {failed[0].error}"
    return words


def skipped_overflows(run: AgentRun) -> int:
    """Requests beyond the model's length that AIPerf left out of its records; named only if any."""
    return round(run.metric("skipped_context_overflow_count").value or 0.0)


# ---- its counts ------------------------------------------------------------------------------


def _records(run: AgentRun) -> Iterator[str]:
    """The summary's count of requests against its own records."""
    if not run.records.is_present:
        yield f"{RECORDS} is {run.records.words}, so no request can be counted"
        return
    if run.torn_lines:
        yield f"{len(run.torn_lines)} lines of {RECORDS} cannot be read, first {run.torn_lines[0]}"
    succeeded = len(run.succeeded)
    counted = run.metric("request_count")
    if not succeeded and not counted.value:
        yield f"zero records: no profiled request succeeded (request_count {counted.words})"
    elif not counted.is_present or round(counted.value or 0.0) != succeeded:
        yield f"request_count is {counted.words}, its records are {succeeded}"


def _tail(run: AgentRun) -> str | None:
    """Requests that were sent and have no record: cut off when the window closed."""
    recorded = len(run.profiled) + skipped_overflows(run)
    asked = run.requests_asked.value
    sent = run.tail.value.sent if run.tail.value is not None else None
    if sent is not None and sent > recorded:
        return (
            f"short tail: {sent} requests were sent, {recorded} have a record; the others were cut "
            "off when the window closed (a longer --benchmark-grace-period lets them end)"
        )
    if asked is not None and recorded < asked:
        return f"short tail: {asked:.0f} requests were asked for, {recorded} have a record"
    return None


def _server(run: AgentRun, window: Window) -> str | None:
    """Requests that the server finished in the window against AIPerf's, warm-up included.

    Failed and cancelled ones may or may not have been counted by the server.
    """
    finished = window.deltas.total("requests_finished") if window.deltas is not None else None
    if finished is None or not run.records.is_present:
        return None
    ours = sum(request.done.error is None for request in window.requests)
    records = run.records.value or ()
    low = sum(record.is_success for record in records)
    seen = finished - ours
    if low <= seen <= len(records):
        return None
    why = "a client-side cache?" if seen < low else "requests without a record, or of somebody else"
    return f"the server finished {seen:.0f} requests, AIPerf has {len(records)} records: {why}"


def _problems(run: AgentRun, window: Window) -> list[str]:
    if not run.summary.is_present:
        return [_no_summary(run)]
    tail = _tail(run)
    found = [
        *_state(run),
        _submission(run),
        *_records(run),
        _errors(run),
        tail,
        None if tail else _server(run, window),
    ]
    return [words for words in found if words is not None]


def _notes(run: AgentRun, window: Window) -> list[str]:
    notes = []
    if run.done.preset == SMOKE:
        notes.append(SMOKE_WORDS)
    if run.summary.is_present and not run.scenario.is_present:
        notes.append("no locked scenario was asked for, so there is nothing to submit")
    if run.summary.is_present and run.schema.value != SCHEMA:
        notes.append(f"schema {run.schema.words} is read with the names of {SCHEMA}")
    if not run.tail.is_present:
        notes.append(f"requests sent are n/a: {LOG} is {run.tail.gap}")
    if window.deltas is None or window.deltas.total("requests_finished") is None:
        notes.append("requests finished by the server are n/a")
    if overflows := skipped_overflows(run):
        notes.append(f"{overflows} requests were longer than the model takes and have no record")
    if run.done.exit_status is None:
        notes.append("exit status n/a")
    return notes


def _result(window: Window, run: AgentRun) -> Finding:
    problems = _problems(run, window)
    counted = run.metric("request_count")
    observed = (
        f"request_count {counted.words}, records {len(run.profiled)}, "
        f"was_cancelled {run.was_cancelled.words}, "
        f"submission_valid {run.submission_valid.words}, "
        f"submission_invalid_reasons {run.submission_reasons.words}"
    )
    if problems:
        outcome, reason = Outcome.INVALID, f"AIPerf's result is not valid: {listed(problems)}"
    else:
        seconds = run.metric("benchmark_duration")
        outcome = Outcome.PASS
        reason = f"{len(run.succeeded)} requests in {seconds.words} s, each with its record"
    finding = about(
        window,
        outcome,
        reason,
        what=RESULT,
        expected="complete, valid, and a record for every request that was sent",
        observed=observed,
        notes=[*problems, *_notes(run, window)],
    )
    return _with_places(finding, run)


def _with_places(finding: Finding, run: AgentRun) -> Finding:
    places = (f"{run.done.artifacts}/{SUMMARY}", f"{JOURNAL}:{run.line}")
    return replace(finding, evidence=places)


# ---- the cached rate -------------------------------------------------------------------------


def _sum_problem(run: AgentRun, total: Field[float], name: str) -> str | None:
    """A total of the summary against the sum over the records."""
    records = run.succeeded
    parts = [r.cached_tokens if name == CACHED_TOTAL else r.prompt_tokens for r in records]
    counted = sum(part.value or 0.0 for part in parts)
    if total.value is None or counted == total.value:
        return None
    return f"{name} is {total.words}, its records add up to {counted:g}"


def _cached_problems(run: AgentRun) -> list[str]:
    cached, prompt = run.metric(CACHED_TOTAL), run.metric(PROMPT_TOTAL)
    problems = [
        f"{field.name} is {field.words}" for field in (cached, prompt) if field.value is None
    ]
    if prompt.value == 0.0:
        problems.append(f"{prompt.name} is 0")
    if not run.records.is_present:
        problems.append(f"{RECORDS} is {run.records.words}")
    without = [record for record in run.succeeded if not record.cached_tokens.is_present]
    if without:
        gaps = ", ".join(sorted({record.cached_tokens.gap for record in without}))
        problems.append(f"{len(without)} of {len(run.succeeded)} requests have no {CACHED}: {gaps}")
    if problems:
        return problems
    sums = [_sum_problem(run, cached, CACHED_TOTAL), _sum_problem(run, prompt, PROMPT_TOTAL)]
    problems = [words for words in sums if words is not None]
    if (cached.value or 0.0) > (prompt.value or 0.0):
        problems.append(f"{cached.words} cached tokens of {prompt.words} prompt tokens")
    return problems


def _turns(run: AgentRun) -> str:
    """Cached share by turn index; turn 0 has none by design (cache bust)."""
    rows = []
    for row in run.turns:
        turn = "n/a" if row.turn is None else row.turn
        rows.append(f"{turn}: {row.cached_tokens:.0f}/{row.prompt_tokens:.0f}")
    return f"cached/prompt tokens by turn index: {', '.join(rows)}"


def _cached(window: Window, run: AgentRun) -> Finding:
    cached, prompt = run.metric(CACHED_TOTAL), run.metric(PROMPT_TOTAL)
    problems = _cached_problems(run)
    if problems:
        outcome = Outcome.INVALID
        reason = f"AIPerf's cached rate is n/a: {listed(problems)}"
        notes = [*problems, NEEDS] if any("absent" in words for words in problems) else problems
    else:
        outcome = Outcome.PASS
        share = 100 * (cached.value or 0.0) / (prompt.value or 1.0)
        reason = (
            f"client cache read {cached.value:.0f}/{prompt.value:.0f} tokens = {share:.2f} % of "
            "profiled, successful requests"
        )
        notes = [_turns(run)]
    finding = about(
        window,
        outcome,
        reason,
        what=CACHED_RATE,
        expected="cached tokens of every request",
        observed=f"{cached.words} of {prompt.words}",
        notes=notes,
    )
    return _with_places(finding, run)


def check(ledger: Ledger) -> list[Finding]:
    """Validity and cached rate of every result of AIPerf in a window that may be used."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        for window in ledger.measured(stage, arm):
            run = window.agent_run
            if run is None:
                continue
            findings.append(_result(window, run))
            if run.summary.is_present:
                findings.append(_cached(window, run))
    return findings

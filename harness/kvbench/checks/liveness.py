"""Did the engine live, answer everything, and end when it was told to?

An engine that dies ends the run in an environment error (aborted); one that hangs while its front
still answers /health is a fault of what is tested (fail).
"""

from __future__ import annotations

from kvbench.checks.common import SETUP, What, about, about_arm, listed, short
from kvbench.checks.finding import Finding, Outcome
from kvbench.events import LifeFailed
from kvbench.ledger.facts import JOURNAL, Ledger, Life, Request, Window

CLAIM = "alive"
HANG_KINDS = frozenset({"hang", "no_progress", "stalled"})
LOG_LINES = 5
"""Last lines of a server's log that a finding repeats."""

SIGKILL_STATUS = (-9, 137)
"""Exit status of a killed process, as Python and as a shell say it."""


def _life_finding(life: Life, line: int, outcome: Outcome, reason: str, **more: object) -> Finding:
    phase = more.get("phase")
    notes = more.get("notes", ())
    return Finding(
        check=str(more.get("check", "engine_alive")),
        claim=str(more.get("claim", CLAIM)),
        outcome=outcome,
        witness="processes" if more.get("check") else "liveness",
        stage=life.stage_words,
        arm=life.arm_words,
        phase=str(phase) if phase else "-",
        reason=reason,
        evidence=(f"{JOURNAL}:{line}",),
        notes=tuple(str(note) for note in notes) if isinstance(notes, tuple) else (),
    )


def is_hang(failed: LifeFailed) -> bool:
    """True for an engine that stopped answering while its process lived."""
    return failed.kind in HANG_KINDS or "a hang" in failed.message


def _failed(life: Life, line: int, failed: LifeFailed) -> Finding:
    tail = [text for text in failed.log_tail.splitlines() if text.strip()][-LOG_LINES:]
    notes = tuple(tail)
    if failed.exit_status in SIGKILL_STATUS:
        notes = ("killed by SIGKILL: look for the out-of-memory killer", *notes)
    if failed.phase is None:
        outcome, what = Outcome.ERROR, f"the engine did not start ({failed.kind})"
    elif is_hang(failed):
        outcome, what = Outcome.FAIL, f"the engine hung in {failed.phase}"
    else:
        outcome, what = Outcome.ABORTED, f"the engine died in {failed.phase} ({failed.kind})"
    reason = f"{life.id}: {what}: {failed.message}"
    return _life_finding(life, line, outcome, reason, phase=failed.phase, notes=notes)


def _ended(life: Life, *, is_interrupted: bool) -> list[Finding]:
    if life.ended is None:
        if is_interrupted or not life.started.argv:
            return []
        reason = f"{life.id}: nothing says that its processes were stopped"
        return [_life_finding(life, life.line, Outcome.ERROR, reason, check="stopped", claim=SETUP)]
    line, ended = life.ended
    if ended.survivors:
        pids = ", ".join(map(str, ended.survivors))
        reason = f"{life.id}: processes survived the stop: {pids}"
        return [_life_finding(life, line, Outcome.ERROR, reason, check="stopped", claim=SETUP)]
    notes = () if ended.orderly else ("it did not stop in time and its process tree was killed",)
    if ended.killed:
        pids = ", ".join(map(str, ended.killed))
        notes = (*notes, f"processes outlived the server and had to be ended: {pids}")
    reason = f"{life.id}: its process tree is gone ({ended.stop_s:.1f} s)"
    return [
        _life_finding(life, line, Outcome.PASS, reason, check="stopped", claim=SETUP, notes=notes)
    ]


def is_incomplete(request: Request, window: Window) -> bool:
    """True for an answer that ended before it should, or without the tokens that it says it has."""
    done = request.done
    if done.error is not None:
        return False
    planned = window.planned.new_tokens if window.planned is not None else None
    if done.role in ("scored", "filler", "prime") and planned is not None:
        is_short = done.completion_tokens != planned
        if is_short and done.finish_reason != "stop":
            return True
    if done.role != "scored":
        return False
    return not done.tokens or len(done.tokens) != done.completion_tokens


def _answers(window: Window) -> list[Finding]:
    failed = [r for r in window.requests if r.done.error is not None and r.done.error_kind != "nan"]
    cut = [request for request in window.requests if is_incomplete(request, window)]
    findings = []
    total = len(window.requests)
    if failed:
        words = [f"{short(r.prompt_id)}: {r.done.error}" for r in failed]
        reason = f"{len(failed)} of {total} requests failed in {window.label}: {listed(words)}"
        findings.append(_answer_finding(window, reason, failed))
    if cut:
        words = [
            f"{short(r.prompt_id)}: {len(r.done.tokens)} tokens, said {r.done.completion_tokens}, "
            f"finish reason {r.done.finish_reason}"
            for r in cut
        ]
        reason = f"{len(cut)} of {total} answers are incomplete in {window.label}: {listed(words)}"
        findings.append(_answer_finding(window, reason, cut))
    return findings


def _answer_finding(window: Window, reason: str, requests: list[Request]) -> Finding:
    return about(
        window,
        Outcome.FAIL,
        reason,
        what=What("requests_answered", CLAIM, "liveness"),
        requests=requests,
        expected="every request answered in full",
        observed=f"{len(requests)} not",
    )


def check(ledger: Ledger) -> list[Finding]:
    """Deaths, hangs, failed and cut answers, and what was left after the stop."""
    findings: list[Finding] = []
    for life in ledger.lives:
        findings += [_failed(life, line, failed) for line, failed in life.failed]
        findings += _ended(life, is_interrupted=ledger.is_interrupted)
    for stage, arm in ledger.pairs:
        windows = [w for w in ledger.windows if (w.stage, w.arm) == (stage, arm) and w.is_complete]
        problems = [finding for window in windows for finding in _answers(window)]
        findings += problems
        lives = {window.life for window in windows}
        has_failed = any(life.failed for life in ledger.lives if life.id in lives)
        answered = sum(len(window.requests) for window in windows)
        if answered and not problems and not has_failed:
            reason = f"{answered} of {answered} requests were answered in full"
            findings.append(
                about_arm(
                    stage,
                    arm,
                    Outcome.PASS,
                    reason,
                    what=What("requests_answered", CLAIM, "liveness"),
                )
            )
    return findings

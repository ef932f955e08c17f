"""Is a cold phase cold? A reset counts when its sentinel hit just before it and missed just after.

`/reset_prefix_cache` says success for tiers that it does not clear (vLLM #57727) and for misspelt
parameters; so an answer is never believed, and a reset that nothing could have disproved is no
proof.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.checks.common import SETUP, What, about, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.checks.memo import remembered
from kvbench.ledger.facts import Ledger, Request, Reset, Window

CHECK = "reset_proved"
UNFINISHED = (Outcome.ABORTED, Outcome.ERROR)
"""What an unfinished proof can be: it was refused, has no endpoint, or the engine died in it."""


def _problem(window: Window, phase: str, outcome: Outcome, reason: str, *on: Request) -> Finding:
    return about(
        window,
        outcome,
        f"{phase}: {reason}",
        what=What(CHECK, SETUP, "counters"),
        requests=on,
        expected="sentinel hits before the reset, and not after it",
        observed="; ".join(_hits(request) for request in on),
    )


def _hits(request: Request) -> str:
    words = ("n/a" if n is None else str(n) for n in (request.local, request.external))
    local, external = words
    return f"local {local}, external {external}"


def _refused(window: Window, reset: Reset, phase: str) -> Finding | None:
    done = reset.done
    tries = len(done.answers)
    if done.success is False:
        reason = f"the reset was refused for ever ({tries} tries in {done.waited_s:.0f} s)"
        return _problem(window, phase, Outcome.ABORTED, reason)
    if done.answers and all(answer.startswith("HTTP 4") for answer in done.answers):
        reason = f"the engine has no reset endpoint ({done.answers[-1]}); set engine.dev_mode: true"
        return _problem(window, phase, Outcome.ERROR, reason)
    return None


def _one_reset(
    window: Window, reset: Reset, before: Request | None, after: Request | None, phase: str
) -> Finding | None:
    """Judge one reset by the sentinel just before it and the one just after it."""
    refused = _refused(window, reset, phase)
    if refused is not None:
        return refused
    scope = reset.done.scope
    if before is None or after is None:
        return _problem(window, phase, Outcome.INVALID, "not cold: the reset was not probed")
    numbers = (before.local, before.external, after.local, after.external)
    if any(number is None for number in numbers):
        reason = "not cold: a hit counter of the sentinel could not be read"
        return _problem(window, phase, Outcome.INVALID, reason, before, after)
    must_miss = "local" if scope == "local" else "local and external"
    stays = (after.local or 0) + ((after.external or 0) if scope == "all" else 0)
    if stays or (scope == "all" and after.cached):
        claimed = "claimed success" if reset.done.success else "said nothing"
        reason = (
            f"not cold: the reset ({scope}) {claimed}, but the sentinel still hits "
            f"({_hits(after)}; {must_miss} must be 0)"
        )
        return _problem(window, phase, Outcome.INVALID, reason, before, after)
    is_external = scope == "all" and window.has_connector
    seen = before.external if is_external else before.local
    if not seen:
        tier = "the external tier" if is_external else "the device"
        reason = f"reset not provable: the sentinel was never seen to hit in {tier} before it"
        return _problem(window, phase, Outcome.INCONCLUSIVE, reason, before, after)
    return None


def _sentinels(window: Window) -> list[Request]:
    return [request for request in window.requests if request.done.role == "sentinel"]


def _is_step_to_tier(window: Window, number: int, after: Request | None) -> bool:
    """A local reset that only leads to the external hit, repeated because that came late."""
    later = window.resets[number + 1 :]
    return bool(later) and after is not None


def judge_window(window: Window, phase: str) -> Finding | None:
    """What is wrong with the proof in `window` of the reset before `phase`; None: proved."""
    if not window.resets:
        return _problem(window, phase, Outcome.INVALID, "not cold: no reset was made")
    by_engine: dict[int | None, list[Request]] = {}
    for sentinel in _sentinels(window):
        by_engine.setdefault(sentinel.done.engine, []).append(sentinel)
    for sentinels in by_engine.values() or ((),):
        worst = _judge_engine(window, phase, sentinels)
        if worst is not None:
            return worst
    return None


def _judge_engine(window: Window, phase: str, sentinels: Sequence[Request]) -> Finding | None:
    """The same for the sentinels of one data-parallel engine, which has caches of its own."""
    worst: Finding | None = None
    for number, reset in enumerate(window.resets):
        before = next((s for s in reversed(sentinels) if s.line < reset.line), None)
        after = next((s for s in sentinels if s.line > reset.line), None)
        problem = _one_reset(window, reset, before, after, phase)
        if problem is None:
            continue
        is_step = _is_step_to_tier(window, number, after)
        if problem.outcome is Outcome.INCONCLUSIVE and is_step:
            continue  # the last reset decides; this one only made the sentinel come from the tier
        if worst is None or problem.outcome is not Outcome.INCONCLUSIVE:
            worst = problem
    return worst


def _target(ledger: Ledger, index: int) -> Window | None:
    """The measured window for which the proof at `index` was made."""
    proof = ledger.windows[index]
    for window in ledger.windows[index + 1 :]:
        if window.life == proof.life:
            return None if window.is_proof else window
    return None


def _planned_scope_missing(proof: Window, target: Window) -> bool:
    planned = target.planned.reset if target.planned is not None else "none"
    return planned == "all" and all(reset.done.scope != "all" for reset in proof.resets)


def proofs(ledger: Ledger) -> list[tuple[Window, Window | None, Finding | None]]:
    """(proof, the phase it is for, what is wrong with it) in order."""
    result: list[tuple[Window, Window | None, Finding | None]] = []
    for index, proof in enumerate(ledger.windows):
        if not proof.is_proof:
            continue
        target = _target(ledger, index)
        phase = target.label if target is not None else proof.label
        problem = judge_window(proof, phase)
        if not proof.is_complete and problem is not None and problem.outcome not in UNFINISHED:
            reason = "the proof of its reset was not finished"
            problem = _problem(proof, phase, Outcome.ABORTED, reason)
        if problem is None and target is not None and _planned_scope_missing(proof, target):
            reason = "not cold: the external tier was to be cleared, and was not"
            problem = _problem(proof, phase, Outcome.INVALID, reason)
        result.append((proof, target, problem))
    return result


@remembered
def not_cold(ledger: Ledger) -> frozenset[str]:
    """Windows whose caches hold something else than the plan says, up to the next full reset.

    A failed or missing proof leaves blocks behind; an engine that was restarted has lost them.
    """
    denied: set[str] = set()
    verdicts = {proof.id: problem for proof, _, problem in proofs(ledger)}
    unproved = {window.id for window in _unproved(ledger)}
    is_denied: dict[str, bool] = {}
    for window in ledger.windows:
        if restarted_engines(window) or window.id in unproved:
            is_denied[window.life] = True
        if window.is_proof:
            problem = verdicts[window.id]
            if problem is not None and problem.outcome is Outcome.INVALID:
                is_denied[window.life] = True
            elif _is_full_reset(window, problem):
                is_denied[window.life] = False
        elif is_denied.get(window.life, False):
            denied.add(window.id)
    return frozenset(denied)


def _is_full_reset(proof: Window, problem: Finding | None) -> bool:
    return any(
        reset.done.scope == "all" and (reset.done.success or problem is None)
        for reset in proof.resets
    )


def restarted_engines(window: Window) -> tuple[str, ...]:
    """Engines that were restarted in a window or just before it."""
    both = (window.deltas, window.gap)
    return tuple(sorted({name for deltas in both if deltas for name in deltas.restarted}))


def _unproved(ledger: Ledger) -> list[Window]:
    """Phases that the plan puts behind a reset, and that have no proof of one before them."""
    found = []
    in_life: dict[str, list[Window]] = {}
    for window in ledger.windows:
        in_life.setdefault(window.life, []).append(window)
    for windows in in_life.values():
        for earlier, window in zip([None, *windows[:-1]], windows, strict=True):
            if window.is_proof or window.planned is None:
                continue
            if window.planned.reset != "none" and (earlier is None or not earlier.is_proof):
                found.append(window)
    return found


def check(ledger: Ledger) -> list[Finding]:
    """Every reset of every life, by its sentinel."""
    done = proofs(ledger)
    findings = [problem for _, _, problem in done if problem is not None]
    reason = "not cold: no proof of a reset comes before it"
    findings += [_problem(w, w.label, Outcome.INVALID, reason) for w in _unproved(ledger)]
    for stage, arm in ledger.pairs:
        mine = [(p, f) for p, _, f in done if (p.stage, p.arm) == (stage, arm)]
        proved = [proof for proof, problem in mine if problem is None]
        if proved and len(proved) == len(mine):
            reason = f"{len(proved)} of {len(mine)} resets proved by their sentinels"
            findings.append(
                about_arm(stage, arm, Outcome.PASS, reason, what=What(CHECK, SETUP, "counters"))
            )
    return findings

"""Does an evaluation's score speak about the model, or about how it was asked?

Answers that were cut, empty, missing or unreadable for a filter lower a score without any defect of
the cache (F33), and prompts that changed between rounds, or answers that never reached the server,
make rounds incomparable (F32). All of that is invalid and never a fail; only the paired difference
of the same questions with and without the connector can fail (`score_pairs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kvbench.checks import score_pairs
from kvbench.checks.common import MAX_LISTED, What, about, about_arm, listed
from kvbench.checks.finding import Finding, Outcome
from kvbench.events import RequestDone, SampleDone
from kvbench.ledger.evaluation import FILTERS, Answered, FilterScore, Round, all_rounds
from kvbench.ledger.facts import Ledger, Window

CLAIM = "score"
COMPLETE = What("evaluation_complete", CLAIM, "samples")
INPUTS = What("evaluation_inputs", CLAIM, "samples")
REQUESTS = What("evaluation_requests", CLAIM, "samples, counters")


class Problem(NamedTuple):
    """One reason why a score says nothing."""

    words: str
    samples: tuple[Answered, ...] = ()


def rounds(ledger: Ledger, stage: str, arm: str) -> tuple[Round, ...]:
    """Rounds of a stage under an arm, in windows that may be used."""
    return all_rounds(ledger.measured(stage, arm))


def _about(round_: Round, outcome: Outcome, reason: str, what: What) -> Finding:
    return about(round_.window, outcome, reason, what=what)


def _with_samples(finding: Finding, samples: list[Answered]) -> Finding:
    """The same finding, with the lines of the samples as evidence."""
    if not samples:
        return finding
    docs = tuple(dict.fromkeys(f"doc {sample.done.doc_id}" for sample in samples))
    places = tuple(sample.where for sample in samples[:MAX_LISTED])
    return replace(finding, prompts=docs, evidence=places)


# ---- complete --------------------------------------------------------------------------------


def _lost(round_: Round) -> Iterator[Problem]:
    """Answers that were asked for and are not there, or are there twice."""
    if round_.done is None:
        yield Problem("its tool did not come to an end")
        return
    if round_.asked is None:
        yield Problem("how many samples were asked for is n/a")
    failed = tuple(sample for sample in round_.samples if not sample.is_answered)
    missing = round_.missing
    if missing or failed:
        first = failed[0].done.error if failed else None
        why = f", first error: {first}" if first else ""
        number = "n/a" if missing is None else str(missing)
        yield Problem(f"missing {number} of {round_.asked or 'n/a'}{why}", failed)
    if round_.twice:
        docs = listed([str(doc) for doc in round_.twice])
        yield Problem(f"questions answered more than once: {docs}")
    counted, told = len(round_.by_doc), round_.done.samples_answered
    if told is not None and told != counted:
        yield Problem(f"the tool counts {told} answers, the record holds {counted}")


def _unfit(round_: Round) -> Iterator[Problem]:
    """Answers that are there and cannot be scored as the model's."""
    total = len(round_.answered)
    if round_.truncated:
        cut = round_.truncated
        yield Problem(f"truncated {len(cut)} of {total} (finish reason length)", cut)
    if round_.empty:
        yield Problem(f"empty {len(round_.empty)} of {total}", round_.empty)
    strict, flexible = round_.filter("strict"), round_.filter("flexible")
    if strict.scored and not strict.correct and flexible.correct:
        yield Problem(
            f"strict filter 0 of {strict.scored} while flexible is {flexible.correct} of "
            f"{flexible.scored}: the form of the answers, not their content"
        )
    if not strict.scored and not flexible.scored:
        yield Problem("no answer was scored by any filter")


def _misreported(score: FilterScore) -> str | None:
    """The tool's figure against the one that its samples add up to, to half a sample."""
    reported = score.reported.value if score.reported is not None else None
    if reported is None or score.score is None:
        return None
    if abs(reported - score.score) * score.scored <= 0.5:
        return None
    return f"the tool reports {score.name} {reported:.4f}, its samples add up to {score.score:.4f}"


def problems_of(round_: Round) -> tuple[Problem, ...]:
    """Why the score of a round is no score; empty for a sound one."""
    scores = [round_.filter(name) for name in FILTERS]
    told = [words for words in map(_misreported, scores) if words is not None]
    return (*_lost(round_), *_unfit(round_), *(Problem(words) for words in told))


def counts_of(round_: Round) -> str:
    """The columns of a round, in one line."""
    scores = [round_.filter(name) for name in FILTERS]
    invalid = ", ".join(f"{score.name} {score.invalid}" for score in scores if score.scored)
    asked = "n/a" if round_.asked is None else round_.asked
    missing = "n/a" if round_.missing is None else round_.missing
    return (
        f"{round_.words}: {'; '.join(score.words for score in scores)}; asked {asked}, "
        f"answered {len(round_.by_doc)}, missing {missing}, "
        f"truncated {len(round_.truncated)}, empty {len(round_.empty)}, "
        f"invalid {invalid or 'n/a'}"
    )


def _complete(ledger: Ledger, stage: str, arm: str) -> list[Finding]:
    found = rounds(ledger, stage, arm)
    findings = []
    for round_ in found:
        problems = problems_of(round_)
        if not problems:
            continue
        words = [problem.words for problem in problems]
        reason = f"the score of {round_.words} is not valid: {listed(words)}"
        finding = _about(round_, Outcome.INVALID, reason, COMPLETE)
        samples = [sample for problem in problems for sample in problem.samples]
        finding = replace(
            _with_samples(finding, samples),
            expected="every sample answered, in full, and scored",
            observed=counts_of(round_),
            notes=tuple(words),
        )
        findings.append(finding)
    if findings or not found:
        return findings
    answers = sum(len(round_.by_doc) for round_ in found)
    reason = f"{answers} samples in {len(found)} rounds were answered in full and scored"
    notes = [counts_of(round_) for round_ in found]
    return [about_arm(stage, arm, Outcome.PASS, reason, what=COMPLETE, notes=notes)]


# ---- inputs ----------------------------------------------------------------------------------


class Change(NamedTuple):
    """One question that was put in another way than in the reference round."""

    sample: Answered
    words: str


def _change(reference: Answered, sample: Answered) -> str | None:
    """How the two prompts of a question differ; unknown digests or lengths cannot."""
    one, two = reference.done, sample.done
    if None not in (one.prompt_tokens, two.prompt_tokens) and one.prompt_tokens != (
        two.prompt_tokens
    ):
        return f"{one.prompt_tokens} prompt tokens became {two.prompt_tokens}"
    hashes = (one.prompt_sha256, two.prompt_sha256)
    if None not in hashes and one.prompt_sha256 != two.prompt_sha256:
        return f"prompt {(one.prompt_sha256 or '')[:8]} became {(two.prompt_sha256 or '')[:8]}"
    return None


def _changes(reference: Round, other: Round) -> list[Change]:
    first = {sample.done.doc_id: sample for sample in reference.samples}
    found = []
    for sample in other.samples:
        known = first.get(sample.done.doc_id)
        words = _change(known, sample) if known is not None else None
        if words is not None:
            found.append(Change(sample, words))
    return found


def _settings(reference: Round, other: Round) -> list[str]:
    """What the tools were told differently."""
    if reference.done is None or other.done is None:
        return []
    names = ("task", "task_version", "shots", "shots_kind", "tool", "tool_version")
    pairs = [(name, getattr(reference.done, name), getattr(other.done, name)) for name in names]
    return [f"{name} {one} became {two}" for name, one, two in pairs if one != two]


def _other_questions(reference: Round, other: Round) -> list[str]:
    """Questions that only one of two rounds was asked; samples that are lost are no change."""
    if reference.missing or other.missing:
        return []
    one = {sample.done.doc_id for sample in reference.samples}
    two = {sample.done.doc_id for sample in other.samples}
    alone = one ^ two
    return [f"{len(alone)} questions were asked in only one of them"] if alone and two else []


def _place(round_: Round) -> str:
    return f"{round_.words} of {round_.window.arm} ({round_.window.label})"


def inputs_changed(reference: Round, other: Round) -> str | None:
    """How the questions of two rounds differ, in words; None where they are the same."""
    changes = _changes(reference, other)
    words = _settings(reference, other) + _other_questions(reference, other)
    if changes:
        first = changes[0]
        words.insert(
            0,
            f"{len(changes)} of {len(other.samples)} prompts, first doc "
            f"{first.sample.done.doc_id}: {first.words}",
        )
    return listed(words) if words else None


def _inputs(ledger: Ledger, stage: str) -> list[Finding]:
    """All rounds of a stage, over its arms, against the first one."""
    arms = [arm for other, arm in ledger.pairs if other == stage]
    found = [round_ for arm in arms for round_ in rounds(ledger, stage, arm)]
    if not found:
        return []
    findings = []
    reference = found[0]
    for round_ in found[1:]:
        words = inputs_changed(reference, round_)
        if words is None:
            continue
        reason = (
            f"inputs changed between rounds: {_place(round_)} against {_place(reference)}: {words}"
        )
        finding = replace(
            _about(round_, Outcome.INVALID, reason, INPUTS),
            expected="every question asked in the same words",
            observed=words,
        )
        samples = [change.sample for change in _changes(reference, round_)]
        findings.append(_with_samples(finding, samples))
    unknown = [s for round_ in found for s in round_.answered if _is_unknown(s)]
    if unknown and not findings:
        reason = f"the prompts of {len(unknown)} samples are n/a: neither hashed nor counted"
        finding = about_arm(stage, "+".join(arms), Outcome.INCONCLUSIVE, reason, what=INPUTS)
        findings.append(_with_samples(finding, unknown))
    if not findings and len(found) > 1:
        reason = f"{len(found)} rounds asked the same {len(reference.samples)} questions"
        ran = dict.fromkeys(round_.window.arm for round_ in found)
        findings.append(about_arm(stage, "+".join(ran), Outcome.PASS, reason, what=INPUTS))
    return findings


def _is_unknown(sample: Answered) -> bool:
    return sample.done.prompt_sha256 is None and sample.done.prompt_tokens is None


# ---- requests --------------------------------------------------------------------------------


def _others(window: Window, answers: list[Answered]) -> list[RequestDone]:
    """Requests of the window that are not the evaluation's own."""
    own = {sample.done.request_id for sample in answers}
    return [each.done for each in window.requests if each.done.request_id not in own]


def _miscounted(window: Window, samples: list[Answered]) -> str | None:
    """Requests that the server finished, against answers; a failed one may count or not."""
    finished = window.deltas.total("requests_finished") if window.deltas is not None else None
    if finished is None:
        return "how many requests the server finished is n/a"
    answers = [sample for sample in samples if sample.is_answered]
    others = _others(window, answers)
    low = len(answers) + sum(done.error is None for done in others)
    high = len(samples) + len(others)
    if low <= finished <= high:
        return None
    beside = f" and {len(others)} requests of the harness" if others else ""
    why = "a client-side cache?" if finished < low else "retries, or requests of somebody else?"
    return (
        f"the server saw {finished:.0f} requests, the tool reports {len(answers)} answers"
        f"{beside}: {why}"
    )


def _miscounted_tokens(window: Window, samples: list[Answered]) -> str | None:
    """Prompt and cached tokens by the counters, against `usage`, where nothing failed."""
    deltas = window.deltas
    dones: list[SampleDone | RequestDone] = [sample.done for sample in samples]
    dones += _others(window, samples)
    if deltas is None or any(done.error is not None for done in dones):
        return None
    rules = (
        ("prompt", deltas.total("prompt_tokens"), [done.prompt_tokens for done in dones]),
        (
            "cached",
            _sum([deltas.total("local_hits"), _external_hits(window)]),
            [done.cached_tokens for done in dones],
        ),
    )
    for name, counted, parts in rules:
        told = _sum(parts)
        if counted is not None and told is not None and counted != told:
            return f"the server counted {counted:.0f} {name} tokens, its answers {told:.0f}"
    return None


def _sum(parts: Sequence[float | None]) -> float | None:
    """A sum; n/a where any part of it is."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _external_hits(window: Window) -> float | None:
    """External hit tokens; 0 without a connector, because then there is no external tier."""
    if not window.has_connector:
        return 0.0
    return window.deltas.total("external_hits") if window.deltas is not None else None


def _requests(ledger: Ledger, stage: str, arm: str) -> list[Finding]:
    findings = []
    windows = 0
    for window in ledger.measured(stage, arm):
        samples = [sample for round_ in all_rounds([window]) for sample in round_.samples]
        if not samples:
            continue
        windows += 1
        words = _miscounted(window, samples) or _miscounted_tokens(window, samples)
        if words is not None:
            finding = about(window, Outcome.INVALID, words, what=REQUESTS)
            findings.append(replace(finding, expected="one request an answer", observed=words))
    if findings or not windows:
        return findings
    reason = f"the server finished one request for every answer in {windows} windows"
    return [about_arm(stage, arm, Outcome.PASS, reason, what=REQUESTS)]


def check(ledger: Ledger) -> list[Finding]:
    """Completeness, inputs, requests and paired scores of every stage that evaluated anything."""
    findings: list[Finding] = []
    for stage, arm in ledger.pairs:
        findings += _complete(ledger, stage, arm)
        findings += _requests(ledger, stage, arm)
    for stage in dict.fromkeys(stage for stage, _ in ledger.pairs):
        findings += _inputs(ledger, stage)
        findings += score_pairs.compare(ledger, stage, same_inputs=inputs_changed)
    return findings

from __future__ import annotations

from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.events import Token
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")


def flips(*, phase: str, name: str, arms: tuple[str, ...], position: int = 3) -> records.OnRequest:
    def change(sent: Sent) -> None:
        if sent.phase == phase and sent.name == name and sent.arm in arms:
            sent.tokens = records.flip(sent.tokens, position)

    return change


def test_equal_tokens_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "tokens_equal") == {"pass"}
    assert records.outcomes(healthy_verdict, "cold_equals_control") == {"pass"}


def test_other_tokens_in_replay_fail_with_the_first_divergence(run: Path) -> None:
    change = flips(phase="replay-1", name="p2", arms=("simple",))
    verdict = records.judged(run, on_request=change)
    finding = records.only(verdict, "tokens_equal", Outcome.FAIL)
    wanted = records.answer("replay/p2", 8)[3]
    got = list(wanted.top)[1]
    assert f"p2 position 3: token {got} for {wanted.token_id} (top-2 gap" in finding.reason
    assert finding.phase == "replay-1"
    assert finding.prompts == ("replay/p2",)
    assert verdict.exit_code == ExitCode.FAIL


def test_flip_that_the_control_shares_is_a_broken_baseline(run: Path) -> None:
    change = flips(phase="fresh-2", name="p2", arms=("simple", "control"))
    verdict = records.judged(run, on_request=change)
    assert "baseline broken" in records.only(verdict, "tokens_equal", Outcome.ERROR).reason
    assert verdict.exit_code == ExitCode.ENVIRONMENT


def hits_differ(sent: Sent) -> None:
    """A wrong state taken for a prefix: GPU hits of one prompt differ, also without a connector."""
    is_hit = sent.local + sent.external > 0 and sent.role in ("scored", "prime")
    if sent.name == "p2" and is_hit:
        sent.tokens = records.flip(sent.tokens, 3)


def test_gpu_hits_that_differ_without_a_connector_too_are_a_broken_baseline(run: Path) -> None:
    verdict = records.judged(run, on_request=hits_differ)
    assert verdict.exit_code == ExitCode.ENVIRONMENT
    errors = [f for f in verdict.findings if f.outcome is Outcome.ERROR]
    assert {f.phase for f in errors} == {"hot-1", "hot-2"}


def test_such_a_baseline_hides_no_damaged_cpu_hit(run: Path) -> None:
    def damage(sent: Sent) -> None:
        hits_differ(sent)
        if sent.arm == "simple" and sent.phase == "replay-1" and sent.name == "p3":
            sent.tokens = records.flip(sent.tokens, 5)

    verdict = records.judged(run, on_request=damage)
    assert records.only(verdict, "tokens_equal", Outcome.FAIL).prompts == ("replay/p3",)
    assert verdict.exit_code == ExitCode.FAIL


def test_gpu_hits_that_differ_without_a_control_decide_nothing(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=hits_differ)
    assert "inconclusive" in records.outcomes(verdict, "tokens_equal")
    assert "fail" not in records.outcomes(verdict, "tokens_equal")


def test_ties_of_all_prompts_are_ties(run: Path) -> None:
    """In a 16-bit type every long answer meets a tie somewhere, and none is left whole."""

    def other_shape(sent: Sent) -> None:
        if sent.role not in ("scored", "prime"):
            return
        sent.tokens = near_tie(sent.tokens, 3)
        if sent.local + sent.external > 0:
            moved = records.with_noise(sent.tokens, 1e-3, sent.name)
            sent.tokens = records.flip(moved, 3)

    verdict = records.judged(run, on_request=other_shape)
    assert records.outcomes(verdict, "tokens_equal") == {"pass"}


def test_local_hits_that_only_the_tested_arm_gets_wrong_fail(run: Path) -> None:
    change = flips(phase="hot-1", name="p2", arms=("simple",))
    verdict = records.judged(run, on_request=change)
    assert records.only(verdict, "tokens_equal", Outcome.FAIL).phase == "hot-1"


def test_flips_within_the_controls_number_are_noise(run: Path) -> None:
    def damage(sent: Sent) -> None:
        is_control = sent.arm == "control" and sent.phase == "replay-2"
        if is_control or (sent.arm == "simple" and sent.phase == "replay-1" and sent.name == "p2"):
            sent.tokens = records.flip(sent.tokens, 4 if is_control else 3)

    verdict = records.judged(run, on_request=damage)
    noisy = [f for f in verdict.findings if f.check == "tokens_equal" and "noisy" in f.reason]
    assert [f.outcome for f in noisy] == [Outcome.PASS]


def test_cold_output_unlike_the_controls_fails_at_the_first_token(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.arm == "simple" and sent.role in ("scored", "prime"):
            sent.tokens = list(records.answer(f"garbage/{sent.name}", sent.new_tokens))

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, "cold_equals_control", Outcome.FAIL)
    assert "at the first token" in finding.reason


def test_answer_of_another_prompt_is_called_foreign(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.arm == "simple" and sent.phase == "replay-1" and sent.name == "p2":
            sent.tokens = list(records.answer("replay/p3", sent.new_tokens))

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, "tokens_equal", Outcome.FAIL)
    assert finding.reason.startswith("foreign content")
    assert "foreign content: p2 reads like p3" in finding.notes


def near_tie(tokens: list[Token], position: int) -> list[Token]:
    """The same answer with a second token only a millionth of a nat behind."""
    changed = list(tokens)
    old = changed[position]
    second = list(old.top)[1]
    top = {**old.top, second: (old.logprob or 0.0) - 1e-6}
    changed[position] = Token(token_id=old.token_id, logprob=old.logprob, top=top)
    return changed


@pytest.mark.parametrize(("noise", "outcome"), [(1e-4, Outcome.PASS), (0.0, Outcome.FAIL)])
def test_flip_of_a_tie_is_a_note_where_the_noise_can_turn_it(
    run: Path, noise: float, outcome: Outcome
) -> None:
    def damage(sent: Sent) -> None:
        if sent.name != "p2" or sent.arm != "simple" or sent.role not in ("scored", "prime"):
            return
        sent.tokens = near_tie(sent.tokens, 3)
        if sent.phase == "replay-1":
            sent.tokens = records.flip(sent.tokens, 3)
        elif noise:
            sent.tokens = records.with_noise(sent.tokens, noise, (sent.window, sent.role))

    sets = (*records.SMALL, "stages.replay.claims=[identity]")
    verdict = records.judged(run, arm=("simple",), sets=sets, on_request=damage)
    found = [f for f in verdict.findings if f.check == "tokens_equal"]
    assert outcome in {f.outcome for f in found}
    if outcome is Outcome.PASS:
        assert any(note.startswith("tie: replay-1: p2 position 3") for note in found[0].notes)


def test_noise_of_fresh_runs_without_a_control_decides_nothing(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase in ("fresh-2", "replay-1") and sent.name == "p2" and sent.role == "scored":
            sent.tokens = records.flip(sent.tokens, 3 if sent.kind == "fresh" else 4)

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert "inconclusive" in records.outcomes(verdict, "tokens_equal")
    assert "fail" not in records.outcomes(verdict, "tokens_equal")


def test_cold_answers_of_two_lives_that_differ_without_a_flip_are_noted(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.arm == "simple" and sent.role == "scored":
            sent.tokens = records.change_one(sent.tokens, 4, 0.25)

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, "cold_equals_control", Outcome.PASS)
    assert "differ by up to 0.25 nats" in finding.notes[0]


def test_flips_of_the_control_alone_are_noted(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.arm == "control" and sent.phase == "replay-1" and sent.name == "p2":
            sent.tokens = records.flip(sent.tokens, 3)

    verdict = records.judged(run, on_request=damage)
    findings = [f for f in verdict.findings if f.check == "tokens_equal" and f.arm == "control"]
    assert findings[0].notes[0].startswith("other: replay-1: p2 position 3")

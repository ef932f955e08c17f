from __future__ import annotations

from pathlib import Path

import pytest
import records
from records import Sent

from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_disk")

MATCHED = "cpu_hit_equals_gpu_hit"
AGAINST_FRESH = "cpu_hit_adds_nothing"
HITS = ("replay", "reload")
BOTH = ("stages.replay.workload.concurrency=[1, 2]",)


def scored(sent: Sent) -> bool:
    return sent.role == "scored" and sent.arm == "simple"


def noisy(size: float, extra: records.OnRequest = records.leave) -> records.OnRequest:
    """An engine whose answers differ from run to run by up to `size` nats."""

    def change(sent: Sent) -> None:
        if scored(sent):
            sent.tokens = records.with_noise(sent.tokens, size, (sent.window, sent.name))
            extra(sent)

    return change


def test_bit_equal_cpu_hits_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, MATCHED) == {"pass"}
    assert records.outcomes(healthy_verdict, AGAINST_FRESH) == {"pass"}


def test_one_changed_value_fails_where_gpu_hits_agree_to_the_bit(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == "p2" and scored(sent):
            sent.tokens = records.change_one(sent.tokens, 5, 1e-6)

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, MATCHED, Outcome.FAIL)
    value = records.answer("replay/p2", 8)[5].logprob
    assert value is not None
    assert f"p2 position 5, token {records.answer('replay/p2', 8)[5].token_id}" in finding.reason
    assert f"{value!r} against {value + 1e-6!r} nats" in finding.reason
    assert verdict.exit_code == ExitCode.FAIL


def test_noise_that_gpu_hits_have_too_passes(run: Path) -> None:
    verdict = records.judged(run, sets=records.MANY, arm=("simple",), on_request=noisy(1e-3))
    assert records.outcomes(verdict, MATCHED) == {"pass"}
    assert records.outcomes(verdict, AGAINST_FRESH) == {"pass"}


def test_five_times_the_noise_on_all_prompts_fails(run: Path) -> None:
    def more(sent: Sent) -> None:
        if sent.phase == "replay-1":
            sent.tokens = records.with_noise(sent.tokens, 5e-3, (sent.window, sent.name, "more"))

    change = noisy(1e-3, more)
    verdict = records.judged(run, sets=records.MANY, arm=("simple",), on_request=change)
    finding = records.only(verdict, MATCHED, Outcome.FAIL)
    assert "outside the band in replay-1" in finding.reason


def test_a_large_shift_of_one_prompt_fails_and_is_named(run: Path) -> None:
    def more(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == "p4":
            sent.tokens = records.with_noise(sent.tokens, 3e-2, "one")

    change = noisy(1e-3, more)
    verdict = records.judged(run, sets=records.MANY, arm=("simple",), on_request=change)
    finding = records.only(verdict, MATCHED, Outcome.FAIL)
    assert "for p4" in finding.reason
    assert finding.prompts == ("replay/p4",)


def test_too_few_prompts_cannot_decide(run: Path) -> None:
    verdict = records.judged(run, arm=("simple",), on_request=noisy(1e-3))
    assert "fail" not in records.outcomes(verdict, MATCHED)
    assert "inconclusive" in records.outcomes(verdict, MATCHED)
    assert verdict.exit_code == ExitCode.UNPROVED


def test_two_fresh_runs_make_no_band(run: Path) -> None:
    sets = (*records.SMALL, "stages.replay.workload.fresh_runs=2")
    verdict = records.judged(run, sets=sets)
    assert records.outcomes(verdict, MATCHED) == {"pass"}
    assert records.outcomes(verdict, AGAINST_FRESH) == {"inconclusive"}
    assert verdict.exit_code == ExitCode.UNPROVED


def test_one_gpu_hit_makes_no_band(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.kind in HITS and scored(sent):
            sent.tokens = records.with_noise(sent.tokens, 1e-3, (sent.window, sent.name))

    sets = (*records.SMALL, "stages.replay.workload.hot_runs=1")
    verdict = records.judged(run, sets=sets, arm=("simple",), on_request=damage)
    assert records.outcomes(verdict, MATCHED) == {"inconclusive"}


def test_a_hit_unlike_fresh_is_no_false_alarm_where_the_gpu_hit_is_as_well(run: Path) -> None:
    """A hybrid computes the rest of a hit in another shape: about 3e-2 nats, on either tier."""

    def other_shape(sent: Sent) -> None:
        if scored(sent) and sent.kind in (*HITS, "hot"):
            sent.tokens = records.with_noise(sent.tokens, 3e-2, sent.name)

    verdict = records.judged(run, arm=("simple",), on_request=other_shape)
    assert records.outcomes(verdict, MATCHED) == {"pass"}
    assert records.outcomes(verdict, AGAINST_FRESH) == {"pass"}


UNDER_LOAD = ("stages.replay.workload.new_tokens=8", "stages.replay.workload.concurrency=[2]")


def shifted_batches(sent: Sent) -> None:
    if scored(sent) and sent.kind in HITS:
        sent.tokens = records.with_noise(sent.tokens, 0.05, (sent.window, sent.name))


def test_under_load_in_bfloat16_a_difference_is_no_fail(run: Path) -> None:
    sets = (*UNDER_LOAD, "engine.dtype=bfloat16")
    verdict = records.judged(run, sets=sets, arm=("simple",), on_request=shifted_batches)
    assert records.outcomes(verdict, MATCHED) == {"pass"}
    reasons = [f.reason for f in verdict.findings if f.check == MATCHED]
    assert "not judged" in reasons[0]


def test_under_load_in_float32_the_comparison_stays_exact(run: Path) -> None:
    verdict = records.judged(run, sets=UNDER_LOAD, arm=("simple",), on_request=shifted_batches)
    assert records.outcomes(verdict, MATCHED) == {"fail"}


def test_under_load_in_bfloat16_flips_leave_it_undecided(run: Path) -> None:
    def flip(sent: Sent) -> None:
        shifted_batches(sent)
        if scored(sent) and sent.phase == "replay-1" and sent.name == "p2":
            sent.tokens = records.flip(list(records.answer(sent.prompt_id, 8)), 2)

    sets = (*UNDER_LOAD, "engine.dtype=bfloat16")
    verdict = records.judged(run, sets=sets, arm=("simple",), on_request=flip)
    assert "inconclusive" in records.outcomes(verdict, MATCHED)
    assert "fail" in records.outcomes(verdict, "tokens_equal")


@pytest.mark.parametrize("seed", range(5))
def test_clean_noise_does_not_fail(run: Path, seed: int) -> None:
    def change(sent: Sent) -> None:
        if scored(sent):
            sent.tokens = records.with_noise(sent.tokens, 1e-3, (sent.window, sent.name, seed))

    verdict = records.judged(run, sets=records.MANY, arm=("simple",), on_request=change)
    assert verdict.exit_code != ExitCode.FAIL


def soften(*kinds: str) -> records.OnRequest:
    def damage(sent: Sent) -> None:
        if sent.kind in kinds and sent.name == "p2" and sent.arm == "simple":
            sent.tokens = records.change_one(sent.tokens, 4, 0.5)

    return damage


def test_damage_that_gpu_hits_and_cpu_hits_share_fails_against_the_control(run: Path) -> None:
    """A store that damages the device's block: both hits alike, tokens equal, control clean."""
    verdict = records.judged(run, on_request=soften("hot", "replay", "reload"))
    finding = records.only(verdict, "gpu_hit_as_control", Outcome.FAIL)
    assert "p2 position 4" in finding.reason
    assert verdict.exit_code == ExitCode.FAIL


def test_cold_answer_that_differs_from_fresh_runs_fails(run: Path) -> None:
    verdict = records.judged(run, on_request=soften("cold_again"))
    finding = records.only(verdict, "cold_equals_fresh", Outcome.FAIL)
    assert "cold_again-1" in finding.reason
    assert "p2 position 4" in finding.reason


def test_lives_that_differ_widen_the_band_of_gpu_hits(run: Path) -> None:
    """Another program in the second life: hits move as much as its fresh runs do."""

    def damage(sent: Sent) -> None:
        if sent.arm == "simple":
            is_hit = sent.kind in ("hot", "replay", "reload")
            sent.tokens = records.with_noise(sent.tokens, 1e-5, (sent.prompt_id, is_hit))

    verdict = records.judged(run, sets=records.MANY, on_request=damage)
    assert records.outcomes(verdict, "gpu_hit_as_control") == {"pass"}
    assert verdict.exit_code == ExitCode.PASS


def shifted_reload(name: str, nats: float, concurrency: int) -> records.OnRequest:
    def change(sent: Sent) -> None:
        at = (sent.phase.split(" ")[0].split("@")[0], sent.concurrency)
        if scored(sent) and at == ("reload-1", concurrency) and sent.name == name:
            sent.tokens = records.change_one(sent.tokens, 5, nats)

    return change


def test_rounding_of_float32_under_load_is_no_false_alarm(run: Path) -> None:
    """Seen on real vLLM: two GPU hits agreed to the bit, a clean CPU hit lay 5e-6 nats apart."""
    verdict = records.judged(run, sets=BOTH, on_request=shifted_reload("p2", 5e-6, 2))
    finding = records.only(verdict, MATCHED, Outcome.PASS)
    assert "as rounding in float32 does" in finding.reason
    assert verdict.exit_code == ExitCode.PASS, verdict.first


def test_damage_under_load_in_float32_fails_without_a_flipped_token(run: Path) -> None:
    verdict = records.judged(run, sets=BOTH, on_request=shifted_reload("p2", 1e-3, 2))
    finding = records.only(verdict, MATCHED, Outcome.FAIL)
    assert "p2 position 5" in finding.reason

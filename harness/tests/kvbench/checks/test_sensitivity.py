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


def same_answer(sent: Sent) -> None:
    """Dummy weights: every prompt gets the same tokens, each with log(1/vocabulary)."""
    top: dict[str, float | None] = {str(name): -6.9 for name in range(records.TOP)}
    sent.tokens = [Token(token_id=0, logprob=-6.9, top=top)] * sent.new_tokens


def test_answers_with_spread_pass(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "answers_sensitive") == {"pass"}


def test_dummy_weights_prove_hits_and_liveness_only(run: Path) -> None:
    verdict = records.judged(run, on_request=same_answer)
    assert records.outcomes(verdict, "answers_sensitive") == {"inconclusive"}
    tested = [f for f in verdict.findings if f.arm == "simple"]
    assert {f.outcome for f in tested if f.claim == "identity"} == {Outcome.INCONCLUSIVE}
    assert {f.outcome for f in tested if f.claim == "logprobs"} == {Outcome.INCONCLUSIVE}
    assert {f.outcome for f in tested if f.claim == "hits"} == {Outcome.PASS}
    assert verdict.exit_code == ExitCode.UNPROVED


def test_dummy_weights_pass_where_only_hits_and_liveness_are_claimed(run: Path) -> None:
    sets = (*records.SMALL, "stages.replay.claims=[alive,hits]")
    verdict = records.judged(run, sets=sets, on_request=same_answer)
    assert verdict.exit_code == ExitCode.PASS
    assert any(f.check == "answers_sensitive" for f in verdict.unclaimed)


def test_one_prompt_cannot_show_that_another_would_differ(run: Path) -> None:
    sets = (
        *records.SMALL,
        "stages.replay.workload.prompts.blocks=[]",
        "stages.replay.workload.prompts.lengths_tokens=[1000]",
    )
    verdict = records.judged(run, sets=sets)
    assert records.outcomes(verdict, "answers_sensitive") == {"inconclusive"}

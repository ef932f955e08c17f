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


def test_finite_answers_have_no_finding(healthy_verdict: Verdict) -> None:
    assert records.outcomes(healthy_verdict, "answers_finite") == set()


def test_nan_on_a_cpu_hit_only_is_corruption(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "replay-1" and sent.name == "p3" and sent.arm == "simple":
            sent.error, sent.error_kind, sent.http_status = "HTTP 400: out of range", "nan", 400

    verdict = records.judged(run, on_request=damage)
    finding = records.only(verdict, "answers_finite", Outcome.FAIL)
    assert "only on cache hits: p3: NaN" in finding.reason
    assert verdict.exit_code == ExitCode.FAIL


def test_nan_in_fresh_answers_too_is_no_fail(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.name == "p3":
            sent.error, sent.error_kind, sent.http_status = "HTTP 400: out of range", "nan", 400

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert records.outcomes(verdict, "answers_finite") == {"invalid"}


@pytest.mark.parametrize("how", ["missing", "fewer"])
def test_missing_log_probabilities_on_hits_fail(run: Path, how: str) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase != "replay-1" or sent.name != "p3":
            return
        token = sent.tokens[2]
        top = dict(token.top)
        if how == "missing":
            sent.tokens[2] = Token(token_id=token.token_id, logprob=None, top=top)
        else:
            top.popitem()
            sent.tokens[2] = Token(token_id=token.token_id, logprob=token.logprob, top=top)

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    assert "position 2" in records.only(verdict, "answers_finite", Outcome.FAIL).reason


def test_nan_in_a_request_that_primes_a_hit_is_corruption_too(run: Path) -> None:
    def damage(sent: Sent) -> None:
        if sent.phase == "hot-1" and sent.name == "p3" and sent.role == "prime":
            sent.error, sent.error_kind, sent.http_status = "HTTP 400: out of range", "nan", 400

    verdict = records.judged(run, arm=("simple",), on_request=damage)
    finding = records.only(verdict, "answers_finite", Outcome.FAIL)
    assert "hot-1, only on cache hits: p3: NaN" in finding.reason

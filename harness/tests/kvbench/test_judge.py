from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import records

from kvbench import record
from kvbench.checks.finding import Outcome
from kvbench.errors import ExitCode
from kvbench.judge import judge, judge_ledger, write_verdict
from kvbench.ledger import load
from kvbench.report import markdown


def test_same_record_gives_the_same_bytes(healthy_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / healthy_directory.name
    shutil.copytree(healthy_directory, copy)
    write_verdict(copy)
    first = (copy / "verdict.json").read_bytes()
    write_verdict(copy)
    assert (copy / "verdict.json").read_bytes() == first
    assert json.loads(first)["exit_code"] == ExitCode.PASS


def test_verdict_file_does_not_break_the_seal(healthy_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(healthy_directory, copy)
    write_verdict(copy)
    assert load(copy).seal.state == "whole"


def change_a_cpu_hit(directory: Path) -> float:
    """Change one log-probability of p2 in replay-1 of the tested arm, as an editor would."""
    path = directory / "journal.jsonl"
    window = next(w for w in load(directory).windows if (w.arm, w.phase) == ("simple", "replay-1"))
    lines = path.read_text().splitlines()
    line = next(r.line for r in window.requests if r.prompt_id == "replay/p2") - 1
    data = json.loads(lines[line])
    token = data["tokens"][4]
    token[1] += 0.25
    token[2][str(token[0])] = token[1]
    lines[line] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n")
    return float(token[1])


def test_changed_and_sealed_anew_fails_naming_prompt_position_and_values(
    healthy_directory: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(healthy_directory, copy)
    value = change_a_cpu_hit(copy)
    record.seal(copy)
    verdict = judge(copy)
    assert verdict.exit_code == ExitCode.FAIL
    finding = records.only(verdict, "cpu_hit_equals_gpu_hit", Outcome.FAIL)
    assert "p2 position 4" in finding.reason
    assert repr(value) in finding.reason
    assert finding.evidence[0].startswith("journal.jsonl:")


def test_changed_and_not_sealed_is_invalid(healthy_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(healthy_directory, copy)
    change_a_cpu_hit(copy)
    verdict = judge(copy)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.exit_code == ExitCode.UNPROVED


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.75, 0.99])
def test_record_cut_off_anywhere_is_judged_and_reported(
    healthy_directory: Path, tmp_path: Path, share: float
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(healthy_directory, copy)
    (copy / "seal.json").unlink()
    lines = (copy / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kept = lines[: 1 + int(share * (len(lines) - 1))]
    (copy / "journal.jsonl").write_bytes(b"".join(kept) + lines[1][:40])
    ledger = load(copy)
    verdict = judge_ledger(ledger)
    assert verdict.exit_code == ExitCode.ENVIRONMENT
    assert not [f for f in verdict.findings if f.outcome is Outcome.FAIL]
    assert "The run was interrupted" in markdown.render(ledger, verdict)

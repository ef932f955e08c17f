"""Whole comparisons of written records: exit codes, refusals, marks, determinism."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from two_runs import (
    PASSES_ON,
    TIMED,
    aborted,
    against,
    as_fake,
    both,
    changed,
    edit,
    flip_answer,
    frozen,
    interrupted,
    of_engine,
    of_machine,
    of_version,
    on_replayed,
    one_block_less,
    verdicts,
    with_times,
    without_external,
)

from kvbench.compare import deltas, render
from kvbench.compare.comparison import compare
from kvbench.compare.findings import Change
from kvbench.errors import ExitCode, UsageError
from kvbench.events import RunEnded

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write(tmp_path_factory.mktemp("compare") / "base")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compare") / "timed"
    return records.write(directory, sets=TIMED, on_event=with_times("base"))


def test_two_clean_runs_differ_in_nothing(base: Path, run: Path) -> None:
    found = against(base, records.write(run))
    assert found.exit_code == ExitCode.PASS
    assert found.is_repeat
    assert {row.change for row in found.findings} == {Change.SAME}
    assert {row.verdict for row in found.rates} == {deltas.EQUAL}
    assert all(row.between_equal == row.between_answers for row in found.identity)


def test_fault_of_the_other_run_newly_fails_by_check_arm_and_phase(base: Path, run: Path) -> None:
    found = against(base, records.write(run, on_request=on_replayed(flip_answer)))
    assert found.exit_code == ExitCode.FAIL
    assert ("tokens_equal", "simple", "reload-1") in changed(found, Change.NEWLY_FAILING)
    assert all(arm == "simple" for _, arm, _ in changed(found, Change.NEWLY_FAILING))
    failing = [row for row in found.findings if row.change is Change.NEWLY_FAILING]
    assert {row.prompts for row in failing} == {("replay/p2",)}
    unlike = [row for row in found.identity if row.between_equal != row.between_answers]
    assert [(row.phase, row.between_equal, row.between_answers) for row in unlike] == [
        ("reload-1", 3, 4)
    ]


def test_mended_fault_newly_passes(base: Path, run: Path) -> None:
    broken = records.write(run, on_request=on_replayed(flip_answer))
    found = against(broken, base)
    assert found.exit_code == ExitCode.PASS
    assert ("tokens_equal", "simple", "reload-1") in changed(found, Change.NEWLY_PASSING)
    assert not changed(found, Change.NEWLY_FAILING)


def test_fault_of_both_runs_still_fails_and_is_not_worse(run: Path) -> None:
    one = records.write(run / "one", on_request=on_replayed(flip_answer))
    two = records.write(run / "two", on_request=on_replayed(flip_answer))
    found = against(one, two)
    assert ("tokens_equal", "simple", "reload-1") in changed(found, Change.STILL_FAILING)
    assert found.exit_code == ExitCode.PASS


def test_fewer_hits_stand_with_numerator_and_denominator(base: Path, run: Path) -> None:
    found = against(base, records.write(run, on_request=on_replayed(one_block_less)))
    assert found.exit_code == ExitCode.FAIL
    (row,) = [row for row in found.rates if row.verdict == deltas.FEWER]
    assert (row.arm, row.phase, row.tier, row.difference_tokens) == (
        *("simple", "reload-1", "external"),
        -128,
    )
    assert row.base.queries == row.other.queries


def test_lost_proof_is_neither_a_fail_nor_a_success(base: Path, run: Path) -> None:
    found = against(base, records.write(run, on_request=frozen))
    assert ("witnesses_agree", "simple", "replay-1") in changed(found, Change.NEWLY_UNPROVED)
    assert not changed(found, Change.NEWLY_FAILING)
    assert {
        row.verdict for row in found.rates if row.arm == "simple" and row.difference_tokens
    } == {deltas.DOUBTFUL}
    assert found.exit_code == ExitCode.UNPROVED


def test_missing_counters_are_not_subtracted(base: Path, run: Path) -> None:
    found = against(base, records.write(run, on_event=without_external))
    external = [row for row in found.rates if row.tier == "external"]
    assert external
    assert {row.verdict for row in external} == {deltas.UNKNOWN}
    assert {row.difference_tokens for row in external} == {None}
    assert {row.other.hits for row in external} == {None}
    assert "| n/a |" in render.as_markdown(compare([base, run]))


@pytest.mark.parametrize(
    ("change", "key", "values"),
    [
        ("engine.dtype=bfloat16", "engine.dtype", "float32 / bfloat16"),
        ("engine.chunk_tokens=256", "engine.chunk_tokens", "512 / 256"),
        ("arms.simple.connector.mode=lazy", "arms.simple.connector.mode", "eager / lazy"),
        ("stages.replay.workload.prompts.seed=2", "stages.replay.workload.prompts.seed", "1 / 2"),
    ],
)
def test_unlike_runs_are_refused_by_key_with_both_values(
    base: Path, run: Path, change: str, key: str, values: str
) -> None:
    other = records.write(run, sets=(*records.SMALL, change))
    with pytest.raises(UsageError) as refused:
        compare([base, other])
    assert f"{key}: {values}" in str(refused.value)
    assert f"--allow '{key}'" in str(refused.value)
    assert refused.value.exit_code == ExitCode.USAGE


def test_declared_difference_is_recorded_and_compared(base: Path, run: Path) -> None:
    other = records.write(run, sets=(*records.SMALL, "arms.simple.connector.mode=lazy"))
    comparison = compare([base, other], ["arms.*.connector*", "engine.dtype"])
    (declared,) = [d for d in comparison.against[0].differences if d.allowed_by is not None]
    assert (declared.key, declared.base, declared.other) == (
        *("arms.simple.connector.mode", "eager"),
        "lazy",
    )
    assert comparison.unused_allow == ("engine.dtype",)
    text = render.as_markdown(comparison)
    assert "declared as what is compared (--allow 'arms.*.connector*')" in text
    assert "--allow 'engine.dtype' was declared, and nothing differs in it" in text


def test_setting_that_only_the_engine_changed_is_refused(base: Path, run: Path) -> None:
    other = records.write(run, on_event=of_engine(kv_cache_dtype="fp8"))
    kept = records.write(run.parent / "kept", on_event=of_engine(kv_cache_dtype="auto"))
    with pytest.raises(UsageError, match=r"effective\.replay\.simple\.kv_cache_dtype: auto / fp8"):
        compare([kept, other])
    told_by_one = against(base, kept)
    assert told_by_one.exit_code == ExitCode.PASS
    assert {d.kind for d in told_by_one.differences} == {"note"}


def test_another_vllm_is_named_and_not_refused(base: Path, run: Path) -> None:
    found = against(base, records.write(run, on_event=of_version("0.33.0")))
    (difference,) = found.differences
    assert difference.words == "build.vllm_version: 0.32.0 / 0.33.0"
    assert not found.is_repeat
    assert found.exit_code == ExitCode.PASS


def test_simulation_is_never_compared_with_vllm(base: Path, run: Path) -> None:
    fake = records.write(run, on_event=as_fake)
    with pytest.raises(UsageError, match="never compared"):
        compare([base, fake], ["*"])


def test_interrupted_run_shows_its_verdict_and_no_numbers(base: Path, run: Path) -> None:
    comparison = compare([base, records.write(run, ended=interrupted())])
    (found,) = comparison.against
    assert found.numbers_refused == "run B: it was interrupted"
    assert (found.rates, found.identity, found.bands, found.times) == ((), (), (), ())
    assert comparison.runs[1].verdict == "aborted"
    assert not changed(found, Change.NEWLY_FAILING)
    assert comparison.exit_code == ExitCode.UNPROVED


def test_edited_record_says_nothing(base: Path, run: Path) -> None:
    edit(records.write(run))
    comparison = compare([base, run])
    (found,) = comparison.against
    assert found.findings == ()
    assert found.numbers_refused == "run B: its record was edited after the run"
    assert comparison.runs[1].verdict == "invalid"
    assert comparison.exit_code == ExitCode.UNPROVED
    assert "NOTHING COMPARABLE" in render.as_markdown(comparison)


def test_runs_without_a_finished_phase_are_not_comparable(run: Path) -> None:
    one = records.write(run / "one", on_event=aborted)
    two = records.write(run / "two", on_event=aborted)
    found = against(one, two)
    assert found.numbers_refused == "no phase of any arm was measured in both"
    assert changed(found, Change.STILL_FAILING)
    assert found.exit_code == ExitCode.UNPROVED


def test_arm_of_one_run_only_is_named_and_left_out(base: Path, run: Path) -> None:
    found = against(base, records.write(run, arm=("simple",)))
    assert "replay / control / hot-1" in found.only_base
    assert {row.arm for row in found.rates} == {"simple"}


def test_host_copies_have_no_times(base: Path, run: Path) -> None:
    comparison = compare([base, records.write(run, on_event=with_times("x", 3.0))])
    (found,) = comparison.against
    assert found.times_refused == "mean nothing: host-memory copies"
    assert verdicts(comparison) == {found.times_refused}
    assert all(row.ratio is None and row.p_adjusted is None for row in found.times)
    assert found.exit_code == ExitCode.PASS
    assert "mean nothing" in render.as_markdown(comparison)


def test_times_of_two_clean_runs_are_inside_the_noise(timed: Path, run: Path) -> None:
    other = records.write(run, sets=TIMED, on_event=with_times("other"))
    comparison = compare([timed, other])
    assert verdicts(comparison) == {deltas.NOISE}
    assert comparison.exit_code == ExitCode.PASS
    assert "20 of 20 differences inside the noise" in render.as_markdown(comparison)


def test_slower_arm_is_found_and_the_other_is_not(timed: Path, run: Path) -> None:
    other = records.write(run, sets=TIMED, on_event=with_times("other", 1.2))
    found = against(timed, other)
    slow = {(row.arm, row.phases) for row in found.times if row.verdict == deltas.SLOWER}
    assert slow == {("simple", phase) for phase in PASSES_ON}
    assert {row.verdict for row in found.times if row.arm == "control"} == {deltas.NOISE}
    for row in (row for row in found.times if row.verdict == deltas.SLOWER):
        assert row.low is not None
        assert row.high is not None
        assert 1.15 < row.low < row.high < 1.25
    assert found.exit_code == ExitCode.FAIL
    assert compare([other, timed]).exit_code == ExitCode.PASS


def test_difference_within_that_of_repeats_is_noise(timed: Path, run: Path) -> None:
    change = both(of_version("0.33.0"), with_times("other", 1.2))
    other = records.write(run / "other", sets=TIMED, on_event=change)
    repeat = records.write(run / "again", sets=TIMED, on_event=with_times("again", 1.3))
    alone, *_ = compare([timed, other]).against
    assert alone.exit_code == ExitCode.FAIL
    with_repeat, of_repeat = compare([timed, other, repeat]).against
    verdict = {row.verdict for row in with_repeat.times if row.arm == "simple"}
    assert verdict == {deltas.FLOOR}
    assert with_repeat.exit_code == ExitCode.PASS
    assert of_repeat.is_repeat
    assert not with_repeat.is_repeat


def test_another_machine_refuses_times_and_nothing_else(timed: Path, run: Path) -> None:
    change = both(of_machine(cpu="other cpu"), with_times("other", 1.2))
    other = records.write(run, sets=TIMED, on_event=change)
    found = against(timed, other)
    assert {row.verdict for row in found.times} == {deltas.OTHER_MACHINE}
    assert {row.verdict for row in found.rates} == {deltas.EQUAL}
    assert found.exit_code == ExitCode.PASS
    assert against(timed, other, "machine.cpu").exit_code == ExitCode.FAIL


def test_few_prompts_say_how_many_would_do(run: Path) -> None:
    sets = (*records.SMALL, "arms.simple.connector.copies=device")
    one = records.write(run / "one", sets=sets, on_event=with_times("one"))
    two = records.write(run / "two", sets=sets, on_event=with_times("two", 2.0))
    comparison = compare([one, two])
    assert verdicts(comparison) == {deltas.TOO_FEW}
    (note,) = comparison.against[0].notes
    assert note.startswith("4 prompts cannot decide 20 times at an error rate of 0.01 in all: 12 ")


def test_records_elsewhere_give_the_same_bytes(base: Path, run: Path) -> None:
    other = records.write(run / "other", on_request=on_replayed(flip_answer))
    moved = run / "moved" / base.name, run / "moved" / other.name
    for source, copy in zip((base, other), moved, strict=True):
        shutil.copytree(source, copy)
    first, again = compare([base, other]), compare(list(moved))
    assert render.as_json(first) == render.as_json(again)
    assert render.as_markdown(first, every=True) == render.as_markdown(again, every=True)


CHANGES = (None, flip_answer, one_block_less)


@settings(max_examples=6, deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    prompt=st.sampled_from(("p1", "p2", "p4")),
    ended=st.sampled_from((None, interrupted())),
)
def test_run_compared_with_itself_has_no_difference(
    tmp_path_factory: pytest.TempPathFactory,
    change: records.OnRequest | None,
    prompt: str,
    ended: RunEnded | None,
) -> None:
    damage = records.leave if change is None else on_replayed(change, prompt)
    directory = tmp_path_factory.mktemp("itself") / "run"
    records.write(directory, on_request=damage, ended=ended)
    found = against(directory, directory)
    assert found.differences == ()
    assert not changed(found, Change.NEWLY_FAILING)
    assert not changed(found, Change.NEWLY_PASSING)
    assert not changed(found, Change.NEWLY_UNPROVED)
    assert {row.verdict for row in found.rates} <= {deltas.EQUAL}
    assert all(pair.base == pair.other for pair in found.bands)
    assert found.exit_code == (ExitCode.PASS if ended is None else ExitCode.UNPROVED)

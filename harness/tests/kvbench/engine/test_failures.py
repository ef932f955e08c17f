"""The class and the decisive line of a server that did not start or died."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.engine.failures import classify

GOLDEN = Path(__file__).parents[2] / "golden"

CAPTURED = {
    "unknown_flag": ("unknown_flag", "unrecognized arguments: --no-such-flag"),
    "port_in_use": ("port", "Address already in use"),
    "max_model_len": ("config", "To serve at least one request"),
    "bad_connector": ("config", "Unsupported connector type: NoSuchConnector"),
    "bad_connector_class": ("config", "Class NoSuchConnector not found"),
    "bad_connector_module": ("config", "No module named 'no_such_module'"),
    "model_missing": ("model", "/model/absent"),
    "needs_gpu": ("hardware", "only supported on CUDA-alike"),
    "numa_nodes": ("hardware", "Not enough allowed NUMA nodes"),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_log_is_classified_by_its_own_line(name: str) -> None:
    kind, words = CAPTURED[name]
    text = (GOLDEN / f"log_failed_{name}__vllm-0.32.0-cpu.txt").read_text()
    failure = classify(text, 1)
    assert failure.kind == kind
    assert words in failure.message


# Transcribed from the form in which vLLM prints these; such servers do not run on every machine.
CORE = "(EngineCore pid=77) ERROR 12-01 00:02:10 [core.py:1001] "
END = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "out_of_memory"),
        (
            (
                "ValueError: Free memory on device (1/80 GiB) on startup is less than desired GPU "
                "memory utilization (0.9, 72 GiB)."
            ),
            "out_of_memory",
        ),
        ("ValueError: No available memory for the cache blocks.", "out_of_memory"),
        (
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't "
                "allocate memory: you tried to allocate 68719476736 bytes."
            ),
            "out_of_memory",
        ),
        (
            (
                "AssertionError: Decode Context Parallelism (DCP) requires attention "
                "implementations to return the softmax LSE"
            ),
            "assertion",
        ),
        ("TimeoutError: waited 600 s for the workers", "timeout"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "hardware"),
        ("OSError: /m does not appear to have a file named config.json.", "model"),
        ("SomethingError: nobody has seen this", "unknown"),
    ],
)
def test_error_of_a_worker_is_found_above_the_last_line(line: str, kind: str) -> None:
    log = f"{CORE}Traceback (most recent call last):\n{CORE}  File x\n{CORE}{line}\n  more\n{END}\n"
    failure = classify(log, 1)
    assert (failure.kind, failure.message) == (kind, line)


def test_bare_assertion_shows_its_source_line() -> None:
    log = (
        f'{CORE}  File "a.py", line 3, in f\n{CORE}    assert tensors is not None\n'
        f"{CORE}AssertionError\n"
    )
    failure = classify(log + END, 1)
    assert failure.kind == "assertion"
    assert failure.message == "AssertionError: assert tensors is not None"


def test_only_a_wrapper_is_better_than_nothing() -> None:
    assert "Engine core initialization failed" in classify(f"INFO x\n{END}\n", 1).message


@pytest.mark.parametrize("status", [-9, 137])
def test_sigkill_without_a_word_hints_at_memory(status: int) -> None:
    failure = classify("INFO loading\n", status)
    assert failure.kind == "killed"
    assert "memory" in failure.message


def test_sigkill_after_an_error_of_no_known_class_keeps_both() -> None:
    failure = classify("OddError: odd\n", -9)
    assert failure.kind == "killed"
    assert "odd" in failure.message


@pytest.mark.parametrize(("status", "kind"), [(-4, "hardware"), (-11, "unknown"), (-7, "unknown")])
def test_other_signals_are_named(status: int, kind: str) -> None:
    failure = classify("", status)
    assert failure.kind == kind
    assert "SIG" in failure.message


def test_nothing_known_gives_the_last_line() -> None:
    assert classify("a\nb\n\n", 5).message == "b"
    assert classify("", None).message == "the log is empty"


def test_message_is_bounded() -> None:
    assert len(classify("ValueError: " + "x" * 5000, 1).message) <= 600


@pytest.mark.parametrize("name", ["none", "native", "simple_eager", "simple_lazy"])
def test_log_of_a_healthy_server_has_no_class(name: str) -> None:
    """Two of them hold the EngineDeadError that an orderly stop leaves."""
    log = (GOLDEN / f"log_healthy_{name}__vllm-0.32.0-cpu.txt").read_text()
    assert classify(log, 0).kind == "unknown"


def test_last_of_several_errors_counts() -> None:
    log = "ValueError: caught and logged\nINFO fine\nOSError: [Errno 98] Address already in use\n"
    assert classify(log, 1).kind == "port"


def test_process_that_vanished_without_a_word_hints_at_memory() -> None:
    failure = classify("INFO loading\n", None, has_vanished=True)
    assert failure.kind == "killed"
    assert "SIGKILL" in failure.message


def test_process_that_vanished_after_an_error_has_that_class() -> None:
    failure = classify("assert x\nAssertionError\n", None, has_vanished=True)
    assert (failure.kind, failure.message) == ("assertion", "AssertionError: assert x")


def test_front_that_only_says_that_its_engine_is_dead_gives_no_reason() -> None:
    log = "INFO x\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert classify(log, None, has_vanished=True).kind == "killed"
    assert classify(log, 1).kind == "unknown"

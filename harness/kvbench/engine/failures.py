"""Turns the log of a server that did not start, or died, into a class and its decisive line.

The last line of such a log is nearly never the reason: vLLM's API server ends with "Engine core
initialization failed. See root cause above", and a worker's own error stands hundreds of lines up.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal[
    "unknown_flag",
    "port",
    "out_of_memory",
    "killed",
    "assertion",
    "model",
    "config",
    "hardware",
    "timeout",
    "unknown",
]

MESSAGE_LIMIT_CHARACTERS: Final = 600
_DETAIL_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """A class of failure and the line of the log that says it."""

    kind: Kind
    message: str


# `(EngineCore pid=12) ERROR 12-01 00:02:10 [core.py:12] `, each part optional.
_PREFIX = re.compile(
    r"^(?:\([\w -]+ pid=\d+\) ?)?(?:(?:INFO|WARNING|ERROR|CRITICAL) [\d: .-]+\[[^\]]+\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?(?P<name>\w*(?:Error|Exception|Interrupt|Timeout|Failure))(?:: (?P<text>.*))?$"
)
_USAGE = re.compile(r"^[\w .\-/]+: error: (?P<text>.*)$")
# They say that something else failed.
_WRAPPERS = re.compile(
    r"Engine core initialization failed|See (?:root cause|stack trace)|EngineDeadError"
    r"|WorkerProc initialization failed|Engine process failed to start|CancelledError"
    r"|EngineCore encountered an issue"
)

# First match wins; the flags of argparse stand before everything because they end a start at once.
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("unknown_flag", re.compile(r"unrecognized arguments|ambiguous option")),
    ("port", re.compile(r"Address already in use|EADDRINUSE|Errno 98\b")),
    (
        "out_of_memory",
        re.compile(
            r"out of memory|OutOfMemory|MemoryError|bad_alloc|Cannot allocate memory|Errno 12\b"
            r"|No available memory for the cache blocks|less than desired GPU memory utilization"
            r"|can't allocate memory|[Nn]ot enough (?:available )?memory",
        ),
    ),
    (
        "hardware",
        re.compile(
            r"CUDA-alike|[Nn]o CUDA|CUDA driver|Found no NVIDIA driver|no kernel image"
            r"|not supported on (?:this|the current) (?:platform|device|CPU|GPU)"
            r"|only supported on|requires? (?:a )?(?:GPU|CUDA|compute capability|AMX|AVX)"
            r"|invalid device ordinal|Illegal instruction|NCCL|NUMA nodes"
            r"|refuses? to (?:load|run) on|CPU platform",
        ),
    ),
    (
        "model",
        re.compile(
            r"Can't load the configuration|does not appear to have a file named|Repo id must be"
            r"|Invalid repository ID|not a valid model identifier|model architectures?\b.*support"
            r"|Model architectures .* failed|RepositoryNotFound|LocalEntryNotFound|safetensors"
            r"|Cannot find any model weights|checkpoint|tokenizer|offline mode"
            r"|couldn't connect to|HFValidationError|GatedRepo",
        ),
    ),
    ("assertion", re.compile(r"^(?:\w+\.)*AssertionError")),
    (
        "config",
        re.compile(
            r"ValidationError|ValueError|NotImplementedError|error: argument|expected .*argument"
            r"|ModuleNotFoundError|ImportError|KeyError|TypeError|AttributeError|required:",
        ),
    ),
    ("timeout", re.compile(r"[Tt]imed? ?out|TimeoutError")),
)

_HINTS: Final[dict[int, str]] = {
    signal.SIGKILL: "killed by SIGKILL; nothing in the log: the kernel does that when memory runs "
    "out (look at dmesg, or at the container's limit)",
    signal.SIGSEGV: "ended by SIGSEGV (invalid memory access)",
    signal.SIGILL: "ended by SIGILL: this CPU lacks an instruction that the build uses",
    signal.SIGBUS: "ended by SIGBUS: shared memory may be full (df /dev/shm)",
}


_VANISHED: Final = (
    "it left nothing in the log, as after SIGKILL: the kernel sends that when memory runs out "
    "(look at dmesg, or at the container's limit)"
)


def classify(log_text: str, exit_status: int | None, *, has_vanished: bool = False) -> Failure:
    """Find out why a server ended; `exit_status` is negative for a signal, None while it runs.

    `has_vanished`: a process behind the server is gone, and nobody knows its exit status.

    Never raises; what nothing is known about is kind `unknown` with the last line of the log.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in log_text.splitlines()]
    decisive = _decisive(lines, is_wrapper_enough=not has_vanished)
    number = _signal_number(exit_status)
    if decisive is None and has_vanished:
        return Failure("killed", _VANISHED)
    if decisive is None:
        if number in _HINTS:
            kind: Kind = {signal.SIGKILL: "killed", signal.SIGILL: "hardware"}.get(
                signal.Signals(number), "unknown"
            )  # type: ignore[assignment]
            return Failure(kind, _HINTS[number])
        last = next((line for line in reversed(lines) if line.strip()), "the log is empty")
        return Failure("unknown", last.strip()[:MESSAGE_LIMIT_CHARACTERS])
    message = decisive[:MESSAGE_LIMIT_CHARACTERS]
    for kind, pattern in _KINDS:
        if pattern.search(decisive):
            return Failure(kind, message)
    if number == signal.SIGKILL:
        return Failure("killed", f"{_HINTS[signal.SIGKILL]}; before that: {message}")
    return Failure("unknown", message)


def _signal_number(exit_status: int | None) -> int | None:
    """Return the signal that ended a process; a shell reports it as 128 + number."""
    if exit_status is None:
        return None
    if exit_status < 0:
        return -exit_status
    return exit_status - 128 if exit_status in {137, 139, 132, 135} else None


def _decisive(lines: list[str], *, is_wrapper_enough: bool) -> str | None:
    """Return the last error of the log that does not only point at another one.

    Behind a process that vanished, one that points at another says no more than that it is gone.
    """
    wrapper = None
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        usage = _USAGE.match(line)
        if usage:
            return f"error: {usage['text']}"
        exception = _EXCEPTION.match(line)
        if exception is None:
            continue
        if _WRAPPERS.search(line):
            wrapper = wrapper or line
            continue
        if exception["text"] is None and exception["name"] != "AssertionError":
            continue
        return _with_detail(lines, number)
    return wrapper if is_wrapper_enough else None


def _with_detail(lines: list[str], number: int) -> str:
    """Join the lines that belong to an error: pydantic says what is wrong below its first line."""
    line = lines[number]
    if line.endswith("AssertionError"):
        # A bare assert: the source line above is all that there is.
        source = next(
            (above.strip() for above in reversed(lines[:number]) if "assert " in above), ""
        )
        return f"{line}: {source}" if source else line
    parts = [line]
    if "validation error" in line:
        for below in lines[number + 1 : number + 1 + _DETAIL_LINES]:
            if not below.startswith(" ") or "For further information" in below:
                break
            parts.append(below.strip())
    return " ".join(parts)

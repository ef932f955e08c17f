"""The errors that reach the person at the keyboard, each with the exit code it leads to.

A usage or environment error prints its message without a traceback; anything else is a bug in
kvbench and keeps its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to a script; a closed set."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    ENVIRONMENT = 3
    UNPROVED = 4
    INTERRUPTED = 130


class KvbenchError(Exception):
    """Base of all errors with a message for people; `exit_code` says how the process ends."""

    exit_code: ExitCode = ExitCode.ENVIRONMENT


class UsageError(KvbenchError):
    """The scenario or the command line asks for something that cannot be meant."""

    exit_code = ExitCode.USAGE


class PrerequisiteError(KvbenchError):
    """The machine lacks something; the message names it and the command that mends it."""

    exit_code = ExitCode.ENVIRONMENT


class LaunchError(KvbenchError):
    """An engine did not become ready.

    `kind` is a class from `engine.failures` (unknown flag, port, out of memory, assertion,
    timeout, ...), `log_tail` the last lines that the process wrote.
    """

    exit_code = ExitCode.ENVIRONMENT

    def __init__(
        self, message: str, *, kind: str, log_tail: str = "", exit_status: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.log_tail = log_tail
        self.exit_status = exit_status


class EngineError(KvbenchError):
    """A running engine died, hung, or is not the one that was started.

    `kind` is `died`, `hang`, `connection`, `restarted`, or the class of `engine.failures` that its
    log shows; `log_tail` the last lines that the process wrote.
    """

    exit_code = ExitCode.ENVIRONMENT

    def __init__(
        self,
        message: str,
        *,
        kind: str = "died",
        log_tail: str = "",
        exit_status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.log_tail = log_tail
        self.exit_status = exit_status


class RecordError(KvbenchError):
    """A record cannot be read: missing, of an unknown version, or not what its seal says."""

    exit_code = ExitCode.UNPROVED

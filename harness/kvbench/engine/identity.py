"""Who listens on a port, and whether that is the server that was started (fault F30).

A stranger on the port answers `/health` just as well, and would then be measured. Model name, start
time, the child's life and the owner of the listening socket must all fit.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import psutil

from kvbench.client import Client
from kvbench.engine.process import Tree
from kvbench.errors import EngineError, LaunchError
from kvbench.telemetry import metrics

CLOCK_SLACK_S: Final = 5.0
"""the kernel's start times come from the boot time, which is rounded and follows clock changes"""
_CONNECT_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """Processes that listen on a port; `pids` is None where the system does not say."""

    pids: tuple[int, ...] | None

    def words(self) -> str:
        """Name them for a person: pid and program, without arguments."""
        if not self.pids:
            return "a process that cannot be named"
        return ", ".join(f"pid {pid} ({_program(pid)})" for pid in self.pids)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the server on the port says about itself; None where it does not say."""

    model_id: str
    model_root: str | None
    max_model_len_tokens: int | None
    process_start_time_s: float | None
    listener: Literal["own", "unknown"]
    """`own`, or `unknown` where the owner of the socket could not be determined"""


def free_port(host: str) -> int:
    """Return a port that was free on `host` a moment ago."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_taken(host: str, port: int) -> bool:
    """Tell whether something already listens on the port."""
    address = "127.0.0.1" if host in {"0.0.0.0", ""} else host  # noqa: S104 - compared only
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


def listener(port: int) -> Listener:
    """Find out who listens on a TCP port."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, PermissionError):
        return Listener(None)
    found = [
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]
    if not found or None in found:
        return Listener(None)
    return Listener(tuple(sorted({pid for pid in found if pid is not None})))


def _program(pid: int) -> str:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return psutil.Process(pid).name()
    return "?"


def prove(
    client: Client, tree: Tree, *, port: int, wanted_model_id: str, started_s: float
) -> Identity:
    """Prove that the answering server is the one that was started at `started_s`.

    Raises LaunchError of kind `stranger` with what does not fit, and EngineError when the server
    does not list its models.
    """

    def refuse(reason: str) -> LaunchError:
        return LaunchError(
            f"the server at {client.url} is not the one that was started: {reason}", kind="stranger"
        )

    if tree.poll() is not None:
        raise refuse(f"ours ended with status {tree.poll()}, and something still answers")
    by_id = {model.get("id"): model for model in client.models()}
    if wanted_model_id not in by_id:
        served = ", ".join(sorted(str(name) for name in by_id))
        raise refuse(f"it serves {served or 'no model'}, not {wanted_model_id}")
    start_time_s = _process_start_time_s(client)
    if start_time_s is not None and start_time_s < started_s - CLOCK_SLACK_S:
        raise refuse(f"its process is {started_s - start_time_s:.0f} s older")
    owners = listener(port)
    if owners.pids is not None and not set(owners.pids) & set(tree.members()):
        raise refuse(f"port {port} belongs to {owners.words()}")
    model = by_id[wanted_model_id]
    return Identity(
        model_id=wanted_model_id,
        model_root=model.get("root"),
        max_model_len_tokens=model.get("max_model_len"),
        process_start_time_s=start_time_s,
        listener="unknown" if owners.pids is None else "own",
    )


def _process_start_time_s(client: Client) -> float | None:
    """Read it from `/metrics`; vLLM leaves it out when several API servers share one port."""
    try:
        page = metrics.read(client.metrics_page())
    except EngineError:
        return None
    return metrics.total(page.samples, "process_start_time_s")

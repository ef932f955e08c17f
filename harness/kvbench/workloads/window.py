"""A window: what happens between two counter snapshots of a drained engine, filed as it happens.

Counters lag an answer by some tenths of a second, so every snapshot waits until finished requests
and prompt tokens have reached what was sent (with a deadline; that it passed is recorded).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kvbench import clock
from kvbench.client import Answer, Client, Completion
from kvbench.engine.vllm import VllmServer
from kvbench.errors import EngineError
from kvbench.events import (
    MemorySampled,
    PhaseEnded,
    PhaseStarted,
    RequestDone,
    Role,
    Sample,
    Snapshot,
    WaitDone,
)
from kvbench.progress import Reporter
from kvbench.record import Record
from kvbench.telemetry import metrics, processes
from kvbench.telemetry.kv_events import KvEventStream
from kvbench.workloads.watchdog import Watchdog

Edge = Literal["before", "after"]


@dataclass(slots=True)
class Life:
    """A running server and the tools to measure it."""

    life: str
    server: VllmServer
    client: Client
    record: Record
    progress: Reporter
    drain_limit_s: float
    progress_limit_s: float
    events: KvEventStream | None = None
    """the engines' KV events, where they are published"""
    stores_unreadable: str | None = None
    """what was waited for in vain, because the engine has no series for it"""
    windows: int = 0
    """windows opened in the whole run before and in this life; ids are unique in the run"""
    prefix: str = field(default="w")

    def next_window(self) -> str:
        """A window id that no other window of the run has."""
        self.windows += 1
        return f"{self.prefix}{self.windows:03d}"


@dataclass(frozen=True, slots=True)
class Load:
    """One request to send."""

    prompt_id: str
    tokens: tuple[int, ...]
    role: Role
    new_tokens: int
    top_logprobs: int
    engine: int | None = None
    """data-parallel engine that must answer"""


class Window:
    """An open window of one life; use as a context manager.

    An exception inside the block closes the window as aborted, so that its numbers are never used.
    """

    def __init__(
        self, life: Life, *, stage: str, arm: str, phase: str, kind: str, run: int, concurrency: int
    ) -> None:
        self.life = life
        self.id = life.next_window()
        self._concurrency = concurrency
        self._latest: tuple[Sample, ...] = ()
        self._sent = 0
        self._wave = 0
        life.record.write(
            PhaseStarted(
                time_s=clock.now_s(),
                life=life.life,
                stage=stage,
                arm=arm,
                window=self.id,
                phase=phase,
                kind=kind,
                run=run,
                concurrency=concurrency,
            )
        )

    def __enter__(self) -> Window:
        with self._aborted_by_errors():
            self._snapshot("before")
        self._mark_events("before")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._mark_events("after")
        if error is not None:
            self._abort(error)
            return
        with self._aborted_by_errors():
            self._snapshot("after")
        self._file_memory()
        self.life.record.write(PhaseEnded(time_s=clock.now_s(), window=self.id, outcome="complete"))

    def _mark_events(self, edge: Edge) -> None:
        if self.life.events is not None:
            self.life.events.mark(self.id, edge)

    def _file_memory(self) -> None:
        used = processes.usage(self.life.server.members())
        self.life.record.write(
            MemorySampled(
                time_s=clock.now_s(),
                life=self.life.life,
                window=self.id,
                processes=used.processes,
                rss_bytes=used.rss_bytes,
                pss_bytes=used.pss_bytes,
                gpu_bytes=used.gpu_bytes,
            )
        )

    @contextmanager
    def _aborted_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._abort(error)
            raise

    def _abort(self, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.life.record.write(
            PhaseEnded(time_s=clock.now_s(), window=self.id, outcome="aborted", reason=reason)
        )

    def send(self, wave: Sequence[Load]) -> list[Answer]:
        """Send a wave together, file the answers, and wait until the counters have caught up.

        Raises EngineError when the engine died, or hangs (a request ran into its time limit).
        """
        requests = [self._completion(load) for load in wave]
        started = self._latest
        watchdog = Watchdog(self.life.client, self.life.progress_limit_s)
        try:
            answers = self.life.client.complete_many(
                requests, concurrency=len(requests), watch=watchdog
            )
        except EngineError as error:
            self.life.server.check_alive()  # a death explains more than a hang
            raise EngineError(
                str(error), kind=error.kind, log_tail=self.life.server.log_tail()
            ) from error
        for load, request, answer in zip(wave, requests, answers, strict=True):
            self._file(load, request, answer)
        self._wave += 1
        self.life.progress.done(sum(load.role in ("scored", "prime", "filler") for load in wave))
        self._check_engine(answers)
        page = self._settle(started, answers)
        if self._concurrency == 1:
            for request in requests:
                self._file_snapshot(f"{self.id}/{request.request_id}", "after", page)
        else:
            # The next wave waits for its own requests, not for those of this one again.
            self._latest = page.samples
        return answers

    def settle(self, finished: int, prompt_tokens: int) -> None:
        """Wait until the counters show load that somebody else sent since the last snapshot.

        The snapshot filed then (`<window>/load`) parts that load from what is sent after it.
        """
        page = self._wait_for_counters(self._latest, finished, prompt_tokens)
        self._wave += 1
        self._file_snapshot(f"{self.id}/load", "after", page)

    def request_mark(self, prompt_id: str) -> str:
        """What the ids of this window's requests for a prompt have in common, and no others."""
        return f"{self.id}-{prompt_id.replace('/', '.')}-"

    def cached_split(self) -> tuple[float | None, float | None]:
        """Local and external hit tokens since the window's previous snapshot, or None if unread."""
        return self._last_local, self._last_external

    def waited(self, condition: str, *, reached: bool, waited_s: float, detail: str = "") -> None:
        """File a condition that was waited for."""
        self.life.record.write(
            WaitDone(
                time_s=clock.now_s(),
                life=self.life.life,
                window=self.id,
                condition=condition,
                reached=reached,
                waited_s=waited_s,
                detail=detail,
            )
        )

    _last_local: float | None = None
    _last_external: float | None = None

    def _completion(self, load: Load) -> Completion:
        self._sent += 1
        return Completion(
            prompt=load.tokens,
            request_id=f"{self.request_mark(load.prompt_id)}{self._sent}",
            new_tokens=load.new_tokens,
            top_logprobs=load.top_logprobs,
            data_parallel_rank=load.engine,
        )

    def _file(self, load: Load, request: Completion, answer: Answer) -> None:
        self.life.record.write(
            RequestDone(
                time_s=clock.now_s(),
                life=self.life.life,
                window=self.id,
                request_id=request.request_id,
                prompt_id=load.prompt_id,
                role=load.role,
                wave=self._wave,
                sent_s=answer.sent_s,
                ttft_s=answer.ttft_s,
                latency_s=answer.latency_s,
                http_status=answer.http_status,
                error=answer.error,
                error_kind=answer.error_kind,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                completion_tokens=answer.completion_tokens,
                finish_reason=answer.finish_reason,
                tokens=answer.tokens,
                engine=load.engine,
            )
        )

    def _check_engine(self, answers: Sequence[Answer]) -> None:
        lost = {a.error_kind: a.error for a in answers if a.error_kind in ("timeout", "connection")}
        if lost or any((answer.http_status or 0) >= 500 for answer in answers):
            self.life.server.check_alive()
        if "timeout" in lost:
            raise EngineError(
                f"the engine no longer answers ({lost['timeout']}) though its process is alive: "
                "a hang",
                kind="hang",
                log_tail=self.life.server.log_tail(),
            )
        if "connection" in lost:
            raise EngineError(
                f"the engine dropped a request ({lost['connection']}) though its process is alive",
                kind="connection",
                log_tail=self.life.server.log_tail(),
            )

    def _settle(self, since: tuple[Sample, ...], answers: Sequence[Answer]) -> metrics.Page:
        finished = [answer for answer in answers if answer.error is None]
        tokens = sum(answer.prompt_tokens or 0 for answer in finished)
        return self._wait_for_counters(since, len(finished), tokens)

    def _wait_for_counters(
        self, since: tuple[Sample, ...], finished: int, prompt_tokens: int
    ) -> metrics.Page:
        settled = metrics.settle(
            self,
            finished=finished,
            prompt_tokens=prompt_tokens,
            since=since,
            limit_s=self.life.drain_limit_s,
        )
        if not settled.reached:
            self.waited(
                "counters reach what was sent",
                reached=False,
                waited_s=settled.waited_s,
                detail=settled.detail,
            )
        return metrics.Page(settled.samples, settled.missing)

    def metrics_page(self) -> str:
        """Fetch `/metrics`; raises EngineError, with the better reason where the engine died."""
        try:
            return self.life.client.metrics_page()
        except EngineError:
            self.life.server.check_alive()
            raise

    def _snapshot(self, edge: Edge) -> None:
        """Open or close the window: the whole page becomes an artifact."""
        text = self.metrics_page()
        path = self.life.record.artifact(f"metrics/{self.id}-{edge}.txt.gz")
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        self._file_snapshot(self.id, edge, metrics.read(text), self.life.record.relative(path))

    def _file_snapshot(
        self, window: str, edge: Edge, read: metrics.Page, stored: str | None = None
    ) -> None:
        if self._latest:
            self._last_local = metrics.delta(self._latest, read.samples, "local_hits")
            self._last_external = metrics.delta(self._latest, read.samples, "external_hits")
        self._latest = read.samples
        self.life.record.write(
            Snapshot(
                time_s=clock.now_s(),
                life=self.life.life,
                window=window,
                edge=edge,
                samples=read.samples,
                missing=read.missing,
                page=stored,
            )
        )

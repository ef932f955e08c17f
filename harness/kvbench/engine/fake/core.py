"""One engine core of the fake: a queue, vLLM's steps, two cache tiers and the fake model.

Follows EngineCore.step (vLLM 0.32): schedule, store, compute, sample, finish, see transfers. The
order of small things inside a step decides which block is evicted next, and so every later hit;
`kvbench.oracle.engine` has the same order for one request alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kvbench.engine.fake.allocation import Allocator
from kvbench.engine.fake.answers import AnswerStore
from kvbench.engine.fake.counters import Counters
from kvbench.engine.fake.events import EventLog
from kvbench.engine.fake.execution import Executor
from kvbench.engine.fake.faults.base import ActiveFaults, EngineDeath
from kvbench.engine.fake.model import FakeModel
from kvbench.engine.fake.pools import DevicePool
from kvbench.engine.fake.request import EngineDeadError, FakeRequest
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.scheduler import Scheduler, Step
from kvbench.engine.fake.settings import FakeSettings
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tiers import make_tier

SLEEP_FROM_S = 0.001
"""shorter times are not slept but added up: timers are not that precise"""
HANG_POLL_S = 0.02


class EngineCore:
    """One data-parallel engine. Everything happens in the event loop that runs `run`."""

    def __init__(
        self,
        index: int,
        settings: FakeSettings,
        faults: ActiveFaults,
        on_events: Callable[[list[dict[str, Any]]], None] | None,
    ) -> None:
        log = EventLog() if on_events is not None else None
        self.is_dead = False
        self._site = Site(index, settings, faults, log)
        self._on_events = on_events
        self._device = DevicePool(settings.gpu_blocks, log)
        self.tier = make_tier(self._site, self._device)
        self._allocator = Allocator(self._site, self._device)
        self._scheduler = Scheduler(self._site, self._allocator, self.tier)
        self._model = FakeModel(settings)
        self._executor = Executor(self._site, self._device, self.tier, self._model)
        self._answers = AnswerStore()
        self._open: dict[str, Run] = {}
        self._has_finished = False
        self._error = ""
        self._wake = asyncio.Event()

    @property
    def counters(self) -> Counters:
        """Totals and gauges of this engine; changed before a request's future resolves."""
        return self._site.counters

    @property
    def is_idle(self) -> bool:
        """True when nothing runs, waits or is on its way to the host."""
        return not self._has_work()

    @property
    def host_content_blocks(self) -> int:
        """Blocks of the host tier that hold something (its memory, for faults that exceed it)."""
        return self.tier.content_blocks()

    def submit(self, request: FakeRequest) -> asyncio.Future[None]:
        """Queues a request; the future resolves when it is finished or aborted.

        Raises EngineDeadError when the core is dead, ValueError for a request that is empty, open
        already, or too long for the device pool.
        """
        if self.is_dead:
            raise EngineDeadError(self._error)
        faults = self._site.faults
        for fault in faults if faults else ():
            request.prompt = fault.on_prompt(request.request_id, request.prompt)
        if not request.prompt or request.new_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one new token")
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id} is open already")
        needed = self._site.layout.pool_blocks(len(request.prompt) + request.new_tokens - 1)
        if needed > self._device.blocks - 1:
            raise ValueError(
                f"the request needs {needed} blocks, the pool has {self._device.blocks - 1}"
            )
        request.done = asyncio.get_running_loop().create_future()
        repeats = [fault.answers_from_cache(request.request_id) for fault in faults]
        if any(repeats) and self._answers.repeat(request):
            request.done.set_result(None)
            return request.done
        run = Run(request, self._site.layout)
        self._open[request.request_id] = run
        self._scheduler.waiting.append(run)
        self._site.counters.waiting += 1
        self._wake.set()
        return request.done

    def abort(self, request_id: str) -> None:
        """Ends a request early; one that is in a step or a load leaves at the end of it."""
        run = self._open.get(request_id)
        if run is None:
            return
        run.is_aborted = True
        if run in self._scheduler.waiting:
            self._scheduler.waiting.remove(run)
            self._leave(run, "abort")
        self._wake.set()

    def reset(self, *, external: bool) -> bool:
        """Clears the device's cache, with `external` also the host tier's.

        False, and nothing is cleared, while a request or a store holds blocks
        (BlockPool.reset_prefix_cache). The event comes with the next step.
        """
        if self._device.held_blocks:
            return False
        self._device.clear()
        if external and (not self._site.faults or self._site.clears_host()):
            self.tier.clear()
        return True

    def die(self, error: str) -> None:
        """Fails all open requests; nothing is taken from here on."""
        self.is_dead = True
        self._error = error
        open_runs, self._open = self._open, {}
        for run in open_runs.values():
            if run.request.done is not None and not run.request.done.done():
                run.request.done.set_exception(EngineDeadError(error))
        self._wake.set()

    async def run(self) -> None:
        """Steps until cancelled. Raises EngineDeath where a fault ends the engine."""
        clock = asyncio.get_running_loop().time
        self._site.now_s = clock()
        try:
            while True:
                if not self._has_work():
                    self._wake.clear()
                    await self._wake.wait()
                    self._site.now_s = max(self._site.now_s, clock())
                await self._step()
        except EngineDeath as death:
            self.die(str(death))
            raise

    def _has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(
            scheduler.waiting
            or scheduler.running
            or scheduler.loading
            or self._has_finished
            or self.tier.has_pending()
        )

    async def _step(self) -> None:
        if self._site.faults and not self._site.may_step(list(self._open)):
            self._site.counters.running, self._site.counters.waiting = 0, len(self._open)
            await asyncio.sleep(HANG_POLL_S)
            return
        step = self._scheduler.schedule()
        self._has_finished = False
        self.tier.schedule(step.scheduled)
        for run in step.loads:
            self._executor.load(run, len(step.loads))
            self._start_load(run)
        for run, tokens in step.scheduled:
            self._executor.compute(run, run.computed_tokens + tokens)
        self.tier.copy()
        self._update_gauges()
        await self._pass_time(step)
        self._deliver(step)
        self._end_loads()
        self.tier.end_step()
        self._update_gauges()
        self._publish()

    def _start_load(self, run: Run) -> None:
        assert run.found is not None
        settings = self._site.settings
        moved = run.found.blocks * settings.block_bytes
        run.load_due_s = self._site.now_s + moved / settings.load_bytes_per_s

    async def _pass_time(self, step: Step) -> None:
        """Lets the step take its time; an idle one lasts until a transfer is complete."""
        site, settings = self._site, self._site.settings
        if step.scheduled:
            decoding = [t == 1 and not run.is_prefilling for run, t in step.scheduled]
            computed = sum(tokens for _, tokens in step.scheduled) - sum(decoding)
            site.now_s += computed / settings.prefill_tokens_per_s
            site.now_s += 1 / settings.decode_tokens_per_s if any(decoding) else 0.0
        else:
            dues = [run.load_due_s for run in self._scheduler.loading if run.found is not None]
            if (due_s := self.tier.next_due_s()) is not None:
                dues.append(due_s)
            if dues:
                site.now_s = max(site.now_s, await self._wait_until(min(dues)))
                return
        now_s = asyncio.get_running_loop().time()
        ahead_s = site.now_s - now_s
        await asyncio.sleep(ahead_s if ahead_s > SLEEP_FROM_S else 0)
        site.now_s = max(site.now_s, now_s - 2 * SLEEP_FROM_S)

    async def _wait_until(self, due_s: float) -> float:
        """Waits in an idle step; a new request ends the wait. Returns the time that it is now."""
        now_s = asyncio.get_running_loop().time()
        ahead_s = due_s - now_s
        if ahead_s <= SLEEP_FROM_S:
            await asyncio.sleep(0)
            return due_s
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), ahead_s)
        except TimeoutError:
            return due_s
        return min(asyncio.get_running_loop().time(), due_s)

    def _deliver(self, step: Step) -> None:
        """Samples where a prompt or a step is complete, and lets finished requests go."""
        batch = len(step.scheduled)
        finished: list[Run] = []
        for run, tokens in step.scheduled:
            run.computed_tokens += tokens
            is_complete = run.computed_tokens == len(run.tokens)
            if run.is_aborted or (is_complete and self._sample(run, batch)):
                finished.append(run)
        if not finished:
            return
        gone = set(map(id, finished))
        self._scheduler.running = [r for r in self._scheduler.running if id(r) not in gone]
        for run in finished:
            self.tier.finish(run)
            self._allocator.release(run)
            self._leave(run, "abort" if run.is_aborted else "length")

    def _sample(self, run: Run, batch: int) -> bool:
        """Adds a token to the answer; True when it was the last."""
        request, site = run.request, self._site
        token = self._executor.sample(run, batch)
        request.output.append(token)
        if not run.is_counted:
            run.is_counted = True
            cached = request.cached_tokens
            site.count("prompt_tokens", run.prompt_tokens, run.request_id)
            site.count("prompt_tokens_cached", cached, run.request_id)
            site.count("computed_tokens", run.prompt_tokens - cached, run.request_id)
        site.count("generation_tokens", 1, run.request_id)
        is_last = len(request.output) >= request.new_tokens
        if not is_last:
            self._executor.append(run, token.token_id)
        if request.on_token is not None:
            request.on_token(token)
        return is_last

    def _leave(self, run: Run, reason: str) -> None:
        self._has_finished = True
        self._open.pop(run.request_id, None)
        request = run.request
        request.finish_reason = reason
        self._site.count_finished(reason, run.request_id)
        if reason != "abort":
            self._answers.keep(request)
        self._update_gauges()
        if request.done is not None and not request.done.done():
            request.done.set_result(None)

    def _end_loads(self) -> None:
        site = self._site
        for run in list(self._scheduler.loading):
            found = run.found
            if found is None or run.load_due_s > site.now_s:
                continue
            run.found = None
            self.tier.end_load(run, found)
            moved = found.blocks * site.settings.block_bytes
            site.count("load_bytes", moved, run.request_id)
            self._allocator.label(run, run.local_tokens + run.external_tokens)
            if run.is_aborted:
                self._scheduler.loading.remove(run)
                self.tier.finish(run)
                self._allocator.release(run)
                self._leave(run, "abort")

    def _update_gauges(self) -> None:
        counters = self._site.counters
        counters.running = len(self._scheduler.running)
        counters.waiting = self._scheduler.queued()
        counters.usage = self._device.usage
        counters.pending_store_blocks = self.tier.pending_blocks()
        counters.used_host_blocks = self.tier.used_blocks()

    def _publish(self) -> None:
        if self._site.log is not None and self._on_events is not None:
            events = self._site.log.take()
            if events:
                self._on_events(events)

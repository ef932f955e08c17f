"""vLLM V1's scheduler in small: who runs in the next step, with how many tokens and which blocks.

Follows Scheduler.schedule and _preempt_request (vLLM 0.32): running requests first, in order of
admission, the tail of them preempted where blocks are short; then requests whose load has arrived;
then the queue, as far as the chunk, `max_num_seqs` and the pool allow. A request that loads has
blocks and no tokens. The trap: nothing new is admitted in a step that preempted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvbench.engine.fake.allocation import Allocator
from kvbench.engine.fake.hybrid import Hit
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import Found, Tier, nothing_found


@dataclass(slots=True)
class Step:
    """What one step does."""

    scheduled: list[tuple[Run, int]] = field(default_factory=list)
    """requests and the tokens that they compute"""
    loads: list[Run] = field(default_factory=list)
    """loads that start"""
    preempted: bool = False


class Scheduler:
    """Queues and admission of one engine core."""

    def __init__(self, site: Site, allocator: Allocator, tier: Tier) -> None:
        self._site = site
        self._allocator = allocator
        self._tier = tier
        self._settings = site.settings
        self._has_connector = site.settings.tier != "none"
        self.waiting: deque[Run] = deque()
        self.loading: list[Run] = []
        self.running: list[Run] = []

    def schedule(self) -> Step:
        """Chooses the next step and takes its blocks."""
        step = Step()
        budget = self._schedule_running(step, self._settings.chunk_tokens)
        if not step.preempted:
            budget = self._schedule_loaded(step, budget)
            self._schedule_waiting(step, budget)
        self._site.in_flight = len(self.running) + len(self.loading)
        return step

    def queued(self) -> int:
        """Requests that wait, loads included (vLLM's gauge)."""
        return len(self.waiting) + len(self.loading)

    def _schedule_running(self, step: Step, budget: int) -> int:
        position = 0
        while position < len(self.running) and budget > 0:
            run = self.running[position]
            tokens = min(len(run.tokens) - run.computed_tokens, budget)
            reached = run.computed_tokens + tokens
            while not self._allocator.extend(run, reached):
                step.preempted = True
                if self._preempt_last() is run:
                    return budget
            self._allocator.label(run, reached)
            step.scheduled.append((run, tokens))
            budget -= tokens
            position += 1
        return budget

    def _preempt_last(self) -> Run:
        victim = self.running.pop()
        self._allocator.release(victim)
        victim.start_over()
        self._site.count("preemptions", 1, victim.request_id)
        self.waiting.appendleft(victim)
        return victim

    def _schedule_loaded(self, step: Step, budget: int) -> int:
        """Requests whose blocks have arrived; a prompt that is there whole computes one token."""
        for run in list(self.loading):
            if budget <= 0 or len(self.running) >= self._settings.max_num_seqs:
                break
            if run.found is not None:
                continue
            run.computed_tokens = min(run.computed_tokens, len(run.tokens) - 1)
            tokens = min(len(run.tokens) - run.computed_tokens, budget)
            reached = run.computed_tokens + tokens
            if not self._allocator.extend(run, reached):
                break
            self._allocator.label(run, reached)
            self.loading.remove(run)
            self._run(step, run, tokens)
            budget -= tokens
        return budget

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0:
            if len(self.running) >= self._settings.max_num_seqs:
                return
            run = self.waiting[0]
            hit = self._allocator.find_local(run)
            found = self._look_up(run, hit.tokens)
            cached = hit.tokens + found.tokens
            is_load = found.tokens > 0
            tokens = 0 if is_load else min(len(run.tokens) - cached, budget)
            reserved = self._reserved(step) if is_load else 0
            if not self._allocator.admit(run, hit, found, cached + tokens, reserved):
                self._tier.let_go(found)
                if self.running or self.loading or self._tier.has_pending():
                    return
                # Nothing will come back: a hit that holds more than a cold run is given up.
                hit, found = Hit(0, [[] for _ in run.tables]), nothing_found(self._site.layout)
                is_load, tokens = False, min(len(run.tokens), budget)
                if not self._allocator.admit(run, hit, found, tokens, 0):
                    return
            cached = hit.tokens + found.tokens
            self.waiting.popleft()
            self._admitted(run, hit, found)
            if is_load:
                run.found = found
                self._tier.start_load(run, found)
                self.loading.append(run)
                step.loads.append(run)
            else:
                self._allocator.label(run, cached + tokens)
                self._run(step, run, tokens)
                budget -= tokens

    def _look_up(self, run: Run, local_tokens: int) -> Found:
        """What the tier claims to have behind the local hit."""
        align = self._site.layout.alignment_tokens
        found = self._tier.find(run, local_tokens, len(run.tokens))
        if not self._has_connector or not self._site.faults:
            return found
        blocks = found.tokens // align
        available = run.prompt_tokens // align - local_tokens // align
        claimed = self._site.lookup(run.request_id, blocks, max(available, blocks))
        if claimed < blocks:
            self._tier.let_go(found)
            found = self._tier.find(run, local_tokens, local_tokens + claimed * align)
        elif claimed > blocks:
            found.claim(self._site.layout, run, local_tokens, claimed * align)
        return found

    def _reserved(self, step: Step) -> int:
        """Blocks that prefills under way still need: a load must not take them."""
        unfinished = [
            run
            for run, tokens in step.scheduled
            if run.is_prefilling and run.computed_tokens + tokens < len(run.tokens)
        ]
        return sum(self._allocator.remaining_blocks(run) for run in [*unfinished, *self.loading])

    def _run(self, step: Step, run: Run, tokens: int) -> None:
        self.running.append(run)
        step.scheduled.append((run, tokens))

    def _admitted(self, run: Run, hit: Hit, found: Found) -> None:
        for fault in self._site.faults if self._site.faults else ():
            fault.on_admitted(run.request_id, self._site.index)
        run.local_tokens, run.external_tokens = hit.tokens, found.tokens
        run.computed_tokens = hit.tokens + found.tokens
        self._allocator.label(run, hit.tokens, from_cache=True)
        if run.preemptions:
            return  # vLLM counts repeated lookups of preempted requests apart
        request, count = run.request, self._site.count
        request.cached_tokens = run.computed_tokens
        run.prefill_tokens = run.prompt_tokens - min(run.computed_tokens, run.prompt_tokens - 1)
        count("local_queries", run.prompt_tokens, run.request_id)
        count("local_hits", hit.tokens, run.request_id)
        if self._has_connector:
            self._site.counters.has_external_activity = True
            count("external_queries", run.prompt_tokens - hit.tokens, run.request_id)
            count("external_hits", found.tokens, run.request_id)

"""The oracle: replays planned requests and predicts what each hits, exactly where that is possible.

The trap it guards against is the claim "greater than zero": a connector that stores half of the
blocks still hits something. An exact expectation fails such a run; a range says what is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvbench.oracle.bounds import (
    NOTHING,
    Content,
    HitSpan,
    bound_hit,
    content_of,
    leading_run,
)
from kvbench.oracle.chain import Chains
from kvbench.oracle.engine import Engine, is_modelled
from kvbench.oracle.geometry import (
    CacheGeometry,
    Expected,
    TierModel,
    TokenRange,
    TransferTiming,
    max_hit_tokens,
)
from kvbench.oracle.knowledge import Knowledge
from kvbench.oracle.work import Hit

NOTE_ORDER = "eviction order unknown since requests ran together: range"
NOTE_TOGETHER = "requests run together: range"
NOTE_TIMING = "store times on this device are not known: range over several"
NOTE_HYBRID = "hybrid: a hit needs every group, the first repeat may miss"
NOTE_GEOMETRY = "geometry is not modelled block by block: range"
NOTE_UNKNOWN_TIER = "unknown connector: range"
NOTE_HOST_SIZE = "size of the host pool is not known: range"

# Further steps that a store may take; None outlasts its request. A sample, not a proof.
OVERLAPPED_STORE_STEPS: tuple[int | None, ...] = (0, 1, 2, 4, None)


@dataclass(frozen=True, slots=True)
class Planned:
    """A request in the oracle's terms."""

    keys: tuple[int, ...]
    prompt_tokens: int
    total_tokens: int
    longest_tokens: int


class Oracle:
    """A model of one engine's cache, cold at first; each call advances it.

    Exact for requests that run alone with a single full-attention group and a known tier. `timing`
    says when a store is seen as complete: "immediate" (in its own step: the CPU test backend) or
    "overlapped" (a GPU copies while later steps run; hits under pressure become ranges).
    """

    def __init__(
        self, geometry: CacheGeometry, tier: TierModel, *, timing: TransferTiming = "immediate"
    ) -> None:
        self._geometry = geometry
        self._tier = tier
        self._chains = Chains(geometry.hash_block_tokens)
        self._gpu = Knowledge()
        self._host = Knowledge()
        self._engines: list[Engine] = []
        if is_modelled(geometry, tier):
            has_stores = tier.kind in ("simple_eager", "simple_lazy")
            is_sampled = timing == "overlapped" and has_stores
            delays = OVERLAPPED_STORE_STEPS if is_sampled else (0,)
            self._engines = [Engine(geometry, tier, store_steps=steps) for steps in delays]

    def request(
        self,
        prompt: Sequence[int],
        *,
        new_tokens: int,
        salt: str = "",
        answer: Sequence[int] | None = None,
    ) -> Expected:
        """One request that runs alone, from an idle engine to an idle engine.

        `new_tokens` is the exact number of sampled tokens (so the run must ignore the end token).
        `answer` gives the sampled tokens when they are known; needed only if a later prompt repeats
        them (a conversation). Raises ValueError for a request that the GPU pool cannot hold.
        """
        planned = self._plan(prompt, new_tokens=new_tokens, salt=salt, answer=answer)
        if self._is_exact():
            expected = self._expect_hull(planned, self._replay(planned))
        else:
            gpu, host = self._gpu_content(), self._host_content()
            span = bound_hit(
                self._local_keys(planned), self._external_keys(planned), gpu=gpu, host=host
            )
            expected = self._expect_span(planned, span, NOTE_ORDER)
            self._book_alone(planned, gpu, host, local_blocks=span.local.low)
            self._replay(planned)
        self._remember([planned])
        return expected

    def concurrent(
        self, prompts: Sequence[Sequence[int]], *, new_tokens: int, concurrency: int
    ) -> list[Expected]:
        """A batch of requests, sent in order with at most `concurrency` outstanding.

        Exact where no order of events can change the hit; a range elsewhere.
        """
        if concurrency <= 1 or len(prompts) <= 1:
            return [self.request(prompt, new_tokens=new_tokens) for prompt in prompts]
        batch = [self._plan(p, new_tokens=new_tokens, salt="", answer=None) for p in prompts]
        gpu, host = self._gpu_content(), self._host_content()
        gpu_safe = self._book_batch(batch, gpu, host)
        gpu = gpu if gpu_safe else gpu.without_certainty()
        host = host if self._host.is_known else host.without_certainty()
        users = Counter(key for planned in batch for key in planned.keys)
        shared = {key for key, count in users.items() if count > 1}
        stored = frozenset() if self._tier.kind == "none" else shared
        sent: Counter[int] = Counter()
        expected = []
        for planned in batch:
            # At most concurrency - 1 others are outstanding when a request is sent. So of
            # `concurrency` earlier requests that share a prefix one is done and left it cached.
            settled = {key for key in planned.keys if sent[key] >= concurrency}
            local_keys = self._local_keys(planned)
            span = bound_hit(
                local_keys,
                self._external_keys(planned),
                gpu=gpu.for_request(planned.keys, more=shared),
                host=host.for_request(planned.keys, more=stored),
                local_floor=leading_run(local_keys, settled) if gpu_safe else 0,
            )
            expected.append(self._expect_span(planned, span, NOTE_TOGETHER))
            sent.update(planned.keys)
        for planned in batch:
            self._replay(planned)
        self._remember(batch)
        return expected

    def reset(self, *, external: bool) -> None:
        """`POST /reset_prefix_cache`, and with `external` also `?reset_external=true`.

        Without `external` the tier keeps every block and its order; the next request loads them.
        Only for a reset that answered success: what a refused one cleared is not defined.
        """
        for engine in self._engines:
            engine.reset(external=external)
        self._gpu.restart()
        # An unknown connector may answer success and keep its blocks (ExampleConnector does).
        if external and self._tier.kind != "unknown":
            self._host.restart()

    def _plan(
        self, prompt: Sequence[int], *, new_tokens: int, salt: str, answer: Sequence[int] | None
    ) -> Planned:
        if not prompt or new_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one new token")
        total = len(prompt) + new_tokens - 1
        geometry = self._geometry
        if self._engines and self._blocks(total) > geometry.gpu_blocks - 1:
            raise ValueError(
                f"{total} tokens need {self._blocks(total)} GPU blocks, "
                f"the pool has {geometry.gpu_blocks - 1}"
            )
        keys = self._chains.keys(prompt, new_tokens=new_tokens, salt=salt, answer=answer)
        longest = max_hit_tokens(len(prompt), geometry, self._tier)
        return Planned(tuple(keys), len(prompt), total, longest)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._geometry.hash_block_tokens)

    def _is_exact(self) -> bool:
        has_host = self._tier.kind != "none"
        return bool(self._engines) and self._gpu.is_exact and (self._host.is_exact or not has_host)

    def _replay(self, planned: Planned) -> list[Hit]:
        return [
            engine.run(
                planned.keys,
                prompt_tokens=planned.prompt_tokens,
                total_tokens=planned.total_tokens,
            )
            for engine in self._engines
        ]

    # What the pools hold

    def _gpu_content(self) -> Content:
        if not self._engines or not self._gpu.is_known:
            return Content(frozenset(), self._gpu.seen)
        return content_of([engine.gpu.contents() for engine in self._engines])

    def _host_content(self) -> Content:
        if self._tier.kind == "none":
            return NOTHING
        if not self._has_tracked_host() or not self._host.is_known:
            return Content(frozenset(), self._host.seen)
        return content_of([engine.tier.contents() for engine in self._engines])

    def _has_tracked_host(self) -> bool:
        """True when the host's content can be known without the order on the GPU.

        Lazy stores follow that order; chunks of several blocks are not looked up block by block.
        """
        kind = self._tier.kind
        is_plain_native = kind == "native" and self._tier.chunk_blocks == 1
        return bool(self._engines) and (kind == "simple_eager" or is_plain_native)

    def _host_blank(self) -> int:
        return min((engine.tier.blank_blocks() for engine in self._engines), default=0)

    def _gpu_blank(self) -> int:
        return min((engine.gpu.blank_blocks() for engine in self._engines), default=0)

    def _local_keys(self, planned: Planned) -> tuple[int, ...]:
        return planned.keys[: (planned.prompt_tokens - 1) // self._geometry.hash_block_tokens]

    def _external_keys(self, planned: Planned) -> tuple[int, ...]:
        return planned.keys[: planned.longest_tokens // self._geometry.hash_block_tokens]

    # What is still known afterwards

    def _remember(self, batch: Sequence[Planned]) -> None:
        for planned in batch:
            self._gpu.seen.update(planned.keys)
            self._host.seen.update(planned.keys)

    def _book_alone(
        self, planned: Planned, gpu: Content, host: Content, *, local_blocks: int
    ) -> None:
        """Books a request whose hit or effect on the order is not exact; before its replay."""
        if self._tier.kind in ("simple_eager", "simple_lazy"):
            # What a store holds, and so the order on the GPU, depends on the host's content.
            self._gpu.forget_order(self._gpu_blank())
        if not self._gpu.is_ordered:
            taken = self._blocks(planned.total_tokens) - local_blocks
            self._gpu.spend(taken, self._returned(planned))
        self._book_host([planned], gpu, host)

    def _book_batch(self, batch: Sequence[Planned], gpu: Content, host: Content) -> bool:
        """Books a batch's blocks; true when no GPU block can have been evicted."""
        self._gpu.forget_order(self._gpu_blank())
        hits = (leading_run(self._local_keys(p), gpu.surely) for p in batch)
        taken = sum(self._blocks(p.total_tokens) for p in batch) - sum(hits)
        self._gpu.spend(taken, sum(self._returned(p) for p in batch))
        self._book_host(batch, gpu, host)
        return bool(self._engines) and self._gpu.is_known

    def _book_host(self, batch: Sequence[Planned], gpu: Content, host: Content) -> None:
        self._host.forget_order(self._host_blank())
        if not self._has_tracked_host():
            self._host.is_known = False
            return
        stored = 0
        for planned in batch:
            keys = frozenset(planned.keys)
            if self._tier.kind == "native":
                prompt_blocks = planned.prompt_tokens // self._geometry.hash_block_tokens
                keys = frozenset(planned.keys[:prompt_blocks])
                # Behind a load, chunks before it are not offered: whether one that only the GPU
                # has is stored depends on the hit.
                self._host.is_known &= (keys & gpu.perhaps) <= host.surely
            stored += len(keys - host.surely)
        self._host.spend(stored, 0)

    def _returned(self, planned: Planned) -> int:
        """A last block that is not full comes back blank."""
        return 1 if planned.total_tokens % self._geometry.hash_block_tokens else 0

    # Expectations

    def _expect_hull(self, planned: Planned, hits: Sequence[Hit]) -> Expected:
        size = self._geometry.hash_block_tokens
        local = [hit.local_blocks * size for hit in hits]
        external = [hit.external_blocks * size for hit in hits]
        cached = [sum(pair) for pair in zip(local, external, strict=True)]
        expected = Expected(
            local=TokenRange(min(local), max(local)),
            external=TokenRange(min(external), max(external)),
            cached=TokenRange(min(cached), max(cached)),
            max_hit_tokens=planned.longest_tokens,
        )
        return expected if expected.is_exact else replace(expected, notes=(NOTE_TIMING,))

    def _expect_span(self, planned: Planned, span: HitSpan, reason: str) -> Expected:
        local, external, cached = span.in_tokens(
            self._geometry.hash_block_tokens,
            self._geometry.hit_alignment_tokens,
            planned.longest_tokens,
        )
        expected = Expected(local, external, cached, planned.longest_tokens)
        return expected if expected.is_exact else replace(expected, notes=self._reasons(reason))

    def _reasons(self, reason: str) -> tuple[str, ...]:
        if self._engines:
            return (reason,)
        notes = []
        if len(self._geometry.groups) > 1:
            notes.append(NOTE_HYBRID)
        elif not self._geometry.is_single_full_attention:
            notes.append(NOTE_GEOMETRY)
        if self._tier.kind == "unknown":
            notes.append(NOTE_UNKNOWN_TIER)
        elif self._tier.kind != "none" and self._tier.host_blocks is None:
            notes.append(NOTE_HOST_SIZE)
        return tuple(notes)

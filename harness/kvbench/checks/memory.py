"""Does the server's memory stay inside what its host pool may take (fault F14)?

A pool may be taken page by page, so growth up to its capacity is warm-up. What grows beyond that,
with a margin for the server itself, is a pool without a limit. Where the system tells the
proportional set size, that is used: resident memory counts shared pages once per process.
"""

from __future__ import annotations

from kvbench.checks.common import SETUP, What, about_arm
from kvbench.checks.finding import Finding, Outcome
from kvbench.events import MemorySampled
from kvbench.ledger.facts import Ledger, Life
from kvbench.scenario.engines import parse_engine

CHECK = "memory_bounded"
POOL_FACTOR = 1.25
"""Page tables, block tables and copies in flight come on top of the blocks themselves."""
MARGIN_BYTES = 512 * 1024**2
"""What a healthy server may grow by from its first to its last window: allocator arenas, compiled
code, workspaces of longer prompts. 26 MiB were seen in the quickstart on vLLM's CPU build."""


def allowed_growth_bytes(pool_bytes: int) -> int:
    """What a tree may grow by after its first window with a host pool of this size."""
    return round(pool_bytes * POOL_FACTOR) + MARGIN_BYTES


def growth_bytes(samples: tuple[tuple[int, MemorySampled], ...]) -> int | None:
    """Largest growth over the first sample; None with fewer than two comparable ones."""
    used = [
        sample.pss_bytes if sample.pss_bytes is not None else sample.rss_bytes
        for _, sample in samples
    ]
    kinds = {sample.pss_bytes is None for _, sample in samples}
    return max(used) - used[0] if len(used) > 1 and len(kinds) == 1 else None


def _pool_bytes(ledger: Ledger, life: Life) -> int | None:
    """Host pool of a life over all ranks; 0 without a connector, None where it is not known."""
    if life.planned is None or ledger.scenario is None or not life.arms:
        return None
    arm = ledger.scenario.arms.get(life.arms[0])
    if arm is None:
        return None
    if arm.connector.kind == "none":
        return 0
    engine = parse_engine(life.planned.engine)
    ranks = engine.tensor_parallel * engine.pipeline_parallel * engine.data_parallel
    return arm.connector.pool_bytes_total(ranks)


def check(ledger: Ledger) -> list[Finding]:
    """One finding per life that was sampled often enough."""
    findings = []
    for life in ledger.lives:
        grown, pool = growth_bytes(life.memory), _pool_bytes(ledger, life)
        if grown is None or pool is None:
            continue
        allowed = allowed_growth_bytes(pool)
        is_over = grown > allowed
        words = (
            f"{life.id}: its memory grew by {grown / 2**20:.0f} MiB after the first window, "
            f"{'more than' if is_over else 'within'} the {allowed / 2**20:.0f} MiB that a host "
            f"pool of {pool / 2**20:.0f} MiB explains"
        )
        findings.append(
            about_arm(
                life.stage_words,
                life.arm_words,
                Outcome.FAIL if is_over else Outcome.PASS,
                words,
                what=What(CHECK, "hits" if is_over else SETUP, "processes"),
                expected=f"at most {allowed} bytes",
                observed=f"{grown} bytes",
            )
        )
    return findings

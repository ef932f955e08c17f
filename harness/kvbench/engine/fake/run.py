"""A request in flight inside an engine core: its tokens, keys, block tables and ledgers."""

from __future__ import annotations

from kvbench.engine.fake.content import Content, hash_text, hash_tokens, mix
from kvbench.engine.fake.hybrid import HASH_MASK, Layout
from kvbench.engine.fake.request import FakeRequest
from kvbench.engine.fake.tier import Found
from kvbench.engine.fake.view import Context


class Run:
    """One request from its arrival to its last token."""

    __slots__ = (
        "chain",
        "computed_tokens",
        "context",
        "external_tokens",
        "first_topic",
        "found",
        "is_aborted",
        "is_counted",
        "keys",
        "labelled",
        "layout",
        "load_due_s",
        "local_tokens",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "request",
        "request_id",
        "snapshot",
        "stored",
        "tables",
        "tail",
        "tokens",
        "units",
        "used",
    )

    def __init__(self, request: FakeRequest, layout: Layout) -> None:
        groups = len(layout.groups)
        self.request = request
        self.request_id = request.request_id
        self.layout = layout
        self.tokens = list(request.prompt)
        """prompt and answer"""
        self.prompt_tokens = len(self.tokens)
        self.units: list[int] = []
        """hashes of full units of tokens, one by one"""
        self.chain = hash_text(request.salt) if request.salt else 0
        self.keys: list[list[int]] = [[] for _ in range(groups)]
        """of the full blocks, per group"""
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.labelled = [0] * groups
        """blocks of each table that were made findable"""
        self.stored = [0] * groups
        """blocks (native: chunks) of each group that the tier is done with"""
        self.computed_tokens = 0
        self.local_tokens = 0
        self.external_tokens = 0
        self.found: Found | None = None
        """a load that has not ended"""
        self.load_due_s = 0.0
        self.context: Context | None = None
        self.first_topic: int | None = None
        self.tail = 0
        """chain over the tokens behind the last full unit"""
        self.prefill_tokens = 0
        """of the prompt, computed here: part of the shape of its steps"""
        self.preemptions = 0
        self.is_aborted = False
        self.is_counted = False
        """its prompt is in the counters"""
        self.used: dict[int, int] = {}
        """native: chunks to renew when it finishes, with their place in the prompt"""
        self.snapshot: list[list[Content]] = []
        """native: what its blocks held when it finished"""
        self.hash_new_tokens()

    @property
    def is_prefilling(self) -> bool:
        """True until its first token is sampled."""
        return not self.request.output

    def hash_new_tokens(self) -> None:
        """Makes keys for the blocks that are full by now."""
        unit, done = self.layout.unit_tokens, len(self.units)
        if len(self.tokens) // unit == done:
            return
        chain = self.chain
        for number, piece in enumerate(hash_tokens(self.tokens[done * unit :], unit), done + 1):
            self.units.append(piece)
            chain = mix(chain, piece)
            for group, units in self.layout.key_groups:
                if number % units == 0:
                    self.keys[group].append(chain & HASH_MASK | group)
        self.chain = chain

    def start_over(self) -> None:
        """It was preempted: its blocks are gone, its tokens stay."""
        groups = len(self.layout.groups)
        self.tables = [[] for _ in range(groups)]
        self.labelled = [0] * groups
        self.stored = [0] * groups
        self.computed_tokens = 0
        self.context = None
        self.preemptions += 1

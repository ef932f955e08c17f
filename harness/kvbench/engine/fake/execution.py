"""The model's side of a step: computes blocks, writes loads and samples tokens."""

from __future__ import annotations

from kvbench.engine.fake.content import BLANK, Content, mix
from kvbench.engine.fake.faults.base import Load
from kvbench.engine.fake.model import FakeModel
from kvbench.engine.fake.pools import NULL_BLOCK, DevicePool, Origin
from kvbench.engine.fake.request import TokenOut
from kvbench.engine.fake.run import Run
from kvbench.engine.fake.site import Site
from kvbench.engine.fake.tier import Tier
from kvbench.engine.fake.view import Context

_TAIL_FACTOR = 0x5851F42D4C957F2D
_MASK = (1 << 64) - 1


class Executor:
    """Fills blocks with contents and turns contexts into tokens."""

    def __init__(self, site: Site, device: DevicePool, tier: Tier, model: FakeModel) -> None:
        self._site = site
        self._layout = site.layout
        self._device = device
        self._tier = tier
        self._model = model

    def load(self, run: Run, loads_in_step: int) -> None:
        """Writes what the tier sends, or what a fault makes of it, into the run's blocks."""
        found = run.found
        if found is None:
            return
        places = [(g, i) for g, indices in enumerate(found.indices) for i in indices]
        blocks = [run.tables[g][i] for g, i in places]
        contents = [content for group in found.contents for content in group]
        if self._site.faults:
            own = {key for keys in run.keys for key in keys}
            previous = [self._device.cells[block] for block in blocks]
            load = Load(
                run.request_id,
                self._site.index,
                contents,
                loads_in_step,
                lambda: [content for key, content in self._tier.labelled() if key not in own],
                lambda: list(previous),
            )
            self._site.load(load)
            contents = load.contents
        for (g, i), block, content in zip(places, blocks, contents, strict=True):
            self._device.cells[block] = content
            self._device.origins[block] = self._origin(run, g, i)

    def compute(self, run: Run, reached_tokens: int) -> None:
        """Computes the run's tokens up to `reached_tokens`: fills the blocks that get full."""
        context = run.context
        if context is None:
            context = run.context = self._context(run, run.local_tokens + run.external_tokens)
        unit = self._layout.unit_tokens
        if context.position_tokens + unit > reached_tokens:
            return
        generated = len(run.request.output)
        while context.position_tokens + unit <= reached_tokens:
            piece = run.units[context.position_tokens // unit]
            pending = mix(context.pending, piece) if context.pending else piece
            context.position_tokens += unit
            context.pending = pending
            topic = self._topic(run)
            state = None
            for view, group in enumerate(self._layout.cacheable):
                if context.position_tokens % group.block_tokens:
                    continue
                if state is None:
                    state = context.state
                    context.pending = 0
                g, index = group.index, context.position_tokens // group.block_tokens - 1
                content = Content(mix(state, pending + g), topic)
                for fault in self._site.faults if self._site.faults else ():
                    content = fault.on_computed(run.request_id, self._site.index, index, content)
                block = run.tables[g][index]
                if block != NULL_BLOCK:
                    self._device.cells[block] = content
                    self._device.origins[block] = self._origin(run, g, index)
                context.push(view, content, generated_tokens=generated)
        run.tail = 0

    def sample(self, run: Run, batch: int) -> TokenOut:
        """The next token; all tokens so far are computed. `batch`: requests in the step."""
        context = run.context
        assert context is not None
        generated = len(run.request.output)
        if context.late_from_tokens and generated >= context.late_from_tokens[0]:
            run.context = context = self._context(run, context.position_tokens)
        if not run.tail:
            start = len(run.tokens) // self._layout.unit_tokens * self._layout.unit_tokens
            for token_id in run.tokens[start:]:
                run.tail = (run.tail * _TAIL_FACTOR + token_id + 1) & _MASK
        digest = mix(mix(context.state, context.pending), run.tail)
        model = self._model
        shape = model.noise.shape(batch, run.prefill_tokens) if model.noise else 0
        token = model.sample(
            digest,
            context.topic_for(digest, run.tokens[0]),
            top=run.request.top,
            shape=shape,
            soft_nats=context.soft_nats,
        )
        for fault in self._site.faults if self._site.faults else ():
            token = fault.on_token(run.request, generated, token)
        return token

    def append(self, run: Run, token_id: int) -> None:
        """The token belongs to the run's context from here on."""
        run.tokens.append(token_id)
        if len(run.tokens) % self._layout.unit_tokens:
            run.tail = (run.tail * _TAIL_FACTOR + token_id + 1) & _MASK
        else:
            run.tail = 0
            run.hash_new_tokens()

    def _context(self, run: Run, tokens: int) -> Context:
        """Reads the blocks of the run's first `tokens` tokens."""
        old, run.tail = run.context, 0
        context = Context(self._layout, self._model.seed)
        generated = len(run.request.output)
        cells = self._device.cells
        for view, group in enumerate(self._layout.cacheable):
            end = tokens // group.block_tokens
            for block in run.tables[group.index][group.first_needed(tokens) : end]:
                content = cells[block] if block != NULL_BLOCK else BLANK
                context.push(view, content, generated_tokens=generated)
        context.position_tokens = tokens
        context.pending = 0 if old is None else old.pending
        return context

    def _topic(self, run: Run) -> int:
        """That of the first block in sight; of its first tokens where there is none yet."""
        assert run.context is not None
        for view in run.context.views:
            if view.topics:
                return view.topics[0]
        return run.units[0]

    def _origin(self, run: Run, group: int, index: int) -> Origin:
        if self._site.log is None:
            return Origin(run.request_id, index, None, (), None)
        size, keys = self._layout.groups[group].block_tokens, run.keys[group]
        return Origin(
            run.request_id,
            index,
            keys[index - 1] if index else None,
            tuple(run.tokens[index * size : (index + 1) * size]),
            (run.request.salt,) if run.request.salt and index == 0 else None,
        )

"""What a fault can do to a fake engine: hooks that do nothing until a kind of fault overrides them.

A kind is one small file beside this one. It registers itself with `@fault("name")`, its docstring
is what `kvbench engine faults` prints, and `Options` (a msgspec struct) says which settings it
takes. The core and the surface call every hook of every active fault, in order; a hook that damages
something calls `applied`, which writes the fault journal, so that no fault is claimed that never
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from kvbench.engine.fake.settings import FaultSetting

if TYPE_CHECKING:
    from kvbench.engine.fake.content import Content
    from kvbench.engine.fake.request import FakeRequest, TokenOut


@dataclass(slots=True)
class Load:
    """Blocks on their way from the host tier to the device, for one request."""

    request_id: str
    engine: int
    contents: list[Content]
    """what will stand in the device blocks, in prompt order; a fault edits it"""
    loads_in_step: int
    """requests whose loads run in the same step"""
    foreign: Callable[[], list[Content]]
    """contents that the tier holds for other prompts, in order of their age"""
    previous: Callable[[], list[Content]]
    """what the destination blocks held before, as long as `contents`"""


@dataclass(slots=True)
class Store:
    """Blocks on their way from the device to the host tier, for one request."""

    request_id: str
    engine: int
    first_block: int
    """index in the prompt of the first of them"""
    contents: list[Content]
    """what will stand in the host blocks; a fault edits it"""
    requests_in_flight: int
    dropped: set[int] = field(default_factory=set)
    """indices into `contents` that are not stored at all"""
    slots_each: int = 1
    """host blocks that each takes (2: a double store)"""


class Fault:
    """One active fault. Hooks get what is about to happen and may change it."""

    kind: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]]

    def __init__(self, setting: FaultSetting, write: Callable[[dict[str, Any]], None]) -> None:
        self.setting = setting
        self.options: Any = msgspec.convert(setting.options, self.Options)
        self._write = write
        self._done = 0

    def fits(self, request_id: str | None, engine: int = 0) -> bool:
        """Whether this request on this engine is one to damage, and there is something left to
        do."""
        if self.setting.times is not None and self._done >= self.setting.times:
            return False
        if self.setting.engine is not None and engine != self.setting.engine:
            return False
        wanted = self.setting.request
        return wanted is None or (request_id is not None and wanted in request_id)

    def applied(self, request_id: str | None = None, **detail: Any) -> None:
        """Count and journal one application."""
        self._done += 1
        self._write({"kind": self.kind, "request": request_id, **detail})

    def index_in(self, length: int) -> int | None:
        """The block to damage among so many; None where it is not among them."""
        index = self.setting.block_index
        index = index + length if index < 0 else index
        return index if 0 <= index < length else None

    # ---- content: core -------------------------------------------------------------------------

    def on_load(self, load: Load) -> None:
        """A load is about to be copied to the device."""

    def on_store(self, store: Store) -> None:
        """A store is about to be copied to the host."""

    def on_computed(self, request_id: str, engine: int, index: int, content: Content) -> Content:  # noqa: ARG002
        """A block of a prompt was computed on the device; returns what really stands in it."""
        return content

    # ---- lookup and pools: core ----------------------------------------------------------------

    def on_lookup(self, request_id: str, engine: int, blocks: int, available: int) -> int:  # noqa: ARG002
        """The tier found `blocks` of at most `available` further blocks; returns what it claims."""
        return blocks

    def on_reset(self, *, external: bool) -> bool:
        """A reset is about to clear the host tier; False: it keeps everything."""
        return external

    def host_may_evict(self, engine: int) -> bool:  # noqa: ARG002
        """Whether a full host tier evicts; False: it grows."""
        return True

    def on_pressure(self, engine: int) -> bool:  # noqa: ARG002
        """A store needs room in a full host tier; True: the tier drops everything first."""
        return False

    def on_step(self, engine: int, request_ids: list[str]) -> bool:  # noqa: ARG002
        """A step is about to be scheduled; False: nothing is scheduled (the engine hangs)."""
        return True

    def on_admitted(self, request_id: str, engine: int) -> None:
        """A request was taken from the queue (an engine may die here: raise EngineDeath)."""

    # ---- answers: core -------------------------------------------------------------------------

    def on_token(self, request: FakeRequest, index: int, token: TokenOut) -> TokenOut:  # noqa: ARG002
        """Token `index` (from 0) of an answer was sampled; `request.cached_tokens` says its hit."""
        return token

    def on_prompt(self, request_id: str, prompt: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """A prompt arrived at the front; returns the prompt that the engine gets."""
        return prompt

    def answers_from_cache(self, request_id: str) -> bool:  # noqa: ARG002
        """Whether something before the engine repeats an earlier answer to the same prompt."""
        return False

    # ---- counters, pages, events, front: surface ------------------------------------------------

    def on_count(self, engine: int, name: str, amount: float, request_id: str | None) -> float:  # noqa: ARG002
        """Counter `name` (a field of `Counters`) goes up by `amount`; returns by how much."""
        return amount

    def on_page(self, page: str) -> str:
        """A `/metrics` page was rendered; returns what is served."""
        return page

    def on_events(self, engine: int, events: list[dict[str, Any]]) -> list[dict[str, Any] | bytes]:  # noqa: ARG002
        """A batch of KV events is about to be published; bytes stand for an undecodable one."""
        return list(events)

    def loses_batch(self, engine: int) -> Literal["", "live", "for_good"]:  # noqa: ARG002
        """Whether this batch of events is lost: its number is used and nothing is sent; `for_good`
        leaves it out of a replay as well."""
        return ""

    def on_reset_answer(self, tries: int) -> tuple[int, str] | None:  # noqa: ARG002
        """The `tries`-th reset call since the last success (from 1) arrived: (status, body) to
        answer with instead of resetting (an empty body: after resetting), or None."""
        return None

    def on_answer(self, request_id: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """A response body (or one chunk of a stream) is about to be sent; an empty one ends the
        answer here, or closes the connection where nothing was sent yet."""
        return body

    def restarts_counters(self, request_id: str) -> bool:  # noqa: ARG002
        """A request has finished; True: all counters and the process' start time begin anew."""
        return False

    # ---- process: surface -----------------------------------------------------------------------

    def ready_delay_s(self) -> float:
        """How long the server waits before it listens."""
        return 0.0

    def generation_delay_s(self) -> float:
        """How long after listening it refuses to generate (503), while /health answers 200."""
        return 0.0

    def on_start(self) -> None:
        """The process has started and listens nowhere yet."""

    def on_stop(self) -> bool:
        """SIGTERM arrived; False: it is ignored."""
        return True


_REGISTRY: dict[str, type[Fault]] = {}


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For kinds that take no settings."""


def fault(kind: str) -> Callable[[type[Fault]], type[Fault]]:
    """Register a kind of fault under its name."""

    def register(cls: type[Fault]) -> type[Fault]:
        assert kind not in _REGISTRY, f"two faults are called {kind}"
        assert cls.__doc__, f"{kind} needs a docstring: it is its help"
        cls.kind = kind
        if "Options" not in cls.__dict__:
            cls.Options = NoOptions
        _REGISTRY[kind] = cls
        return cls

    return register


def registered() -> dict[str, type[Fault]]:
    """All kinds by name; import `kvbench.engine.fake.faults` first, which loads their files."""
    return dict(sorted(_REGISTRY.items()))


class EngineDeath(BaseException):
    """The engine core ends here, as by a crash (`signal` None) or by a signal."""

    def __init__(self, message: str, *, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal


class ActiveFaults:
    """The faults that are on at this moment."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._lasting: list[Fault] = []
        self._passing: list[Fault] = []

    def start_with(self, settings: tuple[FaultSetting, ...]) -> None:
        """Faults that are on for the whole life."""
        self._lasting = [self._made(setting) for setting in settings]

    def switch(self, settings: list[FaultSetting]) -> None:
        """Replace the faults that come and go."""
        self._passing = [self._made(setting) for setting in settings]

    def __iter__(self) -> Iterator[Fault]:
        yield from self._lasting
        yield from self._passing

    def __bool__(self) -> bool:
        return bool(self._lasting or self._passing)

    def _made(self, setting: FaultSetting) -> Fault:
        if setting.kind not in _REGISTRY:
            known = ", ".join(registered())
            raise ValueError(f"no fault is called {setting.kind!r}; known: {known}")
        return _REGISTRY[setting.kind](setting, self._write)

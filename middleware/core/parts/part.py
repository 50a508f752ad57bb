"""Parts of one run on one host. A part is created when the run begins, or when a message or event needs the part.

Rules:

P1. A run begins with the parts that the ``Install``, or the request of the client, needs (``Need``).
P2. A message creates the first part that handles it. An event does so too, if no existing part handles it. Notes,
    timers and ends of transfers reach existing parts only, because existing parts have caused them.
P3. Parts handle a message or note in the order of ``PARTS`` (``hosting.runs``). The notes that one part yields in
    answer are handled before the next part's turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MethodType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves, SpaceMoves

P = TypeVar("P")
ENDED_BEFORE = "the run ended before"  # a reason why a run is over
BEGUN_ANEW = "the run has begun anew meanwhile, as it lost a host"


class Need(StrEnum):
    """Feature that a run may need on a host as the run begins."""

    FAILOVER = "replicas of states"
    RECOVERY = "to begin anew without a lost host, at its client"
    LEADING = "changes of the whole run, at its client"
    PLANNING = "plans while data flows, at its client"
    GOSSIP = "measured figures of hosts and nodes"
    EPOCHS = "decisions of operators' hosts at the ends of epochs"
    COORDINATES = "decisions of operators' hosts by coordinates"
    STRIPE = "the indices of a stream's partitions"


def needs_of(context: RunContext, request: e.RunRequested | None) -> set[Need]:
    """Return the needs of a run on this host. ``request``: of the application, if the application leads the run."""
    install, leads = context.install, context.leads
    asked = {
        Need.FAILOVER: context.fails_over,
        Need.RECOVERY: context.fails_over and leads,
        Need.LEADING: leads,
        Need.PLANNING: request is not None and isinstance(request.adaptation, GlobalMoves),
        Need.GOSSIP: isinstance(install.news, tuple),
        Need.EPOCHS: isinstance(install.moves, LocalMoves),
        Need.COORDINATES: isinstance(install.moves, SpaceMoves),
        Need.STRIPE: install.run.stripe is not None,
    }
    return {need for need, is_asked in asked.items() if is_asked}


class RunBeginning(NamedTuple):
    """Circumstances of the start of a run on a host.

    ``request``: the request of the application, at the client. ``carried_over``: nodes that go on from the generation
    before.
    """

    request: e.RunRequested | None
    carried_over: Mapping[str, Any]


class GenerationChange(NamedTuple):
    """Reason why a run begins anew: the lost hosts, each with how it was lost, and when a loss was noticed."""

    lost: Mapping[str, str]
    detected_s: float


class Part:
    """Base of the parts of a run. A part that is created on demand defines ``of``. Every other method is optional."""

    __slots__ = ()
    HANDLERS: ClassVar[Handlers] = Handlers()
    NEEDED_FOR: ClassVar[Need | None] = None  # P1: need with which a run begins with the part
    coming: Collection[str] = ()  # operators that may come to this host by the part
    leaving: Collection[str] = ()  # operators that are to leave this host by the part

    @classmethod
    def of(cls, parts: RunParts) -> Self:
        """Return a new part, which gets parts to call from ``parts``. Parts added by ``put`` do not define ``of``."""
        raise NotImplementedError(f"a {cls.__name__} is created with the run, or by its host")

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Prepare the part, as the run begins on this host."""

    def continue_from(self, before: Self, change: GenerationChange) -> None:
        """Go on, at the client, as the next generation of a run. ``before``: this part in the generation before."""

    def on_run_over(self, why: str) -> None:
        """Finish the part, as the run is over on this host or another generation follows. ``why``: the reason."""

    @property
    def awaited(self) -> Collection[str]:
        """Operators here that wait for a state."""
        return ()

    def admits(self, host: str) -> bool:
        """Return whether the part lets a host outside the run take partitions of the run."""
        return False

    def has_client(self, host: str) -> bool:
        """Return whether client ``host`` takes partitions of the run by the part, or has asked for a subscription."""
        return False

    @property
    def unanswering(self) -> Iterable[tuple[str, float]]:
        """Hosts that have not answered a message of the part to every host, each with the time of the message."""
        return ()

    def awaits(self, message: Any) -> bool:
        """Return whether a receiver waits for a state sent from here."""
        return False

    def routes_by(self, sender: str, commit: m.Commit) -> tuple[m.RoutePreference, ...]:
        """Return the routes set by a commit that came with a partition. Empty: the commit cannot be from the client."""
        return ()

    def wants(self, message: Any) -> bool:
        """Return whether the part waits for a state that begins to arrive."""
        return False

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node on this host that waits for ``host``, and the reason. None: no node waits."""
        return None

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError for an invariant that does not hold."""


class PartTable:
    """Methods by which parts handle messages, events, notes, timers and transfers, in the order of ``kinds``.

    The key for the end of a transfer is the pair of ``"transfer"`` and the class of the message.
    """

    def __init__(self, kinds: Sequence[type[Part]]) -> None:
        self.kinds = kinds
        self.handled: dict[Any, tuple[tuple[type[Part], Any], ...]] = {}
        for kind in kinds:
            record = kind.HANDLERS
            ends = {("transfer", message): method for message, method in record.transfers.items()}
            tables: tuple[Mapping[Any, Any], ...] = record.messages, record.events, record.notes, record.timers, ends
            for table in tables:
                for key, method in table.items():
                    self.handled[key] = (*self.handled.get(key, ()), (kind, method))
        self.messages = frozenset(message for kind in kinds for message in kind.HANDLERS.messages)


class RunParts:
    """Parts of one run on one host. A part is created when a caller needs the part first."""

    def __init__(self, table: PartTable, context: RunContext, shared: HostServices) -> None:
        self._table, self.context, self.shared = table, context, shared
        self._made: dict[type[Any], Any] = {}
        self._bound: dict[Any, tuple[Any, ...]] = {}  # by the kind of thing that is handled

    def put(self, part: P) -> P:
        """Add a part created elsewhere, and return the part."""
        self._made[type(part)] = part
        self._bound.clear()
        return part

    def get(self, kind: type[P]) -> P:
        """Return the part of a class. Create the part if it does not exist yet."""
        part: P | None = self._made.get(kind)
        if part is None:
            assert issubclass(kind, Part), kind  # other objects are added by ``put``
            part = self.put(kind.of(self))
        return part

    def existing(self, kind: type[P]) -> P | None:
        """Return the part of a class. None: the run does not have the part."""
        return self._made.get(kind)

    def __iter__(self) -> Iterator[Part]:
        return iter([self._made[kind] for kind in self._table.kinds if kind in self._made])

    def handling(self, what: Any) -> Iterator[Part]:
        """Return the existing parts that handle a kind of message, event, note or timer."""
        return iter([self._made[kind] for kind, _ in self._table.handled.get(what, ()) if kind in self._made])

    def begin(self, request: e.RunRequested | None) -> None:
        """Create the parts needed from the start of the run (P1)."""
        needs = needs_of(self.context, request)
        for kind in self._table.kinds:
            if kind.NEEDED_FOR in needs:
                self.get(kind)

    def hearers(self, what: Any, *, event: bool = False) -> tuple[Any, ...]:
        """Return the bound methods that handle a kind of message, note, timer or end of a transfer, or an ``event``.

        A message or event may create the first of the parts (P2).
        """
        bound = self._bound.get(what)
        if bound is None:
            handled = self._table.handled.get(what, ())
            exists = any(kind in self._made for kind, _ in handled)
            if handled and (what in self._table.messages or (event and not exists)):  # P2: create the part
                self.get(handled[0][0])
            bound = tuple([MethodType(method, self._made[kind]) for kind, method in handled if kind in self._made])
            self._bound[what] = bound
        return bound

"""The parts of one run on one host. A part is created when the run begins and needs it, or when something is for it.

Rules:

P1. A run begins with the parts that its ``Install``, or its client's request, asks for (``Need``).
P2. A message creates the first part that handles it. So does an event that no part handles yet. Notes, timers and ends
    of transfers reach the parts that are there: they are of what these have begun.
P3. Parts hear of one thing in the order of ``PARTS`` (``hosting.runs``), each before what comes of it.
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
ENDED_BEFORE = "the run ended before"  # why runs are over
BEGUN_ANEW = "the run has begun anew meanwhile, as it lost a host"


class Need(StrEnum):
    """What a run may ask for on a host as it begins."""

    FAILOVER = "replicas of states"
    RECOVERY = "to begin anew without a lost host, at its client"
    LEADING = "changes of the whole run, at its client"
    PLANNING = "plans while data flows, at its client"
    GOSSIP = "measured figures of hosts and nodes"
    EPOCHS = "decisions of operators' hosts at the ends of epochs"
    COORDINATES = "decisions of operators' hosts by coordinates"
    STRIPE = "the indices of a stream's partitions"


def needs_of(context: RunContext, request: e.RunRequested | None) -> set[Need]:
    """Return what a run asks for on this host; with the ``request`` of its application, if that leads it."""
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
    """How a run begins on a host. ``request``: the application's, at the client. ``carried_over``: nodes that go on."""

    request: e.RunRequested | None
    carried_over: Mapping[str, Any]


class GenerationChange(NamedTuple):
    """Why a run begins anew: the hosts that are lost, each with what happened to it, and when that was noticed."""

    lost: Mapping[str, str]
    detected_s: float


class Part:
    """Base of all parts of a run. A part that is created when it is needed has ``of``; all else is optional."""

    __slots__ = ()
    HANDLERS: ClassVar[Handlers] = Handlers()
    NEEDED_FOR: ClassVar[Need | None] = None  # P1: with what a run begins with the part
    coming: Collection[str] = ()  # operators that may come to this host by the part
    leaving: Collection[str] = ()  # operators that are to leave this host by it

    @classmethod
    def of(cls, parts: RunParts) -> Self:
        """Return a new part, which takes the parts that it calls from ``parts``. Parts that are put there have none."""
        raise NotImplementedError(f"a {cls.__name__} is created with the run, or by its host")

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """The run begins here."""

    def continue_from(self, before: Self, change: GenerationChange) -> None:
        """At the client: go on as the next generation of a run, in which this part was ``before``."""

    def on_run_over(self, why: str) -> None:
        """The run is over here, or another generation follows."""

    @property
    def awaited(self) -> Collection[str]:
        """Operators here whose state is still to come."""
        return ()

    def admits(self, host: str) -> bool:
        """Whether the part lets a host take from the run that is none of the run's hosts."""
        return False

    def has_client(self, host: str) -> bool:
        """Whether another client of that name takes from the run by the part, or has asked for it."""
        return False

    @property
    def unanswering(self) -> Iterable[tuple[str, float]]:
        """Hosts that have not answered a message of the part to all hosts, each with the time of the message."""
        return ()

    def awaits(self, message: Any) -> bool:
        """Whether somebody waits for a state that is sent from here."""
        return False

    def routes_by(self, sender: str, commit: m.Commit) -> tuple[m.RoutePreference, ...]:
        """Return the routes that a commit sets, which came with a partition; none if it cannot be the client's."""
        return ()

    def wants(self, message: Any) -> bool:
        """Whether the part waits for a state that begins to arrive."""
        return False

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node here that waits for ``host``, and what for; None: no node does."""
        return None

    def validate(self) -> None:
        """Check the invariants; AssertionError says which does not hold."""


class PartTable:
    """Methods by which parts handle things, for each thing in the order of ``kinds``.

    An end of a transfer stands under the pair of ``"transfer"`` and the class of the message.
    """

    def __init__(self, kinds: Sequence[type[Part]]) -> None:
        self.kinds = kinds
        self.handled: dict[Any, tuple[tuple[type[Part], Any], ...]] = {}
        for kind in kinds:
            record = kind.HANDLERS
            ends = {("transfer", message): method for message, method in record.transfers.items()}
            tables: tuple[Mapping[Any, Any], ...] = record.messages, record.events, record.notes, record.timers, ends
            for table in tables:
                for what, method in table.items():
                    self.handled[what] = (*self.handled.get(what, ()), (kind, method))
        self.messages = frozenset(message for kind in kinds for message in kind.HANDLERS.messages)


class RunParts:
    """Parts of one run on this host, each created when it is first needed."""

    def __init__(self, table: PartTable, context: RunContext, shared: HostServices) -> None:
        self._table, self.context, self.shared = table, context, shared
        self._made: dict[type[Any], Any] = {}
        self._bound: dict[Any, tuple[Any, ...]] = {}  # by what is handled

    def put(self, part: P) -> P:
        """Add a part that was created elsewhere."""
        self._made[type(part)] = part
        self._bound.clear()
        return part

    def get(self, kind: type[P]) -> P:
        """Return the part of that kind, which is created if it is not there yet."""
        part: P | None = self._made.get(kind)
        if part is None:
            assert issubclass(kind, Part), kind  # all else has been put there
            part = self.put(kind.of(self))
        return part

    def existing(self, kind: type[P]) -> P | None:
        """Return the part of that kind, if it is there."""
        return self._made.get(kind)

    def __iter__(self) -> Iterator[Part]:
        return iter([self._made[kind] for kind in self._table.kinds if kind in self._made])

    def handling(self, what: Any) -> Iterator[Part]:
        """Return the parts that are there and handle a kind of message, event, note or timer."""
        return iter([self._made[kind] for kind, _ in self._table.handled.get(what, ()) if kind in self._made])

    def begin(self, request: e.RunRequested | None) -> None:
        """P1: create what the run needs from its beginning."""
        needs = needs_of(self.context, request)
        for kind in self._table.kinds:
            if kind.NEEDED_FOR in needs:
                self.get(kind)

    def hearers(self, what: Any, *, event: bool = False) -> tuple[Any, ...]:
        """Return the bound methods that handle a kind of message, note, timer or end of a transfer, or an ``event``."""
        bound = self._bound.get(what)
        if bound is None:
            handled = self._table.handled.get(what, ())
            there = any(kind in self._made for kind, _ in handled)
            if handled and (what in self._table.messages or (event and not there)):  # P2: something is for the part
                self.get(handled[0][0])
            bound = tuple([MethodType(method, self._made[kind]) for kind, method in handled if kind in self._made])
            self._bound[what] = bound
        return bound

"""A running dataflow as its application has it: partitions to iterate over, and operators to move."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from thalweg.middleware.client.replanning import Search
from thalweg.middleware.core.relocation.shape import reshape
from thalweg.middleware.dataflow import Dataflow, Placement, check_codes, check_placement, sinks_at
from thalweg.middleware.errors import (
    DataflowError,
    HostLostError,
    OperatorError,
    PlacementError,
    RunError,
    UsageError,
    expect,
    nearest,
    one_line,
    printable,
    warn_dropped,
)
from thalweg.middleware.loading import reorderable
from thalweg.middleware.parcels import is_nothing
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.packing import opened

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar  # which knows defaults from Python 3.13 on

    T = TypeVar("T")


class Delivered(msgspec.Struct, Generic[T], frozen=True):
    """A partition at a sink: its index (from 0), and its value: bytes, a read-only array, records or plain data.

    Of a sink with several inputs it is the tuple of their values, in their order.
    """

    index: int
    value: T
    size_bytes: int
    sink: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """A query as it is to begin: its graph, where its nodes are to be, and what they mean for planning."""

    dataflow: Dataflow
    placement: Placement
    hints: Hints | None = None
    apart: dict[str, float] = {}  # what is there, and too far away


class Offered(msgspec.Struct, frozen=True):
    """What the application says of a query that is to begin."""

    dataflow: Dataflow
    placement: Mapping[str, str] | str
    hints: Hints | None
    radius_s: float | None


Prepare = Callable[[Offered, tuple[Dataflow, Placement]], Wanted]


class Home(msgspec.Struct, frozen=True):
    """What a run uses of its client: its name, the hosts there are, what code it allows, and whom to tell what.

    ``prepare``: checks a query that is to begin in a run's graph, and places what that does not have.
    """

    name: str
    hosts: Callable[[], Collection[str]]
    allow: tuple[str, ...]
    tell: Callable[[e.Event], None]
    closed: Callable[[str], None]
    prepare: Prepare | None = None


class Run(Generic[T]):
    """A running dataflow: ``for partition in run`` or ``async for partition in run``; ``close()`` ends it early.

    The next partition of a sink is demanded when one of it is taken, so at most one of each is here undelivered: a
    sink that nobody takes from holds up what it shares with others. ``placement`` is where its nodes are now, as far
    as the client has heard, and ``dataflow`` the graph they form. Indices without any value are skipped, and counted
    in ``skipped``, unless the run was begun with ``nothing=True``.

    Any number of threads and tasks may iterate one run, also of several event loops: each partition goes to exactly one
    of them, all see the end, and a run that failed raises its error in each, until it is closed. Who is cancelled while
    it waits has taken none. A run that is dropped while it goes on is closed, with a ``ResourceWarning``.

    Rules:

    - R1: What has come is taken under the lock, by who is there; what arrives wakes everybody who waits, so that it is
      nobody's loss if one of them never wakes up (its task is cancelled, its event loop closed).
    - R2: Where a thread waits for a partition, the next is demanded as it arrives, without waking the thread first.
    - R3: The run that an application began is query 0, and hears all that is said of it; what is of others it passes
      on. They keep it, it does not keep them. The run is over when all have left.
    - R4: A query that has left takes what comes until the hosts know, and drops it: so it holds nobody up meanwhile.
    """

    query = 0

    def __init__(
        self,
        home: Home,
        run_id: str,
        placement: Placement,
        dataflow: Dataflow,
        search: Search | None,
        *,
        strict: bool = False,
        nothing: bool = False,
    ) -> None:
        self.id = run_id
        self.placement = placement
        self.dataflow = dataflow
        self.search = search
        self.skipped = 0
        self._home = home
        self._news = threading.Condition()  # of what is queued, where the nodes are, and the end
        self._queue: deque[tuple[e.Command, bool]] = deque()  # with each whether the next is demanded already
        self._blocked = 0  # threads that wait in __next__
        self._awaiting: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}  # whose tasks wait in __anext__
        self._failure: e.Fail | None = None
        self._over = False
        self._ended: set[str] = set()  # sinks
        self._sinks = dataflow.sinks
        self._queries: weakref.WeakValueDictionary[int, Attached[Any]] = weakref.WeakValueDictionary()
        self._by_sink: dict[str, int] = {}  # sinks of others
        self._open, self._count = {0}, 0  # queries that go on, and that there have been
        self._failed: e.Fail | None = None  # all of them
        self._sharing = threading.Lock()  # of these three
        self._strict, self._nothing = strict, nothing

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` and ``placement`` of the same moment: either changes while the run goes on."""
        with self._news:
            return self.dataflow, self.placement

    def take(self, command: e.Command) -> None:
        """A command for the application; any thread."""
        query = self._query_of(command)
        if query and (other := self._queries.get(query)) is not None:  # R3
            other.take(command)
        with self._news:
            match command:
                case e.Ready() | e.Deliver() | e.Fail() if not self._over and not query:
                    wanted = isinstance(command, e.Deliver) and not command.end and len(self._queue) < self._blocked
                    self._queue.append((command, wanted))
                    if wanted:  # R2
                        self._demand(command)
                    self._wake()
                case e.Ready() | e.Deliver() if not query:
                    self._pass(command)
                case e.Placed(_, node, host):
                    self.placement = {**self.placement, node: host}
                case e.TreeChanged(_, dataflow, placement):
                    self.dataflow, self.placement = dataflow, placement
                case e.Plan() if self.search is not None:
                    threading.Thread(
                        target=self._plan, args=(self.search, command), name="thalweg-planner", daemon=True
                    ).start()
        if isinstance(command, e.Fail) and command.query is None:
            self._failed = command
            for other in list(self._queries.values()):
                other.take(command)

    def _query_of(self, command: e.Command) -> int:
        """R3: whom a command is for, 0 where it is for this one or for all."""
        if isinstance(command, e.Deliver):
            return self._by_sink.get(command.sink, 0)
        if isinstance(command, e.Attached):
            self._grow(command)
            return command.query
        return (command.query or 0) if isinstance(command, e.Fail) else 0

    def _grow(self, command: e.Attached) -> None:
        """Another query has begun in the run."""
        other = self._queries.get(command.query)
        with self._news:
            if other is not None:
                other._begun(command, self.dataflow)
                if self.search is not None and other.hints is not None:
                    self.search = self.search.with_hints(other.hints, command.names)
            self._by_sink |= {name: command.query for name in command.dataflow.sinks if name not in self.dataflow.sinks}
            self.dataflow, self.placement = command.dataflow, command.placement

    def _plan(self, search: Search, command: e.Plan) -> None:
        """One look for a better placement, beside the flow."""
        begun = time.perf_counter()
        answer = search.answer(command)
        if answer.placement is not None:
            took = {"planning_wall_s": time.perf_counter() - begun}
            answer = msgspec.structs.replace(answer, detail=answer.detail | took)
        self._home.tell(answer)

    def _wake(self) -> None:
        self._news.notify_all()
        while self._awaiting:  # R1
            loop, arrived = self._awaiting.popitem()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(arrived.set)

    def _demand(self, taken: e.Command) -> None:
        """Demand what follows on what was taken: of the same sink, or, as all is ready, of every sink."""
        if isinstance(taken, e.Deliver) and len(self.dataflow.sinks) > 1:
            self._home.tell(e.NextRequested(self.id, taken.sink))
        elif isinstance(taken, e.Deliver) or not self._by_sink:
            self._home.tell(e.NextRequested(self.id))
        else:
            for sink in self._sinks:
                self._home.tell(e.NextRequested(self.id, sink))

    def _next(self, sink: str) -> Delivered[T] | None:
        """The partition that is here, of ``sink`` or of any; None when there is none. Raises the run's error.

        Under the lock.
        """
        others: list[tuple[e.Command, bool]] = []
        found: e.Deliver | None = None
        while self._queue and not self._over and found is None:
            command, demanded = self._queue.popleft()
            match command:
                case e.Fail():
                    self._failure = command
                    self._end()
                case e.Deliver(end=True):  # nothing else of the sink is here: it was demanded when that was taken
                    if self._strict and command.uneven:
                        self._failure = e.Fail(self.id, command.uneven)
                    self._ended.add(command.sink)
                    if self._failure is not None or len(self._ended) >= len(self._sinks):
                        self._end()
                    else:
                        self._wake()
                case e.Deliver() if sink and command.sink != sink:
                    others.append((command, demanded))
                case e.Deliver() | e.Ready():
                    if not demanded:
                        self._demand(command)
                    if isinstance(command, e.Deliver):
                        if _is_empty(command.value) and not self._nothing:
                            self.skipped += 1
                        else:
                            found = command
        if not self._over:
            self._queue.extendleft(reversed(others))
        if found is not None:
            return self._delivered(found)
        if self._failure is not None:
            raise _error_of(self._failure)
        return None

    def _delivered(self, command: e.Deliver) -> Delivered[T]:
        allow, given = self._home.allow, command.value
        value: Any
        try:
            value = tuple([opened(each, allow) for each in given]) if type(given) is tuple else opened(given, allow)
        except OperatorError as error:  # what came cannot be had here
            reason = f"partition {command.index} cannot be delivered: {error}"
            self._failure = e.Fail(self.id, reason, command.sink, self._home.name)
            self._end()
            raise _error_of(self._failure) from None
        return Delivered(command.index, value, command.size_bytes, command.sink)

    def _blocking(self, sink: str = "") -> Delivered[T]:
        with self._news:
            while (delivered := self._next(sink)) is None:
                if self._over or sink in self._ended:
                    raise StopIteration
                self._blocked += not sink
                try:
                    self._news.wait()
                finally:
                    self._blocked -= not sink
            return delivered

    async def _waiting(self, sink: str = "") -> Delivered[T]:
        loop = asyncio.get_running_loop()
        while True:
            with self._news:
                delivered = self._next(sink)
                if delivered is not None:
                    return delivered
                if self._over or sink in self._ended:
                    raise StopAsyncIteration
                arrived = self._awaiting.setdefault(loop, asyncio.Event())
            await arrived.wait()

    def __iter__(self) -> Run[T]:
        return self

    def __next__(self) -> Delivered[T]:
        return self._blocking()

    def __aiter__(self) -> Run[T]:
        return self

    async def __anext__(self) -> Delivered[T]:
        return await self._waiting()

    def sink(self, name: str) -> OneSink[T]:
        """The partitions of one sink alone, to iterate over as over the run, beside who takes those of the others."""
        sinks = self._sinks
        if name not in sinks:
            raise UsageError(f"there is no sink {name!r}; {nearest(str(name), sinks)}")
        return OneSink(self, name)

    def move(self, placement: Mapping[str, str]) -> None:
        """Have these operators change hosts, all between the same two partitions, while the flow goes on.

        Returns at once. Where an operator cannot move (its target lacks its code, or room), all stay; the records say
        why. A later call replaces one that has not begun. Raises PlacementError for an unknown node or host, or a
        node that is pinned.
        """
        dataflow, present = self.tree
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        check_placement(dataflow, {**present, **placement}, self._home.hosts())
        for name in placement:
            if (kind := dataflow.by_name[name].kind) != "operator":
                raise PlacementError(f"{name!r} is the {kind}; only operators move")
        self._home.tell(e.PlacementProposed(self.id, dict(placement), "asked for"))

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        """Have the run go on as another tree of the same sources, from one partition on, while the flow goes on.

        Operators whose code is ``reorderable`` (and merges its states, if it has some) may be others in it, with other
        inputs, and anywhere; they get names of their own, which ``dataflow`` and ``placement`` of this run then tell.
        All others keep their inputs; where ``placement`` has them elsewhere, they move when the tree has changed.

        Returns at once. Where an operator cannot run (its host lacks the code, or room), the tree stays; the records
        say why. A later call replaces one that has not begun. Raises DataflowError for a tree that would not give the
        same bytes, PlacementError for an unknown node or host.
        """
        hosts = self._home.hosts()
        expect(dataflow, Dataflow, "what runs is a Dataflow")
        check_codes(dataflow)
        dataflow = sinks_at(dataflow.validate(hosts), self._home.name)
        full = check_placement(dataflow, {**dict.fromkeys(dataflow.sinks, self._home.name), **placement}, hosts)
        present, where = self.tree
        codes = [tree.by_name[name].code for tree in (dataflow, present) for name in tree.operators]
        free = reorderable(codes, self._home.allow)
        reshape(present, dataflow, full, where, free, 0)  # what is wrong with it is said here
        self._home.tell(e.PlacementProposed(self.id, full, "asked for", dataflow, *free))

    def attach(
        self,
        dataflow: Dataflow,
        placement: Mapping[str, str] | str = "one-shot",
        *,
        hints: Hints | None = None,
        radius_s: float | None = None,
        strict: bool = False,
        nothing: bool = False,
    ) -> Attached[Any]:
        """Have another query begin in this run, while the flow goes on: its own partitions are what this returns.

        What is the same there and in the run is done once: nodes with the same code, parameters and inputs, on the same
        host where they are pinned, as sources are. All others begin with one partition on which the hosts agree
        (``first_index``), as on a machine where the query begins there; nodes that are shared stay where they are.

        Args:
            dataflow: the query's graph, in names of its own; its sinks are at this client.
            placement: a host for every operator that the run does not have, or a planner's name.
            radius_s: an operator that the run has is shared only if the host where it is lies so near, in seconds of
                hosts' coordinates (``Client.coordinates``), to where it would be for this query alone; ``apart`` says
                which are not, and how far they are. None: whatever is the same is shared, wherever it is.
            hints, strict, nothing: as for ``Client.run``, for this query.

        Returns at once. Where it cannot begin (a host lacks the code, or room, or is gone), that is the RunError of
        whoever iterates over it, and the run goes on. Raises RunError when the run is over, DataflowError for a query
        that has nothing in common with it or means another node by a name of the run's, PlacementError, UsageError.
        """
        prepare, tree = self._home.prepare, self.tree
        self._check_open()
        assert prepare is not None
        wanted = prepare(Offered(dataflow, placement, hints, radius_s), tree)
        with self._sharing:
            self._check_open()
            self._count += 1
            number = self._count
            self._open.add(number)
        other: Attached[Any] = Attached(self, number, wanted, strict=strict, nothing=nothing)
        self._queries[number] = other
        self._home.tell(e.AttachRequested(self.id, number, wanted.dataflow, wanted.placement, tuple(wanted.apart)))
        return other

    def _check_open(self) -> None:
        if self._failed is not None:
            raise _error_of(self._failed)
        if not self._open:
            raise RunError(f"run {self.id} is over; begin the query by itself, with Client.run", host=self._home.name)

    def detach(self) -> None:
        """Leave the run, as ``close`` does: what no other query uses ends on every host, and the others go on."""
        self.close()

    def close(self) -> None:
        """End the run on every host, or of several queries this one; idempotent, from any thread.

        Whoever waits for a partition sees the end.
        """
        with self._news:
            self._failure = None
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            taken = [command for command, demanded in self._queue if not demanded]
            self._queue.clear()
            self._wake()
            self._left(0)
            for command in taken:
                self._pass(command)

    def _pass(self, command: e.Command) -> None:
        """R4: what comes for a query that has left."""
        if self._others and isinstance(command, e.Ready | e.Deliver) and not getattr(command, "end", False):
            self._demand(command)

    @property
    def _others(self) -> bool:
        """Whether there are queries that go on."""
        return bool(self._open)

    def _left(self, query: int) -> None:
        """R3: a query has left."""
        with self._sharing:
            self._open.discard(query)
            last = not self._open or self._failed is not None
        if last:
            self._home.closed(self.id)
        else:
            self._home.tell(e.DetachRequested(self.id, query))

    def close_all(self) -> None:
        """End all queries."""
        for each in (self, *self._queries.values()):
            each.close()

    def forked(self, why: str) -> None:
        """This process is a fork of the one that began the run: none of its partitions come here."""
        self._news = threading.Condition()
        self._awaiting.clear()
        self._queue.clear()
        self._failure = self._failed = e.Fail(self.id, why, host=self._home.name)
        self._over, self._open, self._sharing = True, set(), threading.Lock()
        for each in list(self._queries.values()):
            each.forked(why)

    def __del__(self) -> None:
        if not self._over:
            self.close()
            warn_dropped(f"the run {self.id}", self)

    def __enter__(self) -> Run[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Attached(Run[T]):
    """A query that began in a run of others (``Run.attach``): its own partitions, to iterate over as over a run.

    ``dataflow`` is its graph in its own names, ``names`` what its nodes are called in the run, ``shared`` those that
    the run had before, ``apart`` those that it had too far away (``radius_s``), and how far, in seconds; ``detach`` or
    ``close`` leaves. A query that fails, or leaves, disturbs no other; one that nobody takes from holds up the others,
    as a sink does.
    """

    def __init__(self, of: Run[Any], number: int, wanted: Wanted, *, strict: bool, nothing: bool) -> None:
        super().__init__(of._home, of.id, wanted.placement, wanted.dataflow, None, strict=strict, nothing=nothing)
        self.query, self.hints, self.apart = number, wanted.hints, wanted.apart
        self.names: dict[str, str] = {}
        self.shared: tuple[str, ...] = ()
        self._of, self._first = of, -1
        self._called: dict[str, str] = {}  # its sinks, by their names in the run

    @property
    def first_index(self) -> int:
        """The partition with which it begins; waits until the hosts have agreed on it. Raises the query's error."""
        with self._news:
            self._news.wait_for(lambda: self._first >= 0 or self._over or bool(self._queue))
            if self._first < 0:
                self._next("")
                raise RunError(f"the query has left run {self.id} before it began")
            return self._first

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow``, and where its nodes are now."""
        names, (_, where) = self.names, self._of.tree
        self.placement = {name: where.get(names.get(name, ""), host) for name, host in self.placement.items()}
        return self.dataflow, self.placement

    def _begun(self, command: e.Attached, before: Dataflow) -> None:
        """It has begun in the run, which was that before."""
        with self._news:
            self.names, self._first = command.names, command.first_index
            self.shared = tuple([name for name in self.dataflow.by_name if command.names[name] in before.by_name])
            self._called = {command.names[name]: name for name in self._sinks}

    def take(self, command: e.Command) -> None:
        if isinstance(command, e.Attached):  # its first partition is demanded at once: nobody waits for it to be taken
            with self._news:
                self._demand(command)
                self._wake()
            return
        if isinstance(command, e.Deliver):
            command = msgspec.structs.replace(command, sink=self._called[command.sink])
        super().take(command)

    def _query_of(self, command: e.Command) -> int:
        return 0

    def _demand(self, taken: e.Command) -> None:
        for sink in (taken.sink,) if isinstance(taken, e.Deliver) else self._sinks:
            self._home.tell(e.NextRequested(self.id, self.names[sink]))

    def _left(self, query: int) -> None:
        self._of._left(self.query)

    @property
    def _others(self) -> bool:
        return bool(self._of._open)

    def attach(self, dataflow: Dataflow, *args: Any, **options: Any) -> Attached[Any]:
        """Have yet another query begin in the run, as ``Run.attach``."""
        return self._of.attach(dataflow, *args, **options)

    def move(self, placement: Mapping[str, str]) -> None:
        """Have operators change hosts, as ``Run.move``; those that are shared move for all."""
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        check_placement(self.dataflow, {**self.tree[1], **placement}, self._home.hosts())
        self._of.move({self.names.get(name, name): host for name, host in placement.items()})

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        """A query that shares nodes with others has no tree of its own to change: raises DataflowError."""
        raise DataflowError("a query that was attached keeps its shape; only trees of one query change theirs")


def _is_empty(value: object) -> bool:
    """Whether this is an index without a value, of several inputs without any."""
    return all(map(is_nothing, value)) if type(value) is tuple else is_nothing(value)


class OneSink(Generic[T]):
    """The partitions of one sink of a run: ``for partition in run.sink("alarms")``, or ``async for``."""

    def __init__(self, run: Run[T], name: str) -> None:
        self._run, self.name = run, name

    def __iter__(self) -> OneSink[T]:
        return self

    def __next__(self) -> Delivered[T]:
        return self._run._blocking(self.name)

    def __aiter__(self) -> OneSink[T]:
        return self

    async def __anext__(self) -> Delivered[T]:
        return await self._run._waiting(self.name)


def _error_of(failure: e.Fail) -> RunError:
    """What the application is told; text of other hosts may hold anything."""
    cause = failure.cause or m.Cause()
    return (HostLostError if failure.lost else RunError)(
        one_line(failure.reason),
        node=one_line(failure.node) or None,
        host=failure.host or None,
        index=cause.index,
        cause_type=one_line(cause.kind) or None,
        remote_traceback=printable(cause.traceback) or None,
    )

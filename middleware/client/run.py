"""A running dataflow as its application has it: partitions to iterate over, and operators to move."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from thalweg.middleware.client.replanning import Search
from thalweg.middleware.core.relocation.shape import reshape
from thalweg.middleware.dataflow import Dataflow, Placement, check_codes, check_placement, sinks_at
from thalweg.middleware.errors import (
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


class Home(msgspec.Struct, frozen=True):
    """What a run uses of its client: its name, the hosts there are, what code it allows, and whom to tell what."""

    name: str
    hosts: Callable[[], Collection[str]]
    allow: tuple[str, ...]
    tell: Callable[[e.Event], None]
    closed: Callable[[str], None]


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
    """

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
        self._strict, self._nothing = strict, nothing

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` and ``placement`` of the same moment: either changes while the run goes on."""
        with self._news:
            return self.dataflow, self.placement

    def take(self, command: e.Command) -> None:
        """A command for the application; any thread."""
        with self._news:
            match command:
                case e.Ready() | e.Deliver() | e.Fail() if not self._over:
                    wanted = isinstance(command, e.Deliver) and not command.end and len(self._queue) < self._blocked
                    self._queue.append((command, wanted))
                    if wanted:  # R2
                        self._demand(command)
                    self._wake()
                case e.Placed(_, node, host):
                    self.placement = {**self.placement, node: host}
                case e.TreeChanged(_, dataflow, placement):
                    self.dataflow, self.placement = dataflow, placement
                case e.Plan() if self.search is not None:
                    threading.Thread(
                        target=self._plan, args=(self.search, command), name="thalweg-planner", daemon=True
                    ).start()

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
        sink = taken.sink if isinstance(taken, e.Deliver) and len(self.dataflow.sinks) > 1 else ""
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
                    if self._failure is not None or len(self._ended) >= len(self.dataflow.sinks):
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
        sinks = self.dataflow.sinks
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

    def close(self) -> None:
        """End the run on every host; idempotent, from any thread: whoever waits for a partition sees the end."""
        with self._news:
            self._failure = None
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._queue.clear()
            self._wake()
            self._home.closed(self.id)

    def forked(self, why: str) -> None:
        """This process is a fork of the one that began the run: none of its partitions come here."""
        self._news = threading.Condition()
        self._awaiting.clear()
        self._queue.clear()
        self._failure, self._over = e.Fail(self.id, why, host=self._home.name), True

    def __del__(self) -> None:
        if not self._over:
            self.close()
            warn_dropped(f"the run {self.id}", self)

    def __enter__(self) -> Run[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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

"""Stream of partitions that an application consumes from a run or a subscription, by iteration until the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

import msgspec

from thalweg.middleware.client.failover.journal import Journal
from thalweg.middleware.client.moving.moves import Moves
from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.errors import (
    HostLostError,
    OperatorError,
    RunError,
    UsageError,
    in_seconds,
    nearest,
    one_line,
    printable,
    warn_dropped,
)
from thalweg.middleware.loading import Allow
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.parcels import is_nothing
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import Gap
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.packing import opened

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar  # has defaults from Python 3.13 on

    T = TypeVar("T")


WAITS_S = 5.0


class Delivered(msgspec.Struct, Generic[T], frozen=True):
    """Partition at a sink, with its index (from 0) and value: bytes, a read-only array, records or plain data.

    At a sink with several inputs, the value is the tuple of the inputs' values, in the order of the inputs.
    ``missing``: for each absent source, the partitions without it, in the graph that computed this partition.
    ``Run.missing`` has the same of the present graph.
    """

    index: int
    value: T
    size_bytes: int
    sink: str = ""
    missing: Mapping[str, tuple[Gap, ...]] = {}


class PreparedQuery(msgspec.Struct, frozen=True):
    """Checked and placed query that is about to begin: its graph, placement, and hints for planning."""

    dataflow: Dataflow
    placement: Placement
    hints: Hints | None = None
    apart: dict[str, float] = {}  # nodes of the run too far away to share, with the distance in seconds


class QueryRequest(msgspec.Struct, frozen=True):
    """Request of the application for a query: graph, placement or planner's name, hints, and radius of sharing."""

    dataflow: Dataflow
    placement: Mapping[str, str] | str
    hints: Hints | None
    radius_s: float | None


class _Queued(NamedTuple):
    """Arrived command, whether the next partition is demanded already, and the gaps of sources at the time."""

    command: e.Command
    demanded: bool
    missing: Mapping[str, tuple[Gap, ...]]


Prepare = Callable[[QueryRequest, tuple[Dataflow, Placement]], PreparedQuery]


class ClientServices(msgspec.Struct, frozen=True):
    """Parts of a client that a run uses: name, present hosts, allowed code, and callbacks for events and the end.

    ``prepare``: checks a query for a run's graph and places the nodes that the run lacks. ``me``: the client as a peer,
    with its endpoints. ``moves``: receives the moves that a run requests. ``logbook``: that of the client.
    """

    name: str
    hosts: Callable[[], Collection[str]]
    allow: Allow
    tell: Callable[[e.Event], None]
    closed: Callable[[str], None]
    prepare: Prepare | None = None
    me: m.Peer | None = None
    moves: Moves | None = None
    logbook: Logbook = Logbook("")


class Stream(ABC, Generic[T]):
    """Partitions of some sinks: ``for partition in …`` or ``async for partition in …``.

    ``close()`` ends the stream early.

    The next partition of a sink is demanded when the application takes one, so at most one of each sink waits here. An
    index without a value is skipped and counted in ``skipped``, unless the application asked for ``nothing``.

    Several threads and tasks may iterate, also tasks of several event loops. Each partition goes to exactly one of
    them. Every iterator sees the end, and raises the error of a failed run until the stream is closed. A task that is
    cancelled while it waits has taken no partition. A stream that is dropped before its end is closed, with a
    ``ResourceWarning``.

    Rules:

    - R1: A partition that has arrived is taken under the lock by the first free thread or task. An arrival wakes every
      waiting thread and task, because one of them may never wake up (a cancelled task, a closed event loop).
    - R2: If a thread waits for a partition, the next one is demanded on arrival, before the thread wakes up.
    - R3: A query that has left demands and drops further partitions until the hosts know, so that it holds up no other
      query.
    - R4: If the client has a journal, a partition is committed when the application takes the next one. From the first
      ``commit`` of a sink on, only ``commit`` counts for this sink, also after the end.
    - R5: If a stream begins anew, partitions that an earlier client has committed are not delivered again.
    - R6: If a stream has waited for ``WAITS_S`` and a partition of its run has no consumer, the stream logs one line.
      The partition may be in a different stream of the run or at a different sink. No partition arrives until the
      application takes it.
    """

    _first = 0  # below 0: not known yet
    _after: Mapping[str, int] = {}  # R5: last partition of each sink that an earlier client has committed

    def __init__(
        self, home: ClientServices, run_id: str, sinks: tuple[str, ...], *, strict: bool = False, nothing: bool = False
    ) -> None:
        self.id, self._run_id = run_id, RunId(run_id)
        self.skipped = 0
        self._home = home
        self._news = threading.Condition()  # guards and announces the queue, the placement, and the end
        self._queue: deque[_Queued] = deque()
        self._missing: dict[str, tuple[Gap, ...]] = {}  # gaps of the graph of arriving partitions
        self._blocked = 0  # threads that wait in __next__
        self._awaiting: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}  # event loops with tasks in __anext__
        self._failure: e.Fail | None = None
        self._over = False
        self._ended: set[str] = set()  # sinks that have ended
        self._sinks = sinks
        self._strict, self._nothing = strict, nothing
        self._journal: Journal | None = None
        self._handed: dict[str, int] = {}  # last partition of each sink that the application took
        self._said: dict[str, int] = {}  # last partition of each sink committed by ``commit``

    @property
    def first_index(self) -> int:
        """First partition of the stream. Waits until the hosts have agreed on it. Raises the error of the run."""
        with self._news:
            if not self._news.wait_for(self._has_begun, WAITS_S):
                self._explain("")
                self._news.wait_for(self._has_begun)
            if self._first < 0:
                self._next("")
                raise RunError(f"{self._what} was over before it began")
            return self._first

    def _has_begun(self) -> bool:
        return self._first >= 0 or self._over or bool(self._queue)

    @property
    def _what(self) -> str:
        return f"the run {self.id}"

    # --- standstill -------------------------------------------------------------------------------------

    @property
    def _of_the_run(self) -> Iterable[Stream[Any]]:
        """Streams of the run that this client consumes."""
        return (self,)

    def _untaken(self, sink: str) -> str:
        """Return the partition that is here without a consumer, as a text, or an empty text.

        Partitions of ``sink`` are left out, because their consumer is waiting.
        """
        for queued in list(self._queue):  # one step needs no lock: the caller may hold another stream's lock
            command = queued.command
            if isinstance(command, e.Ready) and not queued.demanded:
                return f"no partition has been taken from {self._what} yet"
            if isinstance(command, e.Deliver) and not (queued.demanded or command.end or command.sink == sink):
                return f"partition {command.index} of sink {command.sink!r} of {self._what} is not taken"
        return ""

    def _why_still(self, sink: str) -> str:
        """Return why no partition arrives, as far as this client knows."""
        for stream in self._of_the_run:
            waits = stream._blocked or stream._awaiting
            if (stream is self or not waits) and not stream._over and (why := stream._untaken(sink)):
                return f"{why}; take partitions there as well, in another thread or task, or close that stream"
        return ""

    def _explain(self, sink: str) -> None:
        """Log why no partition has arrived for ``WAITS_S`` (R6)."""
        if why := self._why_still(sink):
            text = f"{self._what} has waited for a partition for {in_seconds(WAITS_S)}: {why}"
            self._home.logbook.write("stream-waits", text, run=self.id, duration_s=WAITS_S, reason=why)

    @abstractmethod
    def _demand(self, taken: e.Command) -> None:
        """Demand the partition after a taken partition, from the same sink. After ``Ready``, demand from every sink."""

    @abstractmethod
    def _left(self, query: int) -> None:
        """Notify the hosts that a query has left (R3)."""

    @property
    def _others(self) -> bool:
        """Return whether queries of the run are still under way."""
        return True

    @abstractmethod
    def take(self, command: e.Command) -> None:
        """Handle a command of the core for the application. Called in any thread."""

    def _arrived(self, command: e.Command) -> None:
        """Queue a command for the application and wake every iterator. The caller holds the lock."""
        wanted = isinstance(command, e.Deliver) and not command.end and len(self._queue) < self._blocked
        self._queue.append(_Queued(command, wanted, self._missing))
        if wanted:  # R2: a thread waits: demand the next partition before the thread wakes up
            self._demand(command)
        self._wake()

    def _wake(self) -> None:
        self._news.notify_all()
        while self._awaiting:  # R1: wake every task, as one of them may never wake up
            loop, arrived = self._awaiting.popitem()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so has no waiting task
                loop.call_soon_threadsafe(arrived.set)

    def _next(self, sink: str) -> Delivered[T] | None:
        """Return a partition that has arrived, of ``sink`` or of any sink, or None. Raise the run's error.

        The caller holds the lock.
        """
        deferred: list[_Queued] = []
        delivery: e.Deliver | None = None
        while self._queue and not self._over and delivery is None:
            command, demanded, missing = queued = self._queue.popleft()
            match command:
                case e.Fail():
                    self._failure = command
                    self._end()
                case e.Deliver(end=True):  # the end is the last in the queue of its sink
                    self._end_of_sink(command)
                case e.Deliver() if sink and command.sink != sink:
                    deferred.append(queued)
                case e.Deliver() | e.Ready():
                    if not demanded:
                        self._demand(command)
                    if isinstance(command, e.Deliver):
                        # R5: an earlier client has committed this partition
                        if command.index <= self._after.get(command.sink, -1):
                            continue
                        if _is_empty(command.value) and not self._nothing:
                            self.skipped += 1
                        else:
                            delivery = command
        if not self._over:
            self._queue.extendleft(reversed(deferred))
        if delivery is not None:
            return self._delivered(delivery, missing)
        if self._failure is not None:
            raise error_of(self._failure)
        return None

    def _end_of_sink(self, command: e.Deliver) -> None:
        """Record the end of a sink. With the last sink, the run is over."""
        if self._strict and command.uneven:
            self._failure = e.Fail(self._run_id, command.uneven)
        self._ended.add(command.sink)
        if self._failure is not None or len(self._ended) >= len(self._sinks):
            self._end()
            self._see_if_done()
        else:
            self._wake()

    def begin_after(self, had: Mapping[str, int]) -> None:
        """Skip the partitions that an earlier client has committed (R5). ``had``: the last one of each sink."""
        self._after = dict(had)
        if len(had) == len(self._sinks):
            self._first = min(had.values()) + 1
        if self._journal is not None:
            for sink, index in had.items():
                self._had(self._journal, sink, index)

    def _had(self, journal: Journal, sink: str, index: int) -> None:
        """Record in the journal that the application has committed a partition, and notify the core (R4)."""
        journal.had(self.id, sink, index)
        self._home.tell(e.OutputCommitted(self._run_id, sink, index))

    def _finish(self, journal: Journal) -> None:
        """Record in the journal that the stream is over (R4)."""
        journal.over(self.id)

    def _see_if_done(self) -> None:
        """Record the stream as over in the journal if every sink has ended and every partition is committed (R4)."""
        ended = len(self._ended) >= len(self._sinks) and self._failure is None
        done = all(self._said.get(sink, index) >= index for sink, index in self._handed.items())
        if self._journal is not None and ended and done:
            self._finish(self._journal)

    def _delivered(self, command: e.Deliver, missing: Mapping[str, tuple[Gap, ...]]) -> Delivered[T]:
        if self._journal is not None:  # R4: taking a partition commits the one before
            if command.sink in self._handed and command.sink not in self._said:
                self._had(self._journal, command.sink, self._handed[command.sink])
            self._handed[command.sink] = command.index
        allow, packed = self._home.allow, command.value
        value: Any
        try:
            value = tuple([opened(part, allow) for part in packed]) if type(packed) is tuple else opened(packed, allow)
        except OperatorError as error:  # the value cannot be opened here
            reason = f"partition {command.index} cannot be delivered: {error}"
            self._failure = e.Fail(self._run_id, reason, command.sink, self._home.name)
            self._end()
            raise error_of(self._failure) from None
        return Delivered(command.index, value, command.size_bytes, command.sink, missing)

    def _blocking(self, sink: str = "") -> Delivered[T]:
        wait_s: float | None = WAITS_S
        with self._news:
            while (delivered := self._next(sink)) is None:
                if self._over or sink in self._ended:
                    raise StopIteration
                self._blocked += not sink
                try:
                    came = self._news.wait(wait_s)
                finally:
                    self._blocked -= not sink
                if not came and wait_s is not None:
                    wait_s = None  # log it once
                    self._explain(sink)
            return delivered

    async def _waiting(self, sink: str = "") -> Delivered[T]:
        loop = asyncio.get_running_loop()
        explains: asyncio.TimerHandle | None = None
        try:
            while True:
                with self._news:
                    delivered = self._next(sink)
                    if delivered is not None:
                        return delivered
                    if self._over or sink in self._ended:
                        raise StopAsyncIteration
                    arrived = self._awaiting.setdefault(loop, asyncio.Event())
                if explains is None:
                    explains = loop.call_later(WAITS_S, self._explain, sink)
                await arrived.wait()
        finally:
            if explains is not None:
                explains.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivered[T]:
        return self._blocking()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered[T]:
        return await self._waiting()

    def sink(self, name: str) -> OneSink[T]:
        """Return the partitions of one sink alone as an iterator. The remaining sinks may be consumed beside it.

        Raises UsageError for a sink that the run does not have.
        """
        sinks = self._sinks
        if name not in sinks:
            raise UsageError(f"there is no sink {name!r}; {nearest(str(name), sinks)}")
        return OneSink(self, name)

    def detach(self) -> None:
        """Leave the run, as ``close`` does.

        Nodes that no other query uses end on every host, and other queries go on.
        """
        self.close()

    def close(self) -> None:
        """End the run on every host, or only this query if the run has several.

        Called from any thread, also repeatedly.

        Every waiting thread and task sees the end.
        """
        self._shut(over=True)

    def _shut(self, *, over: bool) -> None:
        """End the stream. With ``over``, the journal records that no later client can continue it."""
        with self._news:
            if over and self._journal is not None and not self._over:
                self._finish(self._journal)
            self._failure = None
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            undemanded = [queued.command for queued in self._queue if not queued.demanded]
            self._queue.clear()
            self._wake()
            self._left(0)
            for command in undemanded:
                self._pass(command)

    def _pass(self, command: e.Command) -> None:
        """Demand the next partition in place of a query that has left (R3)."""
        if self._others and isinstance(command, e.Ready | e.Deliver) and not getattr(command, "end", False):
            self._demand(command)

    def __del__(self) -> None:
        if not self._over:
            self._shut(over=False)
            warn_dropped(self._what, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.close()
        else:  # a later client may continue the run
            self._shut(over=False)

    def forked(self, why: str) -> None:
        """End the stream in a process that was forked from the client's process. ``why``: the text of its error."""
        self._news = threading.Condition()
        self._awaiting.clear()
        self._queue.clear()
        self._failure, self._over = e.Fail(self._run_id, why, host=self._home.name), True


def _is_empty(value: object) -> bool:
    """Return whether a value is an index without a value. At a sink with several inputs, all values must be empty."""
    return all(map(is_nothing, value)) if type(value) is tuple else is_nothing(value)


class OneSink(Generic[T]):
    """Partitions of one sink of a run: ``for partition in run.sink("alarms")``, or ``async for``."""

    def __init__(self, run: Stream[T], name: str) -> None:
        self._run, self.name = run, name

    def __iter__(self) -> OneSink[T]:
        return self

    def __next__(self) -> Delivered[T]:
        return self._run._blocking(self.name)

    def __aiter__(self) -> OneSink[T]:
        return self

    async def __anext__(self) -> Delivered[T]:
        return await self._run._waiting(self.name)


def error_of(failure: e.Fail) -> RunError:
    """Return the error that the application gets for a failure. Text of hosts is made printable."""
    cause = failure.cause or m.Cause()
    return (HostLostError if failure.lost else RunError)(
        one_line(failure.reason),
        node=one_line(failure.node) or None,
        host=failure.host or None,
        index=cause.index,
        cause_type=one_line(cause.kind) or None,
        remote_traceback=printable(cause.traceback) or None,
    )

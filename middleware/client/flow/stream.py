"""Partitions as an application takes them, of a run or of what it has subscribed to: to iterate over, until the end."""

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
    from typing import TypeVar  # which knows defaults from Python 3.13 on

    T = TypeVar("T")


WAITS_S = 5.0


class Delivered(msgspec.Struct, Generic[T], frozen=True):
    """A partition at a sink: its index (from 0), and its value: bytes, a read-only array, records or plain data.

    Of a sink with several inputs it is the tuple of their values, in their order. ``missing``: by source of which
    partitions it was missing in the graph that gave this one (``Run.missing`` tells of that of now).
    """

    index: int
    value: T
    size_bytes: int
    sink: str = ""
    missing: Mapping[str, tuple[Gap, ...]] = {}


class PreparedQuery(msgspec.Struct, frozen=True):
    """A query as it is to begin: its graph, where its nodes are to be, and what they mean for planning."""

    dataflow: Dataflow
    placement: Placement
    hints: Hints | None = None
    apart: dict[str, float] = {}  # what is there, and too far away


class QueryRequest(msgspec.Struct, frozen=True):
    """What the application says of a query that is to begin."""

    dataflow: Dataflow
    placement: Mapping[str, str] | str
    hints: Hints | None
    radius_s: float | None


class _Queued(NamedTuple):
    """What has arrived; whether the next is demanded already; of what sources were missing then."""

    command: e.Command
    demanded: bool
    missing: Mapping[str, tuple[Gap, ...]]


Prepare = Callable[[QueryRequest, tuple[Dataflow, Placement]], PreparedQuery]


class ClientServices(msgspec.Struct, frozen=True):
    """What a run uses of its client: its name, the hosts there are, what code it allows, and whom to tell what.

    ``prepare``: checks a query that is to begin in a run's graph, and places what that does not have. ``me``: where it
    is reached. ``moves``: takes what runs ask for while they go on. ``logbook``: that of the client.
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
    """Partitions of some sinks: ``for partition in …`` or ``async for partition in …``; ``close()`` ends it early.

    The next partition of a sink is demanded when one of it is taken, so at most one of each is here undelivered.
    Indices without any value are skipped, and counted in ``skipped``, unless the application asked for ``nothing``.

    Any number of threads and tasks may iterate, also of several event loops: each partition goes to exactly one of
    them, all see the end, and what failed raises its error in each, until it is closed. Who is cancelled while it waits
    has taken none. What is dropped while it goes on is closed, with a ``ResourceWarning``.

    Rules:

    - R1: What has come is taken under the lock, by who is there; what arrives wakes everybody who waits, so that it is
      nobody's loss if one of them never wakes up (its task is cancelled, its event loop closed).
    - R2: Where a thread waits for a partition, the next is demanded as it arrives, without waking the thread first.
    - R3: A query that has left takes what comes until the hosts know, and drops it: so it holds nobody up meanwhile.
    - R4: Where the client keeps a journal, a partition counts as had when the next one is taken, or, from the first
      ``commit`` of its sink on, when the application says so, which may be after the end.
    - R5: What another client has had of a stream that begins anew is not handed out.
    - R6: If a stream has waited for ``WAITS_S``, and nobody takes what another stream of its run has, or another sink
      of its own, one line is logged. Nothing can come until somebody does.
    """

    _first = 0  # below 0 where that is not known yet
    _after: Mapping[str, int] = {}  # R5: by sink, the last index that another client has had

    def __init__(
        self, home: ClientServices, run_id: str, sinks: tuple[str, ...], *, strict: bool = False, nothing: bool = False
    ) -> None:
        self.id, self._run_id = run_id, RunId(run_id)
        self.skipped = 0
        self._home = home
        self._news = threading.Condition()  # of what is queued, where the nodes are, and the end
        self._queue: deque[_Queued] = deque()
        self._missing: dict[str, tuple[Gap, ...]] = {}  # of the graph of what arrives now
        self._blocked = 0  # threads that wait in __next__
        self._awaiting: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}  # whose tasks wait in __anext__
        self._failure: e.Fail | None = None
        self._over = False
        self._ended: set[str] = set()  # sinks
        self._sinks = sinks
        self._strict, self._nothing = strict, nothing
        self._journal: Journal | None = None
        self._handed: dict[str, int] = {}  # by sink, what the application has taken last
        self._said: dict[str, int] = {}  # and what it has said that it is done with

    @property
    def first_index(self) -> int:
        """The partition with which it begins; waits until the hosts have agreed on it. Raises its error."""
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

    # --- standing still ---------------------------------------------------------------------------------

    @property
    def _of_the_run(self) -> Iterable[Stream[Any]]:
        """All streams of the run that this client takes from."""
        return (self,)

    def _untaken(self, sink: str) -> str:
        """Return what is here that nobody takes. Partitions of ``sink`` are waited for."""
        for queued in list(self._queue):  # in one step, so no lock is needed: who asks may hold another stream's
            command = queued.command
            if isinstance(command, e.Ready) and not queued.demanded:
                return f"nothing has been taken from {self._what} yet"
            if isinstance(command, e.Deliver) and not (queued.demanded or command.end or command.sink == sink):
                return f"nobody takes partition {command.index} of sink {command.sink!r} of {self._what}"
        return ""

    def _why_still(self, sink: str) -> str:
        """Return why nothing comes, as far as this client knows."""
        for stream in self._of_the_run:
            waits = stream._blocked or stream._awaiting
            if (stream is self or not waits) and not stream._over and (why := stream._untaken(sink)):
                return f"{why}; take from it as well, in another thread or task, or close it"
        return ""

    def _explain(self, sink: str) -> None:
        """R6: log why nothing has come for ``WAITS_S``."""
        if why := self._why_still(sink):
            text = f"{self._what} has waited for a partition for {in_seconds(WAITS_S)}: {why}"
            self._home.logbook.write("stream-waits", text, run=self.id, duration_s=WAITS_S, reason=why)

    @abstractmethod
    def _demand(self, taken: e.Command) -> None:
        """Demand what follows on what was taken: of the same sink, or, as all is ready, of every sink."""

    @abstractmethod
    def _left(self, query: int) -> None:
        """R3: a query has left."""

    @property
    def _others(self) -> bool:
        """Whether there are queries that go on."""
        return True

    @abstractmethod
    def take(self, command: e.Command) -> None:
        """A command for the application; any thread."""

    def _arrived(self, command: e.Command) -> None:
        """A command for who iterates; under the lock."""
        wanted = isinstance(command, e.Deliver) and not command.end and len(self._queue) < self._blocked
        self._queue.append(_Queued(command, wanted, self._missing))
        if wanted:  # R2: a thread waits: demand the next without waking the thread first
            self._demand(command)
        self._wake()

    def _wake(self) -> None:
        self._news.notify_all()
        while self._awaiting:  # R1: wake every task, as one of them may never wake up
            loop, arrived = self._awaiting.popitem()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(arrived.set)

    def _next(self, sink: str) -> Delivered[T] | None:
        """The partition that is here, of ``sink`` or of any; None when there is none. Raises the run's error.

        Under the lock.
        """
        deferred: list[_Queued] = []
        delivery: e.Deliver | None = None
        while self._queue and not self._over and delivery is None:
            command, demanded, missing = queued = self._queue.popleft()
            match command:
                case e.Fail():
                    self._failure = command
                    self._end()
                case e.Deliver(end=True):  # nothing else of the sink is here: it was demanded when that was taken
                    self._end_of_sink(command)
                case e.Deliver() if sink and command.sink != sink:
                    deferred.append(queued)
                case e.Deliver() | e.Ready():
                    if not demanded:
                        self._demand(command)
                    if isinstance(command, e.Deliver):
                        # R5: another client has had this partition
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
        """A sink has come to its end. With the last of them the run is over."""
        if self._strict and command.uneven:
            self._failure = e.Fail(self._run_id, command.uneven)
        self._ended.add(command.sink)
        if self._failure is not None or len(self._ended) >= len(self._sinks):
            self._end()
            self._see_if_done()
        else:
            self._wake()

    def begin_after(self, had: Mapping[str, int]) -> None:
        """R5: of these sinks another client has had the partitions up to these."""
        self._after = dict(had)
        if len(had) == len(self._sinks):
            self._first = min(had.values()) + 1
        if self._journal is not None:
            for sink, index in had.items():
                self._had(self._journal, sink, index)

    def _had(self, journal: Journal, sink: str, index: int) -> None:
        """R4: the application is done with a partition."""
        journal.had(self.id, sink, index)
        self._home.tell(e.OutputCommitted(self._run_id, sink, index))

    def _finish(self, journal: Journal) -> None:
        """R4: nothing is left of it to be had."""
        journal.over(self.id)

    def _see_if_done(self) -> None:
        """R4: whether the streams have ended, and the application is done with all that came."""
        ended = len(self._ended) >= len(self._sinks) and self._failure is None
        done = all(self._said.get(sink, index) >= index for sink, index in self._handed.items())
        if self._journal is not None and ended and done:
            self._finish(self._journal)

    def _delivered(self, command: e.Deliver, missing: Mapping[str, tuple[Gap, ...]]) -> Delivered[T]:
        if self._journal is not None:  # R4: the application takes the next one, so it has had the one before
            if command.sink in self._handed and command.sink not in self._said:
                self._had(self._journal, command.sink, self._handed[command.sink])
            self._handed[command.sink] = command.index
        allow, packed = self._home.allow, command.value
        value: Any
        try:
            value = tuple([opened(part, allow) for part in packed]) if type(packed) is tuple else opened(packed, allow)
        except OperatorError as error:  # what came cannot be had here
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
                    wait_s = None  # it is said once
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
        """The partitions of one sink alone, to iterate over as over the run, beside who takes those of the others.
        Raises UsageError for a sink that the run does not have."""
        sinks = self._sinks
        if name not in sinks:
            raise UsageError(f"there is no sink {name!r}; {nearest(str(name), sinks)}")
        return OneSink(self, name)

    def detach(self) -> None:
        """Leave, as ``close`` does: what no other query uses ends on every host, and the others go on."""
        self.close()

    def close(self) -> None:
        """End it: the run on every host, or of several queries this one; idempotent, from any thread.

        Whoever waits for a partition sees the end.
        """
        self._shut(over=True)

    def _shut(self, *, over: bool) -> None:
        """End it; ``over``: nobody is to go on with it."""
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
        """R3: what comes for a query that has left."""
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
        else:  # another client may go on with it
            self._shut(over=False)

    def forked(self, why: str) -> None:
        """This process is a fork of the one that began it: nothing comes here."""
        self._news = threading.Condition()
        self._awaiting.clear()
        self._queue.clear()
        self._failure, self._over = e.Fail(self._run_id, why, host=self._home.name), True


def _is_empty(value: object) -> bool:
    """Whether this is an index without a value, of several inputs without any."""
    return all(map(is_nothing, value)) if type(value) is tuple else is_nothing(value)


class OneSink(Generic[T]):
    """The partitions of one sink of a run: ``for partition in run.sink("alarms")``, or ``async for``."""

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

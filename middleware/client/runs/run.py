"""A running dataflow as its application has it: partitions to iterate over, and operators to move."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from thalweg.middleware.client.failover.journal import Journal, JournaledQuery
from thalweg.middleware.client.flow.stream import ClientServices, PreparedQuery, QueryRequest, Stream, T, error_of
from thalweg.middleware.client.moving.moves import MoveHandle
from thalweg.middleware.client.queries.subscription import ticket_of
from thalweg.middleware.client.steering.replanning import Replanner
from thalweg.middleware.core.flow.tree import without
from thalweg.middleware.core.reshaping.shape import reshape
from thalweg.middleware.dataflow import Dataflow, Placement, check_codes, check_placement, sinks_at
from thalweg.middleware.errors import DataflowError, PlacementError, RunError, UsageError, expect, nearest, words
from thalweg.middleware.loading import reorderable
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.absent_sources import Gap, all_gaps
from thalweg.middleware.protocol.messages import RoutePreference
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.protocol.split_graph import PlacedGraph


class Run(Stream[T]):
    """A running dataflow: ``for partition in run`` or ``async for partition in run``; ``close()`` ends it early.

    ``placement`` is where its nodes are now, as far as the client has heard, and ``dataflow`` the graph they form.
    ``attached``: by number the queries that go on in a run that was resumed (``Client.resume``). A sink that nobody
    takes from holds up what it shares with others. How it is iterated over says ``Stream``.

    Rules:

    - R1: The run that an application began is query 0, and hears all that is said of it; what is of others it passes
      on. They keep it, it does not keep them. The run is over when all have left.
    """

    query = 0

    def __init__(
        self,
        home: ClientServices,
        run_id: str,
        placement: Placement,
        dataflow: Dataflow,
        search: Replanner | None,
        *,
        strict: bool = False,
        nothing: bool = False,
    ) -> None:
        super().__init__(home, run_id, dataflow.sinks, strict=strict, nothing=nothing)
        self.placement = placement
        self.dataflow = dataflow
        self._missing = all_gaps(dataflow)
        self.search = search
        self.ways: tuple[RoutePreference, ...] = ()  # over which networks partitions go at first
        self.networks: Mapping[str, Network] = {}  # as they were asked for, whoever is joined to them
        self.ahead = 1  # partitions that may be under way over each edge
        self._queries: weakref.WeakValueDictionary[int, Attached[Any]] = weakref.WeakValueDictionary()
        self._by_sink: dict[str, int] = {}  # sinks of others
        self._open, self._count = {0}, 0  # queries that go on, and that there have been
        self._left_over = {0}  # those of which something is left to be had
        self.attached: dict[int, Attached[Any]] = {}
        self._failed: e.Fail | None = None  # the failure of all queries
        self._sharing = threading.Lock()  # of these four

    @property
    def _of_the_run(self) -> Iterable[Stream[Any]]:
        return (self, *list(self._queries.values()))

    @property
    def ticket(self) -> str:
        """A word that names the run: who may subscribe gives it to ``Client.subscribe``. It gives no rights."""
        assert self._home.me is not None
        return ticket_of(self.id, self._home.me)

    def allow(self, *names: str) -> None:
        """Let clients of these names, and no others, subscribe to the nodes of the run, or of this query.

        Who has subscribed and may not any more is dismissed. Returns at once. Raises UsageError.
        """
        allowed = frozenset(words(names, "names of clients are texts"))
        self._home.tell(e.SubscribersAllowed(self._run_id, self.query, allowed))

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` and ``placement`` of the same moment: either changes while the run goes on."""
        with self._news:
            return self.dataflow, self.placement

    @property
    def missing(self) -> dict[str, tuple[Gap, ...]]:
        """By source the partitions of which it is missing, each [first, until); ``until`` None: it is absent now.

        The run goes on without a source of a lost host where operators allow that (``missing="nothing"``). What it has
        given since the last change is what one machine gives that evaluates ``dataflow``; ``Delivered.missing`` says of
        which change a partition is.
        """
        return all_gaps(self.tree[0])

    def take(self, command: e.Command) -> None:
        """A command for the application; any thread."""
        query = self._query_of(command)
        if query and (other := self._queries.get(query)) is not None:  # R1: the command is for another query
            other._missing = self._missing
            other.take(command)
        with self._news:
            if isinstance(command, e.Ready):
                for again in self.attached.values():
                    again.take(command)
            if isinstance(command, e.Ready) and self.ways:
                self._home.tell(e.PlacementProposed(self._run_id, {}, "networks", ways=self.ways))
            match command:
                case e.Ready() | e.Deliver() | e.Fail() if not self._over and not query:
                    self._arrived(command)
                case e.Ready() | e.Deliver() if not query:
                    self._pass(command)
                case e.OperatorMoved(_, node, host):
                    self.placement = {**self.placement, node: host}
                case e.TreeChanged(_, dataflow, placement):
                    self._become(PlacedGraph(dataflow, placement))
                    self._missing = all_gaps(dataflow)
                case e.RequestPlan() if self.search is not None:
                    self._plan_aside(self.search, command)
        if isinstance(command, e.Fail) and query and self._journal is not None:
            self._finished(self._journal, query)
        if isinstance(command, e.Fail) and command.query is None:
            self._failed = command
            for other in list(self._queries.values()):
                other.take(command)

    def _query_of(self, command: e.Command) -> int:
        """R1: whom a command is for, 0 where it is for this one or for all."""
        if isinstance(command, e.Deliver):
            return self._by_sink.get(command.sink, 0)
        if isinstance(command, e.QueryStarted):
            self._grow(command)
            return command.query
        return (command.query or 0) if isinstance(command, e.Fail) else 0

    def _grow(self, command: e.QueryStarted) -> None:
        """Another query has begun in the run."""
        other = self._queries.get(command.query)
        with self._news:
            if other is not None:
                other._begun(command, self.dataflow.by_name)
                if self.search is not None and other.hints is not None:
                    self.search = self.search.with_hints(other.hints, command.names)
            self._by_sink |= {name: command.query for name in command.dataflow.sinks if name not in self.dataflow.sinks}
            self._become(PlacedGraph(command.dataflow, command.placement))

    def _become(self, tree: PlacedGraph) -> None:
        """What goes on under the run's own name is that now."""
        self.dataflow, self.placement = tree

    def _plan_aside(self, search: Replanner, command: e.RequestPlan) -> None:
        threading.Thread(target=self._plan, args=(search, command), name="thalweg-planner", daemon=True).start()

    def _plan(self, search: Replanner, command: e.RequestPlan) -> None:
        """One look for a better placement, beside the flow."""
        begun = time.perf_counter()
        answer = search.answer(command)
        if answer.placement is not None:
            took = {"planning_wall_s": time.perf_counter() - begun}
            answer = msgspec.structs.replace(answer, detail=answer.detail | took)
        self._home.tell(answer)

    def _demand(self, taken: e.Command) -> None:
        """Demand what follows on what was taken: of the same sink, or, as all is ready, of every sink."""
        if isinstance(taken, e.Deliver) and len(self.dataflow.sinks) > 1:
            self._home.tell(e.NextRequested(self._run_id, taken.sink))
        elif isinstance(taken, e.Deliver) or not self._by_sink:
            self._home.tell(e.NextRequested(self._run_id))
        else:
            for sink in self._sinks:
                self._home.tell(e.NextRequested(self._run_id, sink))

    def joined(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> None:
        """These are the hosts of the cluster from now on, and the run's networks as far as they are joined to them."""
        with self._news:
            if self.search is not None:
                self.search = self.search.among(hosts, networks)

    def move(self, placement: Mapping[str, str]) -> MoveHandle:
        """Have these operators change hosts, all between the same two partitions, while the flow goes on.

        Returns at once a handle. ``handle.result(timeout_s)`` waits until the operators have moved and returns from
        which partition on, or raises MoveRefused with the reason. If an operator cannot move, for example as its target
        lacks its code, or room, all stay. One whose state is too large, or whose target is lost later, stays alone. A
        later call replaces one that has not begun.

        Raises PlacementError for an unknown node or host, or a node that is pinned.
        """
        self._check_move(self.tree, placement)
        return self._request_moves(placement, {self._run_id: placement})

    def _request_moves(self, placement: Mapping[str, str], parts: Mapping[RunId, Mapping[str, str]]) -> MoveHandle:
        """Ask for a move, in these runs; ``placement``: all of it."""
        where = ", ".join(f"{name!r} to host {host!r}" for name, host in placement.items())
        handle = MoveHandle(f"the move of {where or 'nothing'}", len(parts))
        for run, part in parts.items():
            self._request(handle, e.PlacementProposed(run, dict(part), "asked for"))
        return handle

    def _request(self, handle: MoveHandle, event: e.PlacementProposed) -> None:
        assert self._home.moves is not None
        self._home.moves.request(handle, event)
        if self._failed is not None:
            self._home.moves.failed(self.id, f"the run has failed: {self._failed.reason}")

    def _check_move(self, tree: tuple[Dataflow, Placement], placement: Mapping[str, str]) -> None:
        """Raise PlacementError where they cannot."""
        dataflow, present = tree
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        away = {name for name in dataflow.sinks if present.get(name) != self._home.name}  # other clients'
        still = {name: host for name, host in present.items() if name not in away}
        check_placement(without(dataflow, away), {**still, **placement}, self._home.hosts())
        for name in placement:
            if (kind := dataflow.by_name[name].kind) != "operator":
                raise PlacementError(f"{name!r} is the {kind}; only operators move")

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> MoveHandle:
        """Have the run go on as another tree of the same sources, from one partition on, while the flow goes on.

        Operators whose code is ``reorderable`` (and merges its states, if it has some) may be others in it, with other
        inputs, and anywhere; they get names of their own, which ``dataflow`` and ``placement`` of this run then tell.
        All others keep their inputs; where ``placement`` has them elsewhere, they move when the tree has changed.

        Returns at once a handle, as ``move``. Where an operator cannot run (its host lacks the code, or room), the tree
        stays. A later call replaces one that has not begun. Raises DataflowError for a tree that would not give the
        same bytes, PlacementError for an unknown node or host.
        """
        return self._reshape(self._run_id, self.tree, dataflow, placement)

    def _reshape(
        self, run: RunId, tree: tuple[Dataflow, Placement], dataflow: Dataflow, placement: Mapping[str, str]
    ) -> MoveHandle:
        """Have a run go on as another tree than that one."""
        hosts = self._home.hosts()
        expect(dataflow, Dataflow, "what runs is a Dataflow")
        check_codes(dataflow)
        dataflow = sinks_at(dataflow.validate(hosts), self._home.name)
        full = check_placement(dataflow, {**dict.fromkeys(dataflow.sinks, self._home.name), **placement}, hosts)
        present, where = tree
        codes = [flow.by_name[name].code for flow in (dataflow, present) for name in flow.operators]
        free = reorderable(codes, self._home.allow)
        reshape(present, dataflow, full, where, free, 0)  # what is wrong with it is said here
        handle = MoveHandle("the change to another tree")
        self._request(handle, e.PlacementProposed(run, full, "asked for", dataflow, *free))
        return handle

    def attach(
        self,
        dataflow: Dataflow,
        placement: Mapping[str, str] | str = "one-shot",
        *,
        hints: Hints | None = None,
        radius_s: float | None = None,
        strict: bool = False,
        nothing: bool = False,
        subscribers: Collection[str] = (),
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
            hints: as for ``Client.run``, for this query.
            strict: as for ``Client.run``, for this query.
            nothing: as for ``Client.run``, for this query.
            subscribers: names of other clients that may subscribe to the nodes which this query uses.

        Returns at once. Where it cannot begin (a host lacks the code, or room, or is gone), that is the RunError of
        whoever iterates over it, and the run goes on. Raises RunError when the run is over, DataflowError for a query
        that has nothing in common with it or means another node by a name of the run's, PlacementError, UsageError.
        """
        self._check_open()
        wanted, begin = self._prepare(QueryRequest(dataflow, placement, hints, radius_s))
        allowed = words(subscribers, "subscribers are a collection of names of clients")
        with self._sharing:
            self._check_open()
            self._count += 1
            number = self._count
            self._open.add(number)
            self._left_over.add(number)
        other: Attached[Any] = Attached(self, number, wanted, strict=strict, nothing=nothing)
        self._queries[number] = other
        begin(number)
        if allowed:
            other.allow(*allowed)
        return other

    def _prepare(self, offered: QueryRequest) -> tuple[PreparedQuery, Callable[[int], None]]:
        """A query as it is to begin, and what has it begin under its number."""
        assert self._home.prepare is not None
        wanted = self._home.prepare(offered, self.tree)
        where = wanted.placement, wanted.apart
        return wanted, lambda number: self._home.tell(e.AttachRequested(self._run_id, number, wanted.dataflow, *where))

    def _take_up(self, queries: Mapping[int, JournaledQuery], starts: Mapping[str, int], left: Collection[int]) -> None:
        """Go on with the queries that another client attached; ``left``: what is over of the others."""
        for number, query in queries.items():
            where = {name: self.placement[run_name] for name, run_name in query.names.items()}
            wanted = PreparedQuery(query.dataflow, where)
            other: Attached[Any] = Attached(self, number, wanted, strict=self._strict, nothing=self._nothing)
            other._go_on(query, min(starts[sink] for sink in query.sinks))
            self._queries[number] = self.attached[number] = other
            self._by_sink |= dict.fromkeys(query.sinks, number)
        self._sinks = tuple([sink for sink in self._sinks if sink not in self._by_sink])
        self._count = max([*queries, *left], default=0)
        self._open |= queries.keys()
        self._left_over |= queries.keys()
        if 0 in left:
            self._over = True
            self._open.discard(0)
            self._left_over.discard(0)

    def _finish(self, journal: Journal) -> None:
        self._finished(journal, 0)

    def _finished(self, journal: Journal, query: int) -> None:
        """Nothing is left of a query to be had; of all of them, the run is over."""
        with self._sharing:
            self._left_over.discard(query)
            over = not self._left_over
        if over:
            journal.over(self.id)
        else:
            journal.query(self.id, query, None)

    def _check_open(self) -> None:
        if self._failed is not None:
            raise error_of(self._failed)
        if not self._open:
            raise RunError(f"run {self.id} is over; begin the query by itself, with Client.run", host=self._home.name)

    @property
    def _others(self) -> bool:
        return bool(self._open)

    def _left(self, query: int) -> None:
        """R1: a query has left."""
        with self._sharing:
            self._open.discard(query)
            last = not self._open or self._failed is not None
        if last:
            self._home.closed(self.id)
        else:
            self._home.tell(e.DetachRequested(self._run_id, query))

    def close_all(self) -> None:
        """End all queries."""
        with self._sharing:
            self._open.clear()  # the run is over at once, and no query leaves by itself
        for query in (self, *self._queries.values()):
            query._shut(over=False)

    def commit(self, index: int, sink: str = "") -> None:
        """The application is done with partition ``index``, and all before: who resumes the run gets what follows.

        Without it a partition counts as done when the next one is taken; from the first call on only what is said so,
        which may be ``first_index - 1`` before anything is. ``sink``: of several. Raises UsageError for a sink that
        there is not, a partition that was not taken, and where the client keeps no journal. Raises JournalError if it
        cannot be written down; it is tried again then, so a later commit may succeed.
        """
        if self._journal is None:
            raise UsageError(
                "there is nothing to write that down in; give the client a journal: Client(…, journal=DIR)"
            )
        expect(index, int, "the index of a partition is a whole number")
        sinks = self._sinks
        if (sink or sinks[0]) not in sinks or (not sink and len(sinks) > 1):
            raise UsageError(f"which sink? {nearest(sink, sinks)}")
        name = sink or sinks[0]
        latest = self._handed.get(name, self.first_index - 1)
        if not self.first_index - 1 <= index <= latest:
            why = f"they are {self.first_index} to {latest}"
            raise UsageError(f"partition {index} of sink {name!r} is none that was taken: {why}")
        self._said[name] = max(index, self._said.get(name, index))
        self._had(self._journal, name, self._said[name])
        self._see_if_done()
        self._journal.check()

    def forked(self, why: str) -> None:
        """End the run in a process that was forked from that of the client. ``why`` is the text of its error."""
        super().forked(why)
        self._failed, self._open, self._sharing = self._failure, set(), threading.Lock()
        for query in list(self._queries.values()):
            query.forked(why)


class Attached(Run[T]):
    """A query that began in a run of others (``Run.attach``): its own partitions, to iterate over as over a run.

    ``dataflow`` is its graph in its own names, ``names`` what its nodes are called in the run, ``shared`` those that
    the run had before, ``apart`` those that it had too far away (``radius_s``), and how far, in seconds; ``detach`` or
    ``close`` leaves. A query that fails, or leaves, disturbs no other; one that nobody takes from holds up the others,
    as a sink does.
    """

    def __init__(self, of: Run[Any], number: int, wanted: PreparedQuery, *, strict: bool, nothing: bool) -> None:
        super().__init__(of._home, of.id, wanted.placement, wanted.dataflow, None, strict=strict, nothing=nothing)
        self._journal = of._journal
        self.query, self.hints, self.apart = number, wanted.hints, wanted.apart
        self.names: dict[str, str] = {}
        self.shared: tuple[str, ...] = ()
        self._of, self._first = of, -1
        self._called: dict[str, str] = {}  # its sinks, by their names in the run

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow``, and where its nodes are now."""
        names, (_, where) = self.names, self._of.tree
        self.placement = {name: where.get(names.get(name, ""), host) for name, host in self.placement.items()}
        return self.dataflow, self.placement

    def _begun(self, command: e.QueryStarted, before: Collection[str]) -> None:
        """It has begun in the run, which had these nodes before."""
        with self._news:
            self.names, self._first = command.names, command.first_index
            self.shared = tuple([name for name in self.dataflow.by_name if command.names.get(name) in before])
            self._called = {command.names[name]: name for name in self._sinks}
        if self._journal is not None:
            query = JournaledQuery(self.dataflow, self.names, self.shared, self._first)
            self._journal.query(self.id, self.query, query)

    def _go_on(self, query: JournaledQuery, first: int) -> None:
        """Another client began it, and has had what comes before the partition ``first``."""
        self.names, self.shared, self._first = query.names, query.shared, first
        self._called = {query.names[name]: name for name in self._sinks}

    def take(self, command: e.Command) -> None:
        if isinstance(
            command, e.QueryStarted | e.Ready
        ):  # its first partition is demanded at once: nobody waits for it to be taken
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
            self._home.tell(e.NextRequested(self._run_id, self.names[sink]))

    def _had(self, journal: Journal, sink: str, index: int) -> None:
        super()._had(journal, self.names[sink], index)

    def _finish(self, journal: Journal) -> None:
        self._of._finished(journal, self.query)

    def _left(self, query: int) -> None:
        self._of._left(self.query)

    @property
    def _others(self) -> bool:
        return bool(self._of._open)

    @property
    def _of_the_run(self) -> Iterable[Stream[Any]]:
        return self._of._of_the_run

    @property
    def _what(self) -> str:
        return f"query {self.query} of run {self.id}"

    def attach(self, dataflow: Dataflow, *args: Any, **options: Any) -> Attached[Any]:
        """Have yet another query begin in the run, as ``Run.attach``."""
        return self._of.attach(dataflow, *args, **options)

    def move(self, placement: Mapping[str, str]) -> MoveHandle:
        """Have operators change hosts, as ``Run.move``; those that are shared move for all."""
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        check_placement(self.dataflow, {**self.tree[1], **placement}, self._home.hosts())
        handle = self._of.move({self.names.get(name, name): host for name, host in placement.items()})
        handle.names = {node: name for name, node in self.names.items()}
        return handle

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> MoveHandle:
        """A query that shares nodes with others has no tree of its own to change: raises DataflowError."""
        raise DataflowError("a query that was attached keeps its shape; only trees of one query change theirs")

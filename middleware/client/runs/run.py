"""Run as its application sees it: partitions to iterate over, and operators to move."""

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
    """Running dataflow: ``for partition in run`` or ``async for partition in run``. ``close()`` ends the run early.

    ``dataflow`` is the graph that runs now, and ``placement`` has the hosts of its nodes, as far as the client was
    notified. ``attached`` has the queries of a resumed run (``Client.resume``) by number. A sink without a consumer
    holds up the nodes that it shares with other sinks. ``Stream`` has the rules of iteration.

    Rules:

    - R1: The run that an application began is query 0. The run receives every command for the run, and passes commands
      for an attached query on. A query holds a reference to the run. The run refers to its queries weakly, except in
      ``attached``. The run is over when every query has left.
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
        self.ways: tuple[RoutePreference, ...] = ()  # networks of the links at the start
        self.networks: Mapping[str, Network] = {}  # as requested, also networks without a joined host
        self.ahead = 1  # partitions that may be under way over each edge
        self._queries: weakref.WeakValueDictionary[int, Attached[Any]] = weakref.WeakValueDictionary()
        self._by_sink: dict[str, int] = {}  # sinks of attached queries -> their numbers
        self._open, self._count = {0}, 0  # queries under way, and the number of queries so far
        self._left_over = {0}  # queries that are not over in the journal
        self.attached: dict[int, Attached[Any]] = {}
        self._failed: e.Fail | None = None  # the failure of all queries
        self._sharing = threading.Lock()  # guards _open, _count and _left_over

    @property
    def _of_the_run(self) -> Iterable[Stream[Any]]:
        return (self, *list(self._queries.values()))

    @property
    def ticket(self) -> str:
        """Text with the run's name, for ``Client.subscribe`` of a permitted client. The ticket gives no rights."""
        assert self._home.me is not None
        return ticket_of(self.id, self._home.me)

    def allow(self, *names: str) -> None:
        """Let exactly the clients of these names subscribe to the nodes of the run, or of this query.

        A present subscriber with a different name is dismissed. Returns at once. Raises UsageError.
        """
        allowed = frozenset(words(names, "names of clients are texts"))
        self._home.tell(e.SubscribersAllowed(self._run_id, self.query, allowed))

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` and ``placement`` of the same moment. Both may change while data flows."""
        with self._news:
            return self.dataflow, self.placement

    @property
    def missing(self) -> dict[str, tuple[Gap, ...]]:
        """Partitions without a source, as ranges [first, until) by source.

        ``until`` is None for a source that is absent now.

        A run with failover goes on without a source of a lost host if its operators allow that (``missing="nothing"``).
        The partitions since the last change equal those of a single machine that evaluates ``dataflow``.
        ``Delivered.missing`` has the ranges that hold for a delivered partition.
        """
        return all_gaps(self.tree[0])

    def take(self, command: e.Command) -> None:
        """Handle a command of the core for this run, or pass the command on to a query (R1). Called in any thread."""
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
        """Return the number of the query that a command is for (R1).

        0 stands for the run itself and for all queries.
        """
        if isinstance(command, e.Deliver):
            return self._by_sink.get(command.sink, 0)
        if isinstance(command, e.QueryStarted):
            self._grow(command)
            return command.query
        return (command.query or 0) if isinstance(command, e.Fail) else 0

    def _grow(self, command: e.QueryStarted) -> None:
        """Record that a further query has begun in the run, with the graph and placement that result."""
        other = self._queries.get(command.query)
        with self._news:
            if other is not None:
                other._begun(command, self.dataflow.by_name)
                if self.search is not None and other.hints is not None:
                    self.search = self.search.with_hints(other.hints, command.names)
            self._by_sink |= {name: command.query for name in command.dataflow.sinks if name not in self.dataflow.sinks}
            self._become(PlacedGraph(command.dataflow, command.placement))

    def _become(self, tree: PlacedGraph) -> None:
        """Record the graph and placement that the run now has."""
        self.dataflow, self.placement = tree

    def _plan_aside(self, search: Replanner, command: e.RequestPlan) -> None:
        threading.Thread(target=self._plan, args=(search, command), name="thalweg-planner", daemon=True).start()

    def _plan(self, search: Replanner, command: e.RequestPlan) -> None:
        """Plan once in a thread beside the flow, and send the result to the core."""
        begun = time.perf_counter()
        answer = search.answer(command)
        if answer.placement is not None:
            took = {"planning_wall_s": time.perf_counter() - begun}
            answer = msgspec.structs.replace(answer, detail=answer.detail | took)
        self._home.tell(answer)

    def _demand(self, taken: e.Command) -> None:
        """Demand the partition after a taken partition, from the same sink. After ``Ready``, demand from every sink."""
        if isinstance(taken, e.Deliver) and len(self.dataflow.sinks) > 1:
            self._home.tell(e.NextRequested(self._run_id, taken.sink))
        elif isinstance(taken, e.Deliver) or not self._by_sink:
            self._home.tell(e.NextRequested(self._run_id))
        else:
            for sink in self._sinks:
                self._home.tell(e.NextRequested(self._run_id, sink))

    def joined(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> None:
        """Record the cluster's present hosts, and the run's networks with the hosts joined to them, for later plans."""
        with self._news:
            if self.search is not None:
                self.search = self.search.among(hosts, networks)

    def move(self, placement: Mapping[str, str]) -> MoveHandle:
        """Move these operators to other hosts while data flows, all between the same two partitions.

        Returns a handle at once. ``handle.result(timeout_s)`` waits until the operators have moved, and returns the
        first partition of the new placement. If an operator cannot move, for example because the target lacks the code
        or room, all operators stay, and ``result`` raises MoveRefused with the reason. An operator whose state is too
        large, or whose target is lost later, stays alone. A later call replaces a move that has not begun.

        Raises PlacementError for an unknown node or host, for a pinned node, and for a node that is no operator.
        """
        self._check_move(self.tree, placement)
        return self._request_moves(placement, {self._run_id: placement})

    def _request_moves(self, placement: Mapping[str, str], parts: Mapping[RunId, Mapping[str, str]]) -> MoveHandle:
        """Request the move ``placement``, split over ``parts`` into a placement for each run or stripe.

        Return its handle.
        """
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
        """Raise PlacementError if the operators of ``placement`` cannot move there in this tree."""
        dataflow, present = tree
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        away = {name for name in dataflow.sinks if present.get(name) != self._home.name}  # sinks of other clients
        still = {name: host for name, host in present.items() if name not in away}
        check_placement(without(dataflow, away), {**still, **placement}, self._home.hosts())
        for name in placement:
            if (kind := dataflow.by_name[name].kind) != "operator":
                raise PlacementError(f"node {name!r} is a {kind}; only operators move")

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> MoveHandle:
        """Change to a different tree of the same sources while data flows, between two partitions.

        Operators with ``reorderable`` code may be different in the new tree, with different inputs, on every host. If
        such code has state, it must merge states. These operators get new names, which the run's ``dataflow`` and
        ``placement`` then have. The remaining operators keep their inputs. An operator with a new host in ``placement``
        moves after the change.

        Returns a handle at once, as ``move`` does. If an operator cannot run, because its host lacks the code or room,
        the tree stays. A later call replaces a change that has not begun. Raises DataflowError for a tree that would
        not give the same bytes, PlacementError for an unknown node or host.
        """
        return self._reshape(self._run_id, self.tree, dataflow, placement)

    def _reshape(
        self, run: RunId, tree: tuple[Dataflow, Placement], dataflow: Dataflow, placement: Mapping[str, str]
    ) -> MoveHandle:
        """Check and request the change of ``run`` from its present tree to ``dataflow``. Return the handle."""
        hosts = self._home.hosts()
        expect(dataflow, Dataflow, "the argument dataflow is a Dataflow")
        check_codes(dataflow)
        dataflow = sinks_at(dataflow.validate(hosts), self._home.name)
        full = check_placement(dataflow, {**dict.fromkeys(dataflow.sinks, self._home.name), **placement}, hosts)
        present, where = tree
        codes = [flow.by_name[name].code for flow in (dataflow, present) for name in flow.operators]
        free = reorderable(codes, self._home.allow)
        reshape(present, dataflow, full, where, free, 0)  # raises if the tree is wrong
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
        """Begin a further query in this run while data flows. Return its partitions as an iterator.

        The query shares equal nodes with the run. Nodes are equal if they have the same code, parameters and inputs,
        and the same host if they are pinned, as sources are. Shared nodes stay where they are. The remaining nodes
        begin with a partition on which the hosts agree (``first_index``), as on a machine where the query begins there.

        Args:
            dataflow: the query's graph, with its own names. Its sinks are at this client.
            placement: a host for every operator that the run lacks, or a planner's name.
            radius_s: the largest distance of a shared operator, in seconds of network coordinates
                (``Client.coordinates``), from the place that is best for this query alone. An operator farther away is
                not shared, and ``apart`` has its distance. None: all equal operators are shared.
            hints: as for ``Client.run``, for this query.
            strict: as for ``Client.run``, for this query.
            nothing: as for ``Client.run``, for this query.
            subscribers: names of clients that may subscribe to the nodes of this query.

        Returns before the query begins. With a planner's name, the call first waits for the plan. If the query cannot
        begin (a host is lost, or lacks the code or room), its iterator raises RunError, and the run goes on. Raises
        RunError if the run is over, DataflowError for a query that shares nothing with the run or uses a name of the
        run for a different node, PlacementError, UsageError.
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
        """Return the checked query, and the function that starts the query under a number."""
        assert self._home.prepare is not None
        wanted = self._home.prepare(offered, self.tree)
        where = wanted.placement, wanted.apart
        return wanted, lambda number: self._home.tell(e.AttachRequested(self._run_id, number, wanted.dataflow, *where))

    def _take_up(self, queries: Mapping[int, JournaledQuery], starts: Mapping[str, int], left: Collection[int]) -> None:
        """Continue the queries that an earlier client attached. ``left``: the numbers of queries that are over."""
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
        """Record in the journal that a query is over. With the last query, the run is over."""
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
        """End the query on the hosts, or the run after its last query (R1)."""
        with self._sharing:
            self._open.discard(query)
            last = not self._open or self._failed is not None
        if last:
            self._home.closed(self.id)
        else:
            self._home.tell(e.DetachRequested(self._run_id, query))

    def close_all(self) -> None:
        """End the run with every query."""
        with self._sharing:
            self._open.clear()  # the run is over at once, and no query leaves by itself
        for query in (self, *self._queries.values()):
            query._shut(over=False)

    def commit(self, index: int, sink: str = "") -> None:
        """Commit partition ``index`` and the earlier ones, so that a resuming client gets the next partition.

        Without ``commit``, a partition is committed when the application takes the next one. After the first call, only
        calls count. Before a partition is taken, ``index`` may be ``first_index - 1``. ``sink``: required if the run
        has several.

        Raises UsageError for an unknown sink, for a partition that was not taken, and if the client has no journal.
        Raises JournalError if the journal cannot be written. The client tries again then, so a later commit may
        succeed.
        """
        if self._journal is None:
            raise UsageError(
                "commit writes to a journal, and this client has none; give it one: Client(…, journal=DIR)"
            )
        expect(index, int, "the index of a partition is a whole number")
        sinks = self._sinks
        if (sink or sinks[0]) not in sinks or (not sink and len(sinks) > 1):
            raise UsageError(f"name a sink of the run, not {sink!r}; {nearest(sink, sinks)}")
        name = sink or sinks[0]
        latest = self._handed.get(name, self.first_index - 1)
        if not self.first_index - 1 <= index <= latest:
            why = f"the application has taken {self.first_index} to {latest}"
            raise UsageError(f"partition {index} of sink {name!r} has not been taken: {why}")
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
    """Query that began in a present run (``Run.attach``), with its own partitions to iterate over.

    ``dataflow`` is the query's graph in its own names, and ``names`` has the nodes' names in the run. ``shared``: the
    nodes that the run had before. ``apart``: equal nodes that are too far away to share (``radius_s``), with the
    distance in seconds. ``detach`` or ``close`` leaves the run. A query that fails or leaves disturbs no other query. A
    query without a consumer holds up the remaining queries, as a sink does.
    """

    def __init__(self, of: Run[Any], number: int, wanted: PreparedQuery, *, strict: bool, nothing: bool) -> None:
        super().__init__(of._home, of.id, wanted.placement, wanted.dataflow, None, strict=strict, nothing=nothing)
        self._journal = of._journal
        self.query, self.hints, self.apart = number, wanted.hints, wanted.apart
        self.names: dict[str, str] = {}
        self.shared: tuple[str, ...] = ()
        self._of, self._first = of, -1
        self._called: dict[str, str] = {}  # names of its sinks in the run -> its own names

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` of the query, and the present hosts of its nodes."""
        names, (_, where) = self.names, self._of.tree
        self.placement = {name: where.get(names.get(name, ""), host) for name, host in self.placement.items()}
        return self.dataflow, self.placement

    def _begun(self, command: e.QueryStarted, before: Collection[str]) -> None:
        """Record that the query has begun. ``before``: the nodes that the run had before."""
        with self._news:
            self.names, self._first = command.names, command.first_index
            self.shared = tuple([name for name in self.dataflow.by_name if command.names.get(name) in before])
            self._called = {command.names[name]: name for name in self._sinks}
        if self._journal is not None:
            query = JournaledQuery(self.dataflow, self.names, self.shared, self._first)
            self._journal.query(self.id, self.query, query)

    def _go_on(self, query: JournaledQuery, first: int) -> None:
        """Continue the query of an earlier client with partition ``first``."""
        self.names, self.shared, self._first = query.names, query.shared, first
        self._called = {query.names[name]: name for name in self._sinks}

    def take(self, command: e.Command) -> None:
        if isinstance(
            command, e.QueryStarted | e.Ready
        ):  # demand the first partition at once, before the application iterates
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
        """Begin a further query in the run of this query, as ``Run.attach`` does."""
        return self._of.attach(dataflow, *args, **options)

    def move(self, placement: Mapping[str, str]) -> MoveHandle:
        """Move operators to other hosts, as ``Run.move`` does. A shared operator moves for every query."""
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        check_placement(self.dataflow, {**self.tree[1], **placement}, self._home.hosts())
        handle = self._of.move({self.names.get(name, name): host for name, host in placement.items()})
        handle.names = {node: name for name, node in self.names.items()}
        return handle

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> MoveHandle:
        """Raise DataflowError, because a query that shares nodes has no tree of its own to change."""
        raise DataflowError("an attached query keeps its shape; only the tree of a run with a single query can change")

"""Striped streams of the local application, and the runs of their stripes and upper graphs.

Rules:

R1. Commands of a stripe's run for the application go to the stream (``stripes.striping``), at the end of the event that
    led to them. The application gets the commands of the stream alone, besides locations of operators and plans.
R2. An event of the application about a whole stream is passed to the run of each stripe. A stream is forgotten with its
    last run.
R3. If a stream has an upper graph, the application deals with the run of the upper graph. This run is fed with the
    stream's partitions (``stripes.upper_feed``), and the host itself answers the calls of its inlets. It begins and
    ends with the stripes.
R4. If a query takes an output that the trees do not make, new stripes take over first. The query begins with the first
    partition that only the new stripes carry. A query that cannot go on leaves the upper run. Then the application
    replaces the stripes by stripes without the outputs of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.failover.failover_runs import FailoverRuns
from thalweg.middleware.core.flow.node_states import ENDED
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.core.stripes import notes as n
from thalweg.middleware.core.stripes.striping import StripeState, StripeTakeover, Striping
from thalweg.middleware.core.stripes.upper_feed import UpperFeed
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId
from thalweg.middleware.protocol.split_graph import inlet_of, inlets_of, is_inlet

OF_STREAMS = frozenset({e.NextRequested, e.RunAbandoned, e.PeerLost, e.PeerJoined})


class Stripes:
    """Striped streams that the host leads.

    The methods yield events, and the host handles each event before the method goes on.
    """

    def __init__(
        self, out: Outbox, limits: CoreConfig, runs: Mapping[RunId, RunCore], failover_runs: FailoverRuns
    ) -> None:
        self._out, self._limits, self._runs, self._failover_runs = out, limits, runs, failover_runs
        self.led: dict[RunId, Striping] = {}
        self.trunks: dict[RunId, UpperFeed] = {}  # R3: by stream, the feed of its upper run
        self._left: dict[RunId, set[RunId]] = {}  # by stream, its runs that are not forgotten
        self._queries: dict[RunId, e.AttachRequested] = {}  # R4: by stream, the query that waits for new stripes

    def begin(self, event: e.StripesRequested) -> None:
        """Begin a stream that the application requests. The runs of its stripes begin directly after."""
        stream, above = event.run, event.above
        out = self._out.of(stream if above is UNSET else stream.trees)
        self.led[stream] = Striping(out, event, self._limits, self)
        self._left[stream] = {request.install.run for request in event.stripes}
        if above is not UNSET:
            self._left[stream].add(stream)
            self.trunks[stream] = UpperFeed(stream, inlets_of(above.install.dataflow), event.start, self)

    def replace(self, event: e.TreesRequested) -> tuple[e.RunRequested, ...]:
        """Prepare stripes that take over a stream (R4). Return the requests for their runs."""
        stream, query = event.run, event.query
        striping, above = self.led.get(stream), self._now(stream)
        if striping is None or above is None:
            return ()
        if query is not UNSET:
            self._queries[stream] = query
        peers, first, requests = tuple(above.directory.reachable().values()), striping.count, []
        for number, request in enumerate(event.stripes):
            install = msgspec.structs.replace(request.install, run=stream.of_stripe(first + number), peers=peers)
            requests.append(msgspec.structs.replace(request, install=install))
        striping.replace(requests, tuple(map(StripeTakeover, event.places, event.theirs)))
        self._left[stream].update([request.install.run for request in requests])
        return tuple(requests)

    def _on_trees_replaced(self, stream: RunId, note: n.TreesReplaced) -> Iterator[e.Event]:
        """Report to the application that new stripes have taken over, or could not. Begin the waiting query (R4)."""
        first, error = note.first, note.error
        query = self._queries.pop(stream, None)
        if query is not None and error:
            self._out.of(stream).fail(error, query=query.query)
        self._out.of(stream).emit(e.TreesChanged(stream, first, error))
        if query is not None and not error:
            yield msgspec.structs.replace(query, since=self.led[stream].since)

    def _on_places_failed(self, stream: RunId, note: n.PlacesFailed) -> Iterator[e.Event]:
        """Fail the queries that take outputs for the failed places, and remove them from the upper run (R4)."""
        places, failed = note.places, note.failure
        above, waiting = self._now(stream), self._queries.get(stream)
        if above is None:
            return
        about: dict[str, Any] = {field: getattr(failed, field) for field in ("node", "host", "lost", "cause")}
        beginning = {query.number: query.dataflow for query in above.parts.get(Proposer).undecided}
        if waiting is not None:
            beginning[waiting.query] = waiting.dataflow
        for number, dataflow in beginning.items():
            if not _places(dataflow.nodes).isdisjoint(places):
                self._out.of(stream).fail(failed.reason, query=number, **about)
                left = e.DetachRequested(stream, number)
                if self._waits(left):
                    yield from self.handle_event(left)
                else:
                    yield left
        queries = above.parts.get(Queries)
        for number in list(queries.sinks):
            nodes = map(above.tree.dataflow.by_name.__getitem__, queries.nodes_of((number,)))
            if number and not _places(nodes).isdisjoint(places):
                queries.failed(number, failed.reason, **about)

    def concern(self, event: e.Event) -> bool:
        """Return whether an event is about a stream as a whole, and not about one run."""
        if type(event) is e.TimerFired:
            return event.key.timer == Timer.STRIPES
        stream = getattr(event, "run", NO_RUN)
        if type(event) is e.DetachRequested:  # R4: a waiting query has not begun in the upper run
            return self._waits(event)
        # R3: the application asks the upper run
        asks = type(event) is e.NextRequested and stream in self.trunks
        return type(event) in OF_STREAMS and stream in self.led and not asks

    def _waits(self, event: e.DetachRequested) -> bool:
        """Return whether a query has not begun in the upper run yet."""
        waiting = self._queries.get(event.run)
        return waiting is not None and waiting.query == event.query

    def handle_event(self, event: Any) -> Iterator[e.Event]:
        """Handle an event about a whole stream, or the timer of a stream (R2)."""
        if type(event) is e.TimerFired:
            stream = event.key.run.stream_id
            striping = self.led.get(stream)
            if striping is not None:
                yield from self._handle_notes(stream, striping.on_timer())
        elif type(event) is e.NextRequested:
            yield from self._handle_notes(event.run, self.led[event.run].on_next())
        elif type(event) is e.DetachRequested:
            del self._queries[event.run]
            self._out.of(event.run).fail("the query has left before it began", query=event.query)
        else:
            for run in sorted(self._left[event.run], key=str):
                yield msgspec.structs.replace(event, run=run)

    def go_on(self) -> Iterator[e.Event]:
        """Feed upper runs with arrived partitions (R3).

        An inlet that the feed waited for may have ended in the meantime.
        """
        for stream, fed in self.trunks.items():
            if fed.waits:
                yield from self._handle_notes(stream, fed.go_on())

    def _handle_notes(self, stream: RunId, notes: n.StreamNotes) -> Iterator[e.Event]:
        """Handle the notes of a stream's parts, and yield the events that are for its runs."""
        for note in notes:
            if isinstance(note, e.Event):
                yield note
            else:
                yield from self._NOTE_HANDLERS[type(note)](self, stream, note)

    def _on_partition_needed(self, stream: RunId, _: n.PartitionNeeded) -> Iterator[e.Event]:
        return self._handle_notes(stream, self.led[stream].on_next())

    def _on_stream_restarted(self, stream: RunId, note: n.StreamRestarted) -> Iterator[e.Event]:
        return self._handle_notes(stream, self.led[stream].begin_anew(note.first))

    # --- commands of runs -----------------------------------------------------------------------------------

    def _of_stripe(self, command: Any) -> tuple[Striping, StripeState] | None:
        number = command.run.stripe
        striping = None if number is None else self.led.get(command.run.stream_id)
        stripes = [] if striping is None else striping.stripes
        stripe = next((stripe for stripe in stripes if stripe.number == number), None)
        return None if striping is None or stripe is None else (striping, stripe)

    def _of_trunk(self, command: Any) -> UpperFeed | None:
        """Return the feed of an upper run, if a command comes from the stream that feeds it (R3)."""
        stream = command.run.stream_id
        return self.trunks.get(stream) if command.run == stream.trees else None

    def handle_command(self, command: e.Command) -> Iterable[e.Event | e.Command]:
        """Handle a run's command, of a kind in ``HANDLED`` (R1). Return events for runs, and commands for the shell."""
        return self._COMMAND_HANDLERS[type(command)](self, command)

    def _on_ready(self, command: e.Ready) -> Iterable[e.Event | e.Command]:
        if (pair := self._of_stripe(command)) is not None:
            return self._handle_notes(command.run.stream_id, pair[0].on_ready(pair[1]))
        return (command,) if self._of_trunk(command) is None else ()

    def _on_deliver(self, command: e.Deliver) -> Iterable[e.Event | e.Command]:
        if (pair := self._of_stripe(command)) is not None:
            return self._handle_notes(command.run.stream_id, pair[0].on_delivered(pair[1], command))
        if (fed := self._of_trunk(command)) is not None:
            return self._handle_notes(command.run.stream_id, fed.take(command))
        fed, run = self.trunks.get(command.run.first_generation), self._runs.get(command.run)
        if fed is None or run is None or not command.end:
            return (command,)
        return (fed.mark_uneven(command, run.tree.dataflow.below(command.sink)),)

    def _on_fail(self, command: e.Fail) -> Iterable[e.Event | e.Command]:
        stream = command.run.stream_id
        if (pair := self._of_stripe(command)) is not None:
            return self._handle_notes(stream, pair[0].on_failed(pair[1], command, self._at_fault(command)))
        return (command if self._of_trunk(command) is None else msgspec.structs.replace(command, run=stream),)

    def _on_forgotten(self, command: e.Forgotten) -> Iterator[e.Event | e.Command]:
        """Handle the end of a run, or of one generation of it.

        The shell closes connections by ``Forgotten``, so the command is passed on for every run. For an upper run, it
        is passed on only with the last run of the stream.
        """
        stream, pair = command.run.stream_id, self._of_stripe(command)
        if pair is None and stream not in self.trunks:
            yield command
            return
        if command.follows:
            if pair is not None:
                striping, stripe = pair
                run = self._now(stripe.run)
                starts = () if run is None else run.install.starts
                first = min([start.index for start in starts], default=0)
                yield from self._handle_notes(stream, striping.on_follows(stripe, first))
            yield command
            return
        if pair is not None:
            pair[0].forget(pair[1])
        self._left[stream].discard(command.run.first_generation)
        if not self._left[stream]:  # R2: the stream is forgotten with its last run
            del self.led[stream], self._left[stream]
            self.trunks.pop(stream, None)
            self._out.of(stream).emit(e.Forgotten(stream))
        if pair is not None:
            yield command

    def _on_open(self, command: e.OpenRun) -> Iterable[e.Event | e.Command]:
        """Open an upper run without its inlets, as they have no code to load (R3)."""
        fed = self.trunks.get(command.install.run.first_generation)
        if fed is None:
            return (command,)
        nodes = command.install.dataflow.by_name
        return (e.OpenRun(command.install, tuple([name for name in command.nodes if not is_inlet(nodes[name])])),)

    def _on_open_node(self, command: e.OpenNode) -> Iterable[e.Event | e.Command]:
        """Report a new inlet as opened, as it has no code to load (R3)."""
        if command.run.first_generation not in self.trunks or not is_inlet(command.node):
            return (command,)
        return (e.NodeOpened(command.run, command.node.name),)

    def _on_run_operator(self, command: e.RunOperator) -> Iterable[e.Event | e.Command]:
        if not self.trunks:
            return (command,)
        stream = command.run.first_generation
        fed, run = self.trunks.get(stream), self._runs.get(command.run)
        node = None if fed is None or run is None else run.tree.dataflow.by_name.get(command.node)
        if fed is None or node is None or not is_inlet(node):
            return (command,)
        return self._handle_notes(stream, fed.want(command, inlet_of(node)))

    # --- access to runs -------------------------------------------------------------------------------------

    def _now(self, run: RunId) -> RunCore | None:
        """Return the present generation of a stripe's run, or of an upper run."""
        return self._runs.get(self.current_id(run))

    def current_id(self, run: RunId) -> RunId:
        """Return the id of the present generation of a stripe's run, or of an upper run."""
        return self._failover_runs.current_id(run)

    def _on_indices_assigned(self, _: RunId, note: n.IndicesAssigned) -> Iterable[e.Event]:
        run = self._now(note.message.run)
        if run is not None:
            message = msgspec.structs.replace(note.message, run=run.id)
            for host in sorted(run.directory.hosts):
                run.out.send(host, message)
        return ()

    def _at_fault(self, failed: e.Fail) -> Collection[str]:
        """Return the nodes of a stripe that a failure is about: one node, or the nodes of a lost host."""
        run = self._runs.get(failed.run)
        if run is None or not failed.lost:
            return (failed.node,) if failed.node else ()
        where = run.directory.where(run.tree.dataflow.by_name)
        return [node for node, host in where.items() if host == failed.host]

    def depth(self, run: RunId) -> int:
        """Return how many partitions the present generation of a run can have under way."""
        now = self._now(run)
        return 1 if now is None else max(now.tree.dataflow.level.values()) * now.context.install.ahead

    def lives(self, run: RunId, source: str) -> bool:
        """Return whether a source in the present generation of a run may still need partitions."""
        now = self._now(run)
        node = None if now is None else now.flow.nodes.get(source)
        return node is not None and node.state is not ENDED

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError for one that does not hold."""
        for striping in self.led.values():
            striping.validate()
        for fed in self.trunks.values():
            fed.validate()

    _NOTE_HANDLERS: ClassVar[dict[type[Any], Callable[[Stripes, RunId, Any], Iterable[e.Event]]]] = {
        n.IndicesAssigned: _on_indices_assigned,
        n.TreesReplaced: _on_trees_replaced,
        n.PlacesFailed: _on_places_failed,
        n.PartitionNeeded: _on_partition_needed,
        n.StreamRestarted: _on_stream_restarted,
    }
    _COMMAND_HANDLERS: ClassVar[dict[type[Any], Callable[[Stripes, Any], Iterable[e.Event | e.Command]]]] = {
        e.Ready: _on_ready,
        e.Deliver: _on_deliver,
        e.Fail: _on_fail,
        e.Forgotten: _on_forgotten,
        e.OpenRun: _on_open,
        e.OpenNode: _on_open_node,
        e.RunOperator: _on_run_operator,
    }
    HANDLED = frozenset(_COMMAND_HANDLERS)


def _places(nodes: Iterable[Node]) -> set[int]:
    """Return the places of the inlets among ``nodes``."""
    return {inlet_of(node) for node in nodes if is_inlet(node)}

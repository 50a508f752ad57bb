"""The streams of this host's application that go over several trees, and the runs that are their stripes.

Rules:

R1. What the run of a stripe says to its application the stream hears (``stripes.striping``), at the end of the event by
    which it was said; the application hears of the stream alone, but of where operators are, and of plans.
R2. What the application says of a stream as a whole is said of each of its stripes. A stream is forgotten with the last
    of these.
R3. Where some of the graph is above the trees, the application speaks with the run that this is, and that is fed with
    what the stream gives (``stripes.upper_feed``): its sources' code is run here. It begins and ends with the stripes.
R4. A query that takes something which the trees do not make begins when others have taken over that do, with the first
    partition that is theirs alone. One that cannot go on leaves the run above; the application has others take over
    that do not make what was its.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.flow.node_states import ENDED
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.core.stripes import upper_feed
from thalweg.middleware.core.stripes.striping import StripeHooks, StripeState, StripeTakeover, Striping
from thalweg.middleware.core.stripes.upper_feed import UpperFeed
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.generations import base_of
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.split_graph import inlet_of, inlets_of, is_inlet
from thalweg.middleware.protocol.stripes import stream_of, stripe_name, stripe_of, trunk_name

OF_STREAMS = frozenset({e.NextRequested, e.RunAbandoned, e.PeerLost, e.PeerJoined})


class Stripes:
    """All of them, by the stream's id. ``current``: the run that a stripe is now, of whatever generation."""

    def __init__(
        self,
        out: Outbox,
        limits: CoreConfig,
        runs: Mapping[str, RunCore],
        current: Callable[[e.NextRequested], e.NextRequested],
        act: Callable[[e.Event], None],
    ) -> None:
        self._out, self._limits, self._runs, self._current, self._act = out, limits, runs, current, act
        self.led: dict[str, Striping] = {}
        self.trunks: dict[str, UpperFeed] = {}  # R3: by stream, the feed of the run above its trees
        self._left: dict[str, set[str]] = {}  # by stream, the runs that are not forgotten
        self._queries: dict[str, e.AttachRequested] = {}  # R4: by stream, the query that waits for other stripes

    def begin(self, event: e.StripesRequested) -> None:
        """The application asks for a stream; its stripes' runs are about to begin."""
        stream, above = event.run, event.above
        out = self._out.of(stream if above is UNSET else trunk_name(stream))
        hooks = StripeHooks(
            self._act,
            self._send_indices,
            self._most,
            self._named,
            lambda first, error: self._changed(stream, first, error),
            lambda places, failed: self._spoilt(stream, places, failed),
        )
        striping = Striping(out, event, self._limits, hooks)
        self.led[stream] = striping
        self._left[stream] = {request.install.run for request in event.stripes}
        if above is not UNSET:
            self._left[stream].add(stream)
            fed = upper_feed.UpperFeedHooks(
                striping.on_next,
                striping.begin_anew,
                self._act,
                lambda name: self._lives(stream, name),
                lambda: self._depth(stream),
            )
            self.trunks[stream] = UpperFeed(inlets_of(above.install.dataflow), event.start, fed)

    def replace(self, event: e.TreesRequested) -> tuple[e.RunRequested, ...]:
        """R4: the application wants others to take over; their runs, as they begin."""
        stream, query = event.run, event.query
        striping, above = self.led.get(stream), self._now(stream)
        if striping is None or above is None:
            return ()
        if query is not UNSET:
            self._queries[stream] = query
        peers, first, requests = tuple(above.directory.reachable().values()), striping.count, []
        for number, request in enumerate(event.stripes):
            install = msgspec.structs.replace(request.install, run=stripe_name(stream, first + number), peers=peers)
            requests.append(msgspec.structs.replace(request, install=install))
        striping.replace(requests, tuple(map(StripeTakeover, event.places, event.theirs)))
        self._left[stream].update([request.install.run for request in requests])
        return tuple(requests)

    def _changed(self, stream: str, first: int, error: str) -> None:
        """R4: others have taken over, or could not."""
        query = self._queries.pop(stream, None)
        if query is not None and error:
            self._out.of(stream).fail(error, query=query.query)
        self._out.of(stream).emit(e.TreesChanged(stream, first, error))
        if query is not None and not error:
            self._act(msgspec.structs.replace(query, since=self.led[stream].since))

    def _spoilt(self, stream: str, places: Collection[int], failed: e.Fail) -> None:
        """R4: who takes what is made for these places cannot go on."""
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
                (self.handle_event if self._waits(left) else self._act)(left)
        queries = above.parts.get(Queries)
        for number in list(queries.sinks):
            nodes = map(above.tree.dataflow.by_name.__getitem__, queries.nodes_of((number,)))
            if number and not _places(nodes).isdisjoint(places):
                queries.failed(number, failed.reason, **about)

    def concern(self, event: e.Event) -> bool:
        """Whether that is said of a stream as a whole."""
        if type(event) is e.TimerFired:
            return event.key.startswith(f"{Timer.STRIPES} ")
        stream = getattr(event, "run", "")
        if type(event) is e.DetachRequested:  # R4: a query that still waits has not begun in the run above
            return self._waits(event)
        # R3: the application asks the run above the trees
        asks = type(event) is e.NextRequested and stream in self.trunks
        return type(event) in OF_STREAMS and stream in self.led and not asks

    def _waits(self, event: e.DetachRequested) -> bool:
        """Whether that query has not begun above yet."""
        waiting = self._queries.get(event.run)
        return waiting is not None and waiting.query == event.query

    def handle_event(self, event: Any) -> None:
        """R2: what is said of a stream, or that something is due in it."""
        if type(event) is e.TimerFired:
            striping = self.led.get(stream_of(event.key.partition(" ")[2]))
            if striping is not None:
                striping.on_timer()
        elif type(event) is e.NextRequested:
            self.led[event.run].on_next()
        elif type(event) is e.DetachRequested:
            del self._queries[event.run]
            self._out.of(event.run).fail("the query has left before it began", query=event.query)
        else:
            for run in sorted(self._left[event.run]):
                self._act(msgspec.structs.replace(event, run=run))

    def through(self, finish: Callable[[], None]) -> list[e.Command]:
        """R1: have the streams hear what was said; the commands for all others. ``finish`` does what comes of it."""
        desk, passed = self._out.context, list[e.Command]()
        while True:
            while desk.commands:
                commands, desk.commands = desk.commands, []
                for command in commands:
                    hears = self._COMMAND_HANDLERS.get(type(command))
                    left = command if hears is None else hears(self, command)
                    if left is not None:
                        passed.append(left)
                finish()
            for fed in self.trunks.values():
                if fed.waits:
                    fed.go_on()
            if not desk.commands and not desk.local:
                return passed
            finish()

    # --- what runs say: what all others hear of it ----------------------------------------------------------

    def _of_stripe(self, command: Any) -> tuple[Striping, StripeState] | None:
        number = stripe_of(command.run)
        striping = None if number is None else self.led.get(stream_of(command.run))
        stripes = [] if striping is None else striping.stripes
        stripe = next((stripe for stripe in stripes if stripe.number == number), None)
        return None if striping is None or stripe is None else (striping, stripe)

    def _of_trunk(self, command: Any) -> UpperFeed | None:
        """R3: what is fed by the stream that says that."""
        stream = stream_of(command.run)
        return self.trunks.get(stream) if command.run == trunk_name(stream) else None

    def _on_ready(self, command: e.Ready) -> e.Command | None:
        if (pair := self._of_stripe(command)) is not None:
            pair[0].on_ready(pair[1])
            return None
        return command if self._of_trunk(command) is None else None

    def _on_deliver(self, command: e.Deliver) -> e.Command | None:
        if (pair := self._of_stripe(command)) is not None:
            pair[0].on_delivered(pair[1], command)
            return None
        if (fed := self._of_trunk(command)) is not None:
            fed.take(command)
            return None
        fed, run = self.trunks.get(base_of(command.run)), self._runs.get(command.run)
        if fed is None or run is None or not command.end:
            return command
        return fed.mark_uneven(command, run.tree.dataflow.below(command.sink))

    def _on_fail(self, command: e.Fail) -> e.Command | None:
        if (pair := self._of_stripe(command)) is not None:
            pair[0].on_failed(pair[1], command, self._at_fault(command))
            return None
        stream = stream_of(command.run)
        return command if self._of_trunk(command) is None else msgspec.structs.replace(command, run=stream)

    def _on_forgotten(self, command: e.Forgotten) -> e.Command | None:
        """Which lines are hung up by, so that all others hear of it, but of what is above trees only at the end."""
        stream, pair = stream_of(command.run), self._of_stripe(command)
        if pair is None and stream not in self.trunks:
            return command
        if command.follows:
            if pair is not None:
                striping, stripe = pair
                run = self._now(stripe.run)
                starts = () if run is None else run.install.starts
                striping.on_follows(stripe, min([start.index for start in starts], default=0))
            return command
        if pair is not None:
            pair[0].forget(pair[1])
        self._left[stream].discard(base_of(command.run))
        if not self._left[stream]:  # R2: the stream is forgotten with its last run
            del self.led[stream], self._left[stream]
            self.trunks.pop(stream, None)
            self._out.of(stream).emit(e.Forgotten(stream))
        return command if pair is not None else None

    def _on_open(self, command: e.OpenRun) -> e.Command | None:
        """R3: no code is to be loaded for what is fed here."""
        fed = self.trunks.get(base_of(command.install.run))
        if fed is None:
            return command
        nodes = command.install.dataflow.by_name
        return e.OpenRun(command.install, tuple([name for name in command.nodes if not is_inlet(nodes[name])]))

    def _on_open_node(self, command: e.OpenNode) -> e.Command | None:
        """R3: nor for what may come to be fed here."""
        if base_of(command.run) not in self.trunks or not is_inlet(command.node):
            return command
        self._act(e.NodeOpened(command.run, command.node.name))
        return None

    def _on_run_operator(self, command: e.RunOperator) -> e.Command | None:
        fed, run = (self.trunks.get(base_of(command.run)) if self.trunks else None), self._runs.get(command.run)
        node = None if fed is None or run is None else run.tree.dataflow.by_name.get(command.node)
        if fed is None or node is None or not is_inlet(node):
            return command
        fed.want(command, inlet_of(node))
        return None

    # --- how runs are reached -------------------------------------------------------------------------------

    def _now(self, run: str) -> RunCore | None:
        """A stripe's run, or the one above them, of whatever generation it is now."""
        return self._runs.get(self._current(e.NextRequested(run)).run)

    def _named(self, stripe: StripeState) -> str:
        return self._current(e.NextRequested(stripe.run)).run

    def _send_indices(self, stripe: StripeState, given: m.StripeIndices) -> None:
        run = self._now(stripe.run)
        if run is not None:
            message = msgspec.structs.replace(given, run=run.id)
            for host in sorted(run.directory.hosts):
                run.out.send(host, message)

    def _at_fault(self, failed: e.Fail) -> Collection[str]:
        """Which nodes of a stripe it failed for: one, or those of the host that is lost."""
        run = self._runs.get(failed.run)
        if run is None or not failed.lost:
            return (failed.node,) if failed.node else ()
        where = run.directory.where(run.tree.dataflow.by_name)
        return [node for node, host in where.items() if host == failed.host]

    def _most(self, stripe: StripeState) -> int:
        """How many partitions a stripe's tree, as it is now, can have under way."""
        return self._depth(stripe.run)

    def _depth(self, run_id: str) -> int:
        run = self._now(run_id)
        return 1 if run is None else max(run.tree.dataflow.level.values()) * run.context.install.ahead

    def _lives(self, stream: str, name: str) -> bool:
        """Whether a source of what is above the trees may want more."""
        run = self._now(stream)
        node = None if run is None else run.flow.nodes.get(name)
        return node is not None and node.state is not ENDED

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        for striping in self.led.values():
            striping.validate()
        for fed in self.trunks.values():
            fed.validate()

    _COMMAND_HANDLERS: ClassVar[dict[type[Any], Callable[[Stripes, Any], e.Command | None]]] = {
        e.Ready: _on_ready,
        e.Deliver: _on_deliver,
        e.Fail: _on_fail,
        e.Forgotten: _on_forgotten,
        e.OpenRun: _on_open,
        e.OpenNode: _on_open_node,
        e.RunOperator: _on_run_operator,
    }


def _places(nodes: Iterable[Node]) -> set[int]:
    """What of the stream's partitions feeds the sources among these."""
    return {inlet_of(node) for node in nodes if is_inlet(node)}

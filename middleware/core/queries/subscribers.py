"""Guests of a run (other clients that subscribe to its nodes), at the run's client: permission, admission and loss.

Rules:

R1. Only clients that the application has named may subscribe. Clients named for query 0 may subscribe to every node.
    Clients named for a later query may subscribe to the nodes of the query, until it leaves. A guest that the
    application no longer names is dismissed. Nothing is kept about clients without permission.
R2. A subscription is a query with one sink at the guest, and with a number below 0. The subscription waits for its turn
    like every query (``proposer``). Before the proposal, all hosts let the guest in (``AddMember``), so that hosts
    accept the guest's demands. The guest gets the run in its present state (``InstallSubscriber``), and no query begins
    or leaves meanwhile. A guest is refused if it does not answer for ``liveness_s`` times ``patience``, or if a host
    does not let it in. An answer does not name its ``InstallSubscriber``. So a guest whose subscription has begun gets
    the right ``InstallSubscriber`` again when the guest asks again.
R3. A guest can end only its own subscriptions. The subscriptions end if the guest is lost or started anew. The guest's
    process is watched (``Watch``), so a connection that closes for good shows the loss at once. The subscriptions also
    end if the guest is alive, but leaves a message to all hosts unanswered for ``liveness_s`` times ``patience``. The
    same holds if a node's remaining consumers have waited for the guest for ``guest_s`` (``flow.laggards``).
R4. A guest may leave at any time. With its last subscription all hosts forget the guest. A ``Subscribe`` that comes
    again after the end gets the same answer as at the end.
R5. The run is over with the application's own queries. If the streams of these queries have ended, the run goes on
    until the guests' streams have ended (``lingers``).

R6. A guest whose subscription has begun goes on in the run's next generation. The sinks are in the graph from the
    start, and the guest is notified (``InstallSubscriber``). Until the guest has answered, no query begins or leaves.
    The permissions stay.

The guest's part is ``run_subscriptions``, and the hosts' part is ``query_attachment``. ``run`` says which messages a
host accepts from guests.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.notes import HostInstalled, HostLost, Invited, Leaving, Notes, Refused
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import GenerationChange, Part, RunParts
from thalweg.middleware.core.queries.queries import Queries, Subscriber
from thalweg.middleware.core.queries.sharing import SharedQuery
from thalweg.middleware.core.reshaping.shape import fresh_name
from thalweg.middleware.dataflow import Node
from thalweg.middleware.errors import DataflowError, nearest
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

MOST = 64  # subscriptions of one guest


class Subscribers(Part):
    """Guests of a run, at the run's client."""

    @classmethod
    def of(cls, parts: RunParts) -> Subscribers:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Flow), parts.get(Queries))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, flow: Flow, queries: Queries) -> None:
        self._context, self._out, self._limits = context, context.out, context.limits
        self._tree, self._directory, self._flow, self._queries = tree, directory, flow, queries
        self.allowed: dict[int, frozenset[str]] = {}  # by query, the names of clients
        self._count = 0
        self._entering: tuple[int, float] | None = None  # R2: query whose guest is being let in, and the start time

    def continue_from(self, before: Subscribers, change: GenerationChange) -> None:
        """Continue as the next generation, and notify the guests whose subscriptions have begun (R6)."""
        self.allowed, self._count = before.allowed, before._count
        self._directory.await_guests(guest.peer.name for guest in self._queries.subscribers.values())
        for name in sorted(self._directory.returning):
            self._out.emit(e.Watch(self._out.run, name))  # R3: a closed connection shows the guest's loss
        if self._directory.returning:
            self._queries.send_until_answered(
                {name: self._enrolment_of(name) for name in sorted(self._directory.returning)}
            )
        self._queries.go_on()

    def _enrolment_of(self, name: str) -> m.InstallSubscriber:
        """Return the message to a guest about the next generation (R6). One subscription stands for all."""
        queries = self._queries
        own = [query for query, guest in queries.subscribers.items() if guest.peer.name == name]
        stay = [query for query in own if query not in queries.why]
        return self._enrolment(queries.subscribers[(stay or own)[0]])

    # --- who may --------------------------------------------------------------------------------------

    def on_allowed(self, event: e.SubscribersAllowed) -> Notes:
        """Replace the names that may subscribe by a query, and dismiss guests without permission (R1)."""
        self.allowed[event.query] = event.names
        for query, guest in list(self._queries.subscribers.items()):
            if not self._may(guest.peer.name, guest.node):
                yield from self._end(query, f"client {self._out.host!r} no longer allows the subscription")

    def _may(self, name: str, node: str) -> bool:
        named = [query for query, names in self.allowed.items() if name in names]
        return 0 in named or node in self._queries.nodes_of([query for query in named if query in self._queries.sinks])

    def _why_not(self, message: m.Subscribe) -> str:
        """Return the reason to refuse a ``Subscribe``, or an empty text."""
        peer, flow, me = message.peer, self._tree.dataflow, self._out.host
        named = any(peer.name in names for names in self.allowed.values())
        if not named:
            return f"client {me!r} does not let {peer.name!r} subscribe; it has to be among the run's subscribers"
        if self._queries.sinks.keys() == self._queries.subscribers.keys():
            return "the run is over"
        if message.node not in flow.by_name:
            return f"the run has no node {message.node!r}; {nearest(message.node, flow.by_name)}"
        if not self._may(peer.name, message.node):
            return f"client {me!r} does not let {peer.name!r} subscribe to {message.node!r}"
        if peer.name in self._directory.peers:
            return f"a host of the run is called {peer.name!r}, so no client can have this name"
        if peer.max_partition_bytes < self._flow.calls.most_bytes:
            most = (
                f"{peer.max_partition_bytes} bytes at most, and the run may have some of {self._flow.calls.most_bytes}"
            )
            return f"client {peer.name!r} takes partitions of {most} (its limit max_partition_bytes); raise it"
        if plain_sum(guest.peer.name == peer.name for guest in self._queries.subscribers.values()) >= MOST:
            return f"client {peer.name!r} has {MOST} subscriptions to the run, and no client can have more"
        return ""

    # --- what guests say ------------------------------------------------------------------------------

    def on_subscribe(self, sender: str, message: m.Subscribe) -> Notes:
        out, peer, queries = self._out, message.peer, self._queries
        if peer.name != sender or not message.number:
            out.record("unexpected", peer=sender, detail={"message": "Subscribe"})
            return
        # Queries in ``why`` leave already.
        staying = [guest for query, guest in queries.subscribers.items() if query not in queries.why]
        if any(guest.peer.name == sender and guest.peer.instance != peer.instance for guest in staying):
            # R3: a guest that was started anew has lost its subscriptions
            yield HostLost(sender)
        before = queries.over.get((sender, message.number))
        for query, guest in queries.subscribers.items():
            if (guest.peer, guest.number) == (peer, message.number):
                out.send(sender, self._enrolment(guest) if queries.sinks[query] else m.Pong(out.run))
                return
        why = self._why_not(message) if before is None else before
        if why or before is not None:  # R4: the request is refused, or answered as it was before
            out.send(sender, m.SubscriptionEnded(out.run, message.number, why[:4000]))
            return
        self._count += 1
        used = {*self._directory.locations, *[guest.sink for guest in queries.subscribers.values()]}
        sink = fresh_name(f"{message.node}@{sender}", self._count, used)
        while self._directory.had(sink):
            sink = fresh_name(sink, self._count, used)
        out.emit(e.Meet(out.run, (peer,)))
        out.emit(e.Watch(out.run, sender))  # R3: a closed connection shows the guest's loss
        queries.invite(-self._count, Subscriber(peer, message.number, message.node, sink))
        out.send(sender, m.Pong(out.run))
        yield Invited(-self._count)

    def on_unsubscribe(self, sender: str, message: m.Unsubscribe) -> Notes:
        """End a subscription that its guest has left (R4). Confirm the end of an unknown subscription at once."""
        for query, guest in list(self._queries.subscribers.items()):
            if (guest.peer.name, guest.number) == (sender, message.number):
                yield from self._end(query, "it has left")
                return
        self._out.send(sender, m.SubscriptionEnded(self._out.run, message.number, "it has left"))

    def on_failed(self, sender: str, message: m.Failed) -> Notes:
        """End the subscriptions of a guest that cannot go on (R3)."""
        yield from self._end_all(sender, message.reason)

    def on_lost(self, note: HostLost) -> Notes:
        """Forget a lost guest, and end the subscriptions of the guest (R3)."""
        self._directory.lose_guest(note.host)
        yield from self._end_all(note.host, f"it {note.how}")

    def give_up(self, waited: Collection[str], since_s: float) -> Notes:
        """Treat guests in ``waited`` as lost if the message of ``since_s`` is unanswered for too long (R3)."""
        silent_s = self._limits.patience * self._limits.liveness_s
        if self._out.waited_s(since_s) <= silent_s:
            return
        for name in sorted(self._directory.subscribers.intersection(waited)):
            self._directory.await_guest_no_more(name)
            why = f"has not answered for {silent_s:g} s to a message that all hosts get"
            detail = {"about": "subscriber", "what": f"{why}; its subscriptions end"}
            self._out.record("fault", peer=name, detail=detail)
            yield from self._end_all(name, f"it {why}")
            yield HostLost(name)

    def _end_all(self, name: str, why: str) -> Notes:
        for query, guest in list(self._queries.subscribers.items()):
            if guest.peer.name == name:
                yield from self._end(query, why)

    def _end(self, query: int, why: str) -> Notes:
        guest = self._queries.subscribers[query]
        self._queries.give_reason(query, why)
        entering = self._entering is not None and self._entering[0] == query
        if entering:
            self._entering = None
        yield Leaving(query)
        if entering:
            yield from self._queries.answered(guest.peer.name)
        elif guest.peer.name in self._directory.returning:
            yield from self._end_of_returning(guest.peer.name)

    def _end_of_returning(self, name: str) -> Notes:
        """Handle the end of a subscription whose guest has not answered in this generation (R6).

        If the guest has another subscription, send the message of that subscription. Otherwise wait for the guest no
        longer.
        """
        queries = self._queries
        if any(guest.peer.name == name and query not in queries.why for query, guest in queries.subscribers.items()):
            queries.notify_instead(name, self._enrolment_of(name))
        else:
            self._directory.await_guest_no_more(name)
            yield from queries.answered(name)

    # --- one is let in --------------------------------------------------------------------------------

    def enter(self, query: int) -> bool:
        """Begin to let in the guest of a query, and return True. Return False if the guest has been let in (R2)."""
        if self._entering is not None and self._entering[0] == query:
            self._entering = None
            return False
        guest, directory = self._queries.subscribers[query], self._directory
        name, run = guest.peer.name, self._out.run
        self._entering = query, self._out.now
        hosts = () if name in directory.subscribers else sorted(directory.hosts)
        words: dict[str, m.Message] = {name: self._enrolment(guest)}
        number = self._directory.new_number()
        self._queries.send_until_answered(words | {host: m.AddMember(run, number, guest.peer) for host in hosts})
        return True

    def _enrolment(self, guest: Subscriber) -> m.InstallSubscriber:
        """Return the message with a guest's subscription and the present state of the run."""
        directory = self._directory
        install = msgspec.structs.replace(
            self._context.install,
            dataflow=self._tree.dataflow,
            locations=tuple(directory.locations.values()),
            peers=tuple(directory.reachable().values()),
            moves=None,
            news=False,
            afresh=False,
            number=directory.number,
        )
        return m.InstallSubscriber(self._out.run, guest.number, guest.sink, install)

    def on_installed(self, note: HostInstalled) -> Notes:
        """Admit a guest that has taken its part in the run, or end the subscriptions of a guest that cannot."""
        sender, message = note.host, note.message
        if sender in self._directory.returning:
            if message.error:
                yield from self._end_all(sender, f"it cannot go on: {message.error}")
            else:
                self._directory.await_guest_no_more(sender)
                yield from self._queries.answered(sender)
            return
        if self._entering is None or not self._enters(sender):
            return
        if message.error:
            yield from self._end(self._entering[0], f"it cannot take part: {message.error}")
        else:
            self._directory.admit_guest(sender)
            self._flow.laggards.watch()
            yield from self._queries.answered(sender)

    def _enters(self, name: str) -> bool:
        return self._entering is not None and self._queries.subscribers[self._entering[0]].peer.name == name

    def admits(self, host: str) -> bool:
        """Return whether ``host`` is a guest, or is being let in."""
        return host in self._directory.subscribers or self._enters(host)

    def on_refused(self, note: Refused) -> Notes:
        """End the subscription of a guest that a host does not let in (R2)."""
        if self._entering is not None:
            yield from self._end(self._entering[0], f"host {note.host!r} does not let it in: {note.why}")

    def on_timer(self) -> Notes:
        """Give up guests that have not answered for too long (R2, R3)."""
        silent_s = self._limits.patience * self._limits.liveness_s
        if self._entering is not None and self._out.waited_s(self._entering[1]) > silent_s:
            yield from self._end(self._entering[0], f"it has not answered for {silent_s:g} s")
        yield from self.give_up(self._queries.awaited, self._queries.told_s)

    def joined(self, query: int) -> SharedQuery:
        """Return the sink that appears for a guest's query. Raise DataflowError if the node has left the run."""
        guest, flow = self._queries.subscribers[query], self._tree.dataflow
        node = flow.by_name.get(guest.node)
        if node is None:
            raise DataflowError(f"node {guest.node!r} has left the run")
        inputs = node.inputs if node.kind == "sink" else (guest.node,)
        sink = Node(guest.sink, "sink", inputs, None, guest.peer.name)
        return SharedQuery({guest.sink: guest.sink}, (m.Graft(guest.sink, inputs, guest.peer.name, sink),))

    def has_client(self, host: str) -> bool:
        """Return whether ``host`` is a guest, or has asked to become a guest."""
        return any(guest.peer.name == host for guest in self._queries.subscribers.values())

    @property
    def lingers(self) -> bool:
        """Return whether guests still take partitions after the end of this application's streams (R5)."""
        sinks = [name for name in self._tree.dataflow.sinks if name in self._flow.nodes]
        ended = all(self._flow.nodes[name].state is NodeState.ENDED for name in sinks)
        takes = any(self._queries.sinks[query] for query in self._queries.subscribers)
        return takes and ended and not self._out.failed

    HANDLERS = Handlers(
        messages={m.Subscribe: on_subscribe, m.Unsubscribe: on_unsubscribe, m.Failed: on_failed},
        events={e.SubscribersAllowed: on_allowed},
        notes={Refused: on_refused, HostLost: on_lost, HostInstalled: on_installed},
        timers={Timer.LEAVE: on_timer},
    )

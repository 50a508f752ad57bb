"""Queries of a run, at the run's client: the nodes that every query uses, and the nodes that leave with a query.

Rules:

R1. A query is a set of sinks. The query uses the sinks and every node below them. The query that the run began with has
    number 0.
R2. When a query leaves, the nodes that no remaining query uses leave too. The client sends the names of these nodes to
    every host until the host answers (``query_attachment``). Until then no query and no shape is proposed.
R3. While a query is proposed, no query leaves, because some hosts do not know the proposed query yet. While there are
    guests, or queries to be proposed, the application's last queries stay, so that their nodes can be shared. Queries
    that stay hold up no change.
R4. If code fails or a host is lost, only the queries that use the code or the host end. If every query of this
    application uses them, the run fails.
R5. A query of another client (``subscribers``) has a number below 0. A client without a query has no part in the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.context.notes import Left, Notes, Refused
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import GenerationChange, Part, RunParts
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

REMEMBERED = 1024  # ended subscriptions whose reasons are remembered


class Subscriber(msgspec.Struct, frozen=True):
    """Subscription of another client to ``node``, with the client's ``number``.

    ``sink``: the subscription's sink in the run.
    """

    peer: m.Peer
    number: int
    node: str
    sink: str


class Queries(Part):
    """Queries of one run, at the run's client: their sinks, the subscribers, and the queries that are to leave."""

    @classmethod
    def of(cls, parts: RunParts) -> Queries:
        return cls(parts.context, parts.get(Tree), parts.get(Directory))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory) -> None:
        self._out, self._limits = context.out, context.limits
        self._tree, self._directory = tree, directory
        self.sinks: dict[int, tuple[str, ...]] = {0: tree.dataflow.sinks}
        self.joining = False  # R3: while a query is proposed, no query leaves
        self.expected: set[int] = set()  # queries that are to be proposed
        self.subscribers: dict[int, Subscriber] = {}  # R5: by query number, which is below 0
        self.why: dict[int, str] = {}  # reasons why queries of guests leave
        self.over: dict[tuple[str, int], str] = {}  # reasons of ended subscriptions by guest and number, in order
        self._leaving: list[int] = []
        self._words: dict[str, m.Message] = {}  # by host, the message that the host has not answered
        self._strangers: list[tuple[str, m.Peer]] = []  # joined hosts, with guests to introduce
        self.told_s = 0.0  # time at which the messages were sent first

    def continue_from(self, before: Queries, change: GenerationChange) -> None:
        """Continue as the next generation, with the guests whose queries have begun. The remaining guests ask again."""
        nodes = self._tree.dataflow.by_name
        self.subscribers = {query: guest for query, guest in before.subscribers.items() if guest.sink in nodes}
        own = {query: sinks for query, sinks in before.sinks.items() if query not in before.subscribers}
        self.sinks = own | {query: (guest.sink,) for query, guest in self.subscribers.items()}
        self.why = {query: why for query, why in before.why.items() if query in self.subscribers}
        self.over = before.over
        self._leaving = [query for query in before._leaving if query in self.sinks]

    def go_on(self) -> None:
        """Let the queries leave that were to leave in the previous generation."""
        self._go_on()

    @property
    def peers(self) -> tuple[m.Peer, ...]:
        """Endpoints of the guests whose sinks are in the graph (R5)."""
        nodes = self._tree.dataflow.by_name
        begun = [guest.peer for guest in self.subscribers.values() if guest.sink in nodes]
        return tuple({peer.name: peer for peer in begun}.values())

    @property
    def busy(self) -> bool:
        """Return whether queries have still to leave, or hosts have still to answer a message."""
        return bool(self._words or self._ready)

    @property
    def awaited(self) -> Collection[str]:
        """Hosts and guests that have not answered the message of ``told_s``."""
        return self._words.keys()

    @property
    def _ready(self) -> list[int]:
        """Queries that may leave now, in order."""
        own = self.sinks.keys() - self.subscribers.keys()
        if (self.expected or self.subscribers) and own <= set(self._leaving):
            # R3: the last own queries stay, because guests or later queries share their nodes
            return [query for query in self._leaving if query in self.subscribers]
        return self._leaving

    def nodes_of(self, queries: Collection[int]) -> set[str]:
        """Return the nodes that these queries use (R1)."""
        below = self._tree.dataflow.below
        return {name for query in queries for sink in self.sinks[query] for name in below(sink)}

    def leave(self, query: int) -> None:
        """Let ``query`` leave as soon as no proposal is open and no answer is missing (R2, R3)."""
        if query in self.sinks and query not in self._leaving:
            self._leaving.append(query)
            self._go_on()

    def adopt(self, sinks: Mapping[int, tuple[str, ...]]) -> None:
        """Continue with the queries that an earlier client has begun, by number with their sinks, if there are any."""
        self.sinks = dict(sinks) or self.sinks

    def invite(self, query: int, guest: Subscriber) -> None:
        """Add a query of another client, which is still to be proposed (R5)."""
        self.subscribers[query] = guest
        self.sinks[query] = ()

    def expect(self, query: int) -> None:
        """Keep the application's last queries until ``query`` is proposed (R3)."""
        self.expected.add(query)

    def expect_no_more(self, query: int) -> None:
        """Keep no query for ``query``, which is proposed now or has left before (R3)."""
        self.expected.discard(query)

    def begin_joining(self) -> None:
        """Let no query leave until ``joined`` is called, because a query is proposed (R3)."""
        self.joining = True

    def begin(self, query: int, sinks: tuple[str, ...]) -> None:
        """Note the sinks of a query on which all hosts have agreed (R1)."""
        self.sinks[query] = sinks

    def joined(self) -> None:
        """Note that no query is proposed any longer, and let waiting queries leave (R3)."""
        self.joining = False
        self._go_on()

    def _go_on(self) -> None:
        """Remove the queries that may leave now, and send every host the nodes to remove (R2)."""
        ready = self._ready
        if self._words or self.joining or not ready:
            return
        parted = [self._dismiss(query) for query in ready if query in self.subscribers]
        for query in ready:
            self.record(query, "left", "", {})
            del self.sinks[query]
            self.subscribers.pop(query, None)
            self.why.pop(query, None)
        self._leaving = [query for query in self._leaving if query in self.sinks]
        used = self.nodes_of(self.sinks)
        present = {guest.peer.name for guest in self.subscribers.values()}
        guests = tuple(sorted({guest.peer.name for guest in parted} - present))
        for name in guests:
            self._out.emit(e.Unwatch(self._out.run, name))
        gone = tuple([node.name for node in self._tree.dataflow.nodes if node.name not in used])
        if not self.sinks or not (gone or guests):
            return  # the last query ends the run
        self._directory.dismiss_guests(guests)
        word = m.Detach(self._out.run, self._directory.new_number(), gone, guests)
        self.send_until_answered(dict.fromkeys(self._directory.everyone, word))

    def _dismiss(self, query: int) -> Subscriber:
        """Notify a guest of the end of its query, remember the reason, and return the guest (R5)."""
        guest, why = self.subscribers[query], self.why.get(query, "")
        self.over[guest.peer.name, guest.number] = why
        if len(self.over) > REMEMBERED:
            del self.over[next(iter(self.over))]
        self._out.send(guest.peer.name, m.SubscriptionEnded(self._out.run, guest.number, why[:4000]))
        return guest

    def send_until_answered(self, words: dict[str, m.Message]) -> None:
        """Send each host its message, and repeat the message until the host answers."""
        self._words, self.told_s = words, self._out.now
        self.on_timer()

    def record(
        self, query: int, outcome: str, why: str, names: dict[str, str], apart: dict[str, float] | None = None
    ) -> None:
        """Record the outcome of a query, with the run's ``names`` of its nodes.

        ``apart``: nodes that the run has, but too far away, with the distance in seconds.
        """
        begins = min([self._tree.first.get(name, 0) for name in self.sinks.get(query, ())], default=None)
        detail = {"query": query, "outcome": outcome, "why": why or self.why.get(query, ""), "names": names}
        if query in self.subscribers:
            detail |= {"guest": self.subscribers[query].peer.name, "node": self.subscribers[query].node}
        if apart:
            detail["apart_s"] = apart
        self._out.record("query", index=begins if outcome == "begun" else None, detail=detail)

    def introduce(self, host: str) -> None:
        """Queue the introduction of every guest to a host that has joined (R5)."""
        peers = {guest.peer.name: guest.peer for guest in self.subscribers.values()}
        self._strangers += [(host, peer) for name, peer in peers.items() if name in self._directory.subscribers]

    def on_timer(self) -> None:
        """Repeat the messages that hosts have not answered."""
        for host in sorted(self._words):
            self._out.send(host, self._words[host])
        if self._words:
            self._out.wake(Timer.LEAVE, self._out.now + self._limits.retry_s)

    def on_detached(self, sender: str, message: m.Detached) -> Notes:
        if message.number == self._directory.number and isinstance(self._words.get(sender), m.Detach | m.AddMember):
            if message.error:
                yield Refused(sender, message.error)
            yield from self.answered(sender)

    def notify_instead(self, host: str, word: m.Message) -> None:
        """Replace the message that ``host`` has not answered by ``word``."""
        if host in self._words:
            self._words[host] = word

    def answered(self, host: str) -> Notes:
        """Stop repeating the message to ``host``. After the last answer, go on with waiting guests and queries."""
        if self._words.pop(host, None) is not None and not self._words:
            while self._strangers:
                newcomer, peer = self._strangers.pop(0)
                if newcomer in self._directory.hosts:
                    self.send_until_answered({newcomer: m.AddMember(self._out.run, self._directory.new_number(), peer)})
                    return
            self._go_on()
            yield Left()

    def give_reason(self, query: int, why: str) -> None:
        """Remember why the query of a guest leaves. The first reason counts (R5)."""
        self.why.setdefault(query, why)

    def failed(self, query: int, reason: str, **fields: Any) -> None:
        """Let a query leave that cannot begin or go on, and notify the application or the guest of the reason."""
        if query in self.subscribers:
            self.give_reason(query, reason)
        else:
            self._out.fail(reason, query=query, **fields)
        self.leave(query)

    def fail(self, nodes: Collection[str], reason: str, **fields: Any) -> bool:
        """End the queries that use nodes that cannot go on, and return True (R4).

        Return False if every query of this application uses such a node, or if no query does, as the nodes are of an
        old tree.
        """
        users = {query for query in self.sinks if not self.nodes_of((query,)).isdisjoint(nodes)}
        own = self.sinks.keys() - self._leaving - self.subscribers.keys()
        if not users or (users.issuperset(own) and not users <= self.subscribers.keys()):
            return False
        for query in sorted(users.difference(self._leaving)):
            self.failed(query, reason, **fields)
        return True

    HANDLERS = Handlers(
        messages={m.Detached: on_detached},
        timers={Timer.LEAVE: on_timer},
    )

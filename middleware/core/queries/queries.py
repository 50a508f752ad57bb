"""The queries of a run, at its client: who uses which nodes, and what goes when one leaves.

Rules:

R1. A query is its sinks; it uses all that leads to them. The one that the run began with is number 0.
R2. What no other query uses goes with one that leaves. All hosts are told (``query_attachment``), again and again until
    they have answered: only then is another query proposed, or another shape.
R3. Who is being proposed is not known to all hosts: nobody leaves meanwhile. The last of this application's own stay,
    and keep nobody waiting, while there are guests, or others to be proposed, which are to share what is there.
R4. Code that fails, and hosts that are lost, end the queries that use them, and no others. Where all of this
    application's own do, it is the run.
R5. Queries of other clients (``subscribers``) have numbers below 0. Who has none any more has no part in the run.
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

REMEMBERED = 1024  # queries of guests that are over


class Subscriber(msgspec.Struct, frozen=True):
    """Another client that wants the partitions of ``node``, by its subscription ``number``; its sink in the run."""

    peer: m.Peer
    number: int
    node: str
    sink: str


class Queries(Part):
    """The client's list of one run's queries."""

    @classmethod
    def of(cls, parts: RunParts) -> Queries:
        return cls(parts.context, parts.get(Tree), parts.get(Directory))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory) -> None:
        self._out, self._limits = context.out, context.limits
        self._tree, self._directory = tree, directory
        self.sinks: dict[int, tuple[str, ...]] = {0: tree.dataflow.sinks}
        self.joining = False  # R3: no query leaves while another is proposed
        self.expected: set[int] = set()  # queries that are to be proposed
        self.subscribers: dict[int, Subscriber] = {}  # R5: by number, below 0
        self.why: dict[int, str] = {}  # those of guests leave
        self.over: dict[tuple[str, int], str] = {}  # subscriptions, by guest and number, in order; and why
        self._leaving: list[int] = []
        self._words: dict[str, m.Message] = {}  # by host: what it has not answered
        self._strangers: list[tuple[str, m.Peer]] = []  # guests of whom hosts that have joined are to be told
        self.told_s = 0.0  # when that was said first

    def continue_from(self, before: Queries, change: GenerationChange) -> None:
        """Go on as the next generation of the run, with the guests whose queries have begun; others ask again."""
        nodes = self._tree.dataflow.by_name
        self.subscribers = {query: guest for query, guest in before.subscribers.items() if guest.sink in nodes}
        own = {query: sinks for query, sinks in before.sinks.items() if query not in before.subscribers}
        self.sinks = own | {query: (guest.sink,) for query, guest in self.subscribers.items()}
        self.why = {query: why for query, why in before.why.items() if query in self.subscribers}
        self.over = before.over
        self._leaving = [query for query in before._leaving if query in self.sinks]

    def go_on(self) -> None:
        """Have those leave that were to leave in the generation before."""
        self._go_on()

    @property
    def peers(self) -> tuple[m.Peer, ...]:
        """R5: where the guests listen whose sinks are in the graph."""
        nodes = self._tree.dataflow.by_name
        begun = [guest.peer for guest in self.subscribers.values() if guest.sink in nodes]
        return tuple({peer.name: peer for peer in begun}.values())

    @property
    def busy(self) -> bool:
        """Whether some hosts may not know yet that a query has left."""
        return bool(self._words or self._ready)

    @property
    def awaited(self) -> Collection[str]:
        """Who has not answered what all were told at ``told_s``."""
        return self._words.keys()

    @property
    def _ready(self) -> list[int]:
        """Those that leave now, in order."""
        own = self.sinks.keys() - self.subscribers.keys()
        if (self.expected or self.subscribers) and own <= set(self._leaving):
            # R3: the last own queries stay, as guests or queries to come share their nodes
            return [query for query in self._leaving if query in self.subscribers]
        return self._leaving

    def nodes_of(self, queries: Collection[int]) -> set[str]:
        """R1: what these queries use."""
        below = self._tree.dataflow.below
        return {name for query in queries for sink in self.sinks[query] for name in below(sink)}

    def leave(self, query: int) -> None:
        """A query is to leave."""
        if query in self.sinks and query not in self._leaving:
            self._leaving.append(query)
            self._go_on()

    def adopt(self, sinks: Mapping[int, tuple[str, ...]]) -> None:
        """Go on with the queries that another client has begun, by number with their sinks, if it has begun any."""
        self.sinks = dict(sinks) or self.sinks

    def invite(self, query: int, guest: Subscriber) -> None:
        """R5: add a query of another client, which is still to be proposed."""
        self.subscribers[query] = guest
        self.sinks[query] = ()

    def expect(self, query: int) -> None:
        """R3: have the last own queries stay for a query that is to be proposed."""
        self.expected.add(query)

    def expect_no_more(self, query: int) -> None:
        """R3: keep no own query for one that is proposed now, or has left before."""
        self.expected.discard(query)

    def begin_joining(self) -> None:
        """R3: let no query leave until the one that is proposed has ``joined``."""
        self.joining = True

    def begin(self, query: int, sinks: tuple[str, ...]) -> None:
        """R1: note the sinks of a query that all hosts have agreed to."""
        self.sinks[query] = sinks

    def joined(self) -> None:
        """Nothing is being proposed any more."""
        self.joining = False
        self._go_on()

    def _go_on(self) -> None:
        """R2: tell everyone, if somebody leaves and nothing else is told."""
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
            return  # who is the last ends the run
        self._directory.dismiss_guests(guests)
        word = m.Detach(self._out.run, self._directory.new_number(), gone, guests)
        self.send_until_answered(dict.fromkeys(self._directory.everyone, word))

    def _dismiss(self, query: int) -> Subscriber:
        """R5: tell a guest that its query is over."""
        guest, why = self.subscribers[query], self.why.get(query, "")
        self.over[guest.peer.name, guest.number] = why
        if len(self.over) > REMEMBERED:
            del self.over[next(iter(self.over))]
        self._out.send(guest.peer.name, m.SubscriptionEnded(self._out.run, guest.number, why[:4000]))
        return guest

    def send_until_answered(self, words: dict[str, m.Message]) -> None:
        """Tell every one of these hosts, again and again until it has answered."""
        self._words, self.told_s = words, self._out.now
        self.on_timer()

    def record(
        self, query: int, outcome: str, why: str, names: dict[str, str], apart: dict[str, float] | None = None
    ) -> None:
        """What has become of a query; ``names``: of its nodes in the run; ``apart``: what was there, and too far."""
        begins = min([self._tree.first.get(name, 0) for name in self.sinks.get(query, ())], default=None)
        detail = {"query": query, "outcome": outcome, "why": why or self.why.get(query, ""), "names": names}
        if query in self.subscribers:
            detail |= {"guest": self.subscribers[query].peer.name, "node": self.subscribers[query].node}
        if apart:
            detail["apart_s"] = apart
        self._out.record("query", index=begins if outcome == "begun" else None, detail=detail)

    def introduce(self, host: str) -> None:
        """R5: a host that has joined is to be told of all guests, when all others have answered."""
        peers = {guest.peer.name: guest.peer for guest in self.subscribers.values()}
        self._strangers += [(host, peer) for name, peer in peers.items() if name in self._directory.subscribers]

    def on_timer(self) -> None:
        """Tell those that have not answered."""
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
        """Have a host that has not answered hear this in place of what it was told."""
        if host in self._words:
            self._words[host] = word

    def answered(self, host: str) -> Notes:
        """Nothing more is to be told to ``host``."""
        if self._words.pop(host, None) is not None and not self._words:
            while self._strangers:
                newcomer, peer = self._strangers.pop(0)
                if newcomer in self._directory.hosts:
                    self.send_until_answered({newcomer: m.AddMember(self._out.run, self._directory.new_number(), peer)})
                    return
            self._go_on()
            yield Left()

    def give_reason(self, query: int, why: str) -> None:
        """R5: keep why the query of a guest leaves; the first reason counts."""
        self.why.setdefault(query, why)

    def failed(self, query: int, reason: str, **fields: Any) -> None:
        """A query cannot go on, or begin: who wants it is told, and it leaves."""
        if query in self.subscribers:
            self.give_reason(query, reason)
        else:
            self._out.fail(reason, query=query, **fields)
        self.leave(query)

    def fail(self, nodes: Collection[str], reason: str, **fields: Any) -> bool:
        """R4: these nodes cannot go on; False where all queries use one of them, or none as it is of an old tree."""
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

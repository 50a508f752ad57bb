"""Where the nodes of a run are, as far as this host knows.

Rules:

R1. Locations merge entry by entry, the higher version wins.
R2. After a change-over the moves that were committed count for later partitions, unless a newer location is known.
R3. Every other host is told once of what has changed.
R4. What others say of a location is taken only where it can be: a host of the run, for an operator that may move, a
    version that is not far beyond the known one. What is here is known here best: nobody else's word takes an operator
    away, or brings one whose state is not restored here.
R5. A proposal that was made before a query left may name nodes that went with it: nothing is done about these.
R6. A later generation begins with the sinks of other clients. A client other than the run's own that holds a sink is a
    guest from the start, and none of the run's hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.core.routes.route_choice import RouteChoice
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

FAR = 2**20  # versions: nobody misses a million moves of one operator
REMEMBERED = 4096  # nodes that are gone: no proposal that names one outlasts so many more


class Switch(msgspec.Struct, frozen=True):
    """Where operators are for partitions after ``iteration``, unless a newer location than the moves' is known."""

    iteration: int
    moves: dict[str, m.Move]
    commit: m.Commit


def merge_locations(table: dict[str, m.Location], news: Iterable[m.Location]) -> tuple[m.Location, ...]:
    """Take over every entry whose version is higher, and return these; entries of unknown nodes are ignored."""
    newer = []
    for entry in news:
        if entry.node in table and entry.version > table[entry.node].version:
            table[entry.node] = entry
            newer.append(entry)
    return tuple(newer)


def guests_of(install: m.Install) -> set[str]:
    """R6: the other clients that have sinks as the run begins."""
    flow = install.dataflow.by_name
    held = {entry.host for entry in install.locations if entry.node in flow and flow[entry.node].kind == "sink"}
    return held - {install.client}


class Directory:
    """The only writer of a run's locations, and of the hosts that have a part in it."""

    def __init__(self, context: RunContext, monitor: Monitor) -> None:
        install = context.install
        self._out, self._context = context.out, context
        self._first = install.number  # what was told before is of before
        self.locations = {location.node: location for location in install.locations}
        self.subscribers = guests_of(install)  # other clients, which have sinks and nothing else
        self.returning: set[str] = set()  # R6: at the client, subscribers that have not heard of this generation
        self.peers = {peer.name: peer for peer in install.peers if peer.name not in self.subscribers}
        self.hosts = (self.peers.keys() | {entry.host for entry in install.locations}) - self.subscribers
        self.vacating: set[str] = set()  # hosts to which nothing is to go any more, at the client
        self._members = set(self.hosts)  # also those that are lost
        self.members = {*self.peers, install.client, self._out.host}  # who may say something of the run
        first = install.dataflow.by_name
        still = [
            entry for entry in install.locations if first[entry.node].kind != "operator" or first[entry.node].pinned
        ]
        self.senders = {entry.node: frozenset({entry.host}) for entry in still}  # of the partitions of what stays
        self._awaited: set[str] = set()
        self._gone: dict[str, None] = {}  # names, in order
        self.lost: dict[str, str] = {}  # host -> how it was lost, at the client
        self.number = install.number  # at the client: of what all were told last
        self.fell: set[str] = set()  # those that had a part in this generation when they were, also if they are back
        self._lost_after: dict[str, int] = {}  # host -> what had been told when it was lost
        self._joined: dict[str, int] = {}  # host -> what was told as it joined
        self.doomed = False  # something is on a host that is lost
        self.chosen_routes: RouteChoice | None = None  # created with the first route that is chosen or looked at
        self._monitor = monitor
        self.switch: Switch | None = None
        self.changes = 0  # of locations
        self._changed: dict[str, int] = {}  # which change a node's was, in order
        self._told: dict[str, int] = {}  # host -> how much of it that was told

    @property
    def routes(self) -> RouteChoice:
        """Networks and relays by which this host reaches others, as the client has chosen them."""
        if self.chosen_routes is None:
            self.chosen_routes = RouteChoice(self._context)
            for host in self.lost:
                self.chosen_routes.lose(host)
        return self.chosen_routes

    def host_of(self, node: str, index: int) -> str:
        """The host that ``node`` is on when it works on partition ``index``."""
        location, switch = self.locations[node], self.switch
        if switch is not None and index > switch.iteration:
            move = switch.moves.get(node)
            if move is not None and move.version == location.version:  # R2: no location newer than the move is known
                return move.target
        return location.host

    def whereabouts(self, node: str, index: int) -> str:
        """The host to which goes what concerns partition ``index`` of a node that is not here."""
        host = self.locations[node].host
        if self.switch is None:
            return host
        target = self.host_of(node, index)
        return target if target != self._out.host else host  # it is to come here, and has not yet

    def where(self, names: Iterable[str]) -> dict[str, str]:
        """The hosts of these nodes."""
        return {name: self.locations[name].host for name in names}

    @property
    def everyone(self) -> set[str]:
        """The hosts of the run, and its guests."""
        return {*self.hosts, *self.subscribers}

    def reachable(self) -> Mapping[str, m.Peer]:
        """The hosts of the run that are not lost, and where they listen, as far as that is known."""
        return {name: peer for name, peer in self.peers.items() if name in self.hosts}

    @property
    def moved(self) -> tuple[m.Location, ...]:
        """Where all is that has moved, or begun, since the run did."""
        return tuple([self.locations[name] for name in self._changed])

    def merge(self, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """Take over every location whose version is higher, by the word of others; those that were."""
        return self.settle([entry for entry in news if self.believes(entry)])

    def believes(self, entry: m.Location) -> bool:
        """R4: whether a location can be, or be what is known."""
        known, here = self.locations.get(entry.node), self._out.host
        if known is None:
            return False
        if entry.version <= known.version:
            return entry.version < known.version or entry.host == known.host
        if entry.host not in self._members or entry.node in self.senders or entry.version > known.version + FAR:
            return False
        return known.host != here and (entry.host != here or entry.node in self._awaited)

    def wrong(self, moves: tuple[m.Move, ...]) -> str:
        """R4: why these moves cannot be of this run; empty when they can."""
        names = {move.node for move in moves}
        if len(names) < len(moves):
            return "an operator would move twice"
        for move in self.there(moves):
            if move.node not in self.locations:
                return f"there is no node {move.node!r}"
            if move.node in self.senders:
                return f"node {move.node!r} stays where it is"
            for host in (move.source, move.target):
                if host not in self._members:
                    return f"host {host!r} has no part in the run"
        return ""

    def doom(self) -> None:
        """Have the run begin anew: what it needs is lost, or a source that it lacks is back."""
        self.doomed = True

    def avert_doom(self) -> None:
        """Note that the run begins anew."""
        self.doomed = False

    def vacate(self, host: str) -> None:
        """At the client: place nothing on a host that is to leave."""
        self.vacating.add(host)

    def stop_vacating(self, host: str) -> None:
        """At the client: place operators on a host again, as it stays or has joined anew."""
        self.vacating.discard(host)

    def admit_guest(self, name: str) -> None:
        """R6: admit another client as a guest, which takes partitions of the run."""
        self.subscribers.add(name)

    def dismiss_guests(self, names: Iterable[str]) -> None:
        """R6: dismiss guests, which take nothing of the run any more."""
        self.subscribers.difference_update(names)

    def lose_guest(self, name: str) -> None:
        """At the client: forget a guest that is gone."""
        self.subscribers.discard(name)
        self.returning.discard(name)

    def await_guests(self, names: Iterable[str]) -> None:
        """R6: at the client, keep which guests have not heard of this generation."""
        self.returning = set(names)

    def await_guest_no_more(self, name: str) -> None:
        """R6: at the client, note that a guest has heard of this generation, or is given up."""
        self.returning.discard(name)

    def await_word(self, node: str) -> None:
        """The state of an operator is restored here."""
        self._awaited.add(node)

    def await_no_word(self, node: str) -> None:
        """It has come, or does not."""
        self._awaited.discard(node)

    def settle(self, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """The same by this host's own word, which it gives of what is here."""
        newer = merge_locations(self.locations, news)
        for entry in newer:
            self.changes += 1
            self._changed[entry.node] = self.changes
            if self._context.leads:
                self._out.emit(e.OperatorMoved(self._out.run, entry.node, entry.host))
                if entry.host in self.lost and self._context.fails_over:
                    self.doom()
                elif entry.host in self.lost:  # it went there before it was, and is lost with it
                    why = f"host {entry.host!r}, which holds {entry.node}, {self.lost[entry.host]}"
                    self._out.fail(why, host=entry.host, lost=True)
        return newer

    def switch_over(self, commit: m.Commit) -> None:
        """From a change-over on its moves count."""
        self.switch = Switch(commit.iteration, {move.node: move for move in commit.moves}, commit)
        if commit.ways is not None:
            self.routes.change(commit.ways, commit.iteration)

    def appear(self, node: str, host: str, *, still: bool = False) -> None:
        """A node that another tree has, and the old one had not, or another query; ``still``: it does not move."""
        self.locations[node] = m.Location(node, host, 1)
        if still:
            self.senders[node] = frozenset({host})

    def forget(self, gone: AbstractSet[str]) -> None:
        """Nodes that no tree has any more."""
        tables: tuple[dict[str, Any], ...] = (self.locations, self._changed, self.senders)
        for table in tables:
            for name in gone & table.keys():
                del table[name]
        self._awaited -= gone

    def outlive(self, gone: AbstractSet[str]) -> None:
        """R5: nodes that no query uses any more."""
        self.forget(gone)
        self._gone |= dict.fromkeys(sorted(gone))
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def had(self, name: str) -> bool:
        """Whether the run has a node of that name, or had one."""
        return name in self.locations or name in self._gone

    def there(self, moves: Iterable[m.Move]) -> list[m.Move]:
        """R5: these moves, without those of nodes that are gone."""
        return [move for move in moves if move.node not in self._gone]

    def new_number(self) -> int:
        """At the client: of what is told to all next, and repeated until they have answered."""
        self.number += 1
        return self.number

    def join(self, peer: m.Peer, number: int) -> None:
        """A host has a part in the run from now on, or again, by the ``AddMember`` of that number."""
        self._joined[peer.name] = number
        self.peers[peer.name] = peer
        self.hosts = self.hosts | {peer.name}
        self._members.add(peer.name)
        self.members.add(peer.name)
        self.lost.pop(peer.name, None)
        if self.chosen_routes is not None:
            self.chosen_routes.regain(peer.name)
        self.stop_vacating(peer.name)

    def lose(self, host: str, how: str = "") -> None:
        """A host has no part in the run any more; at the client, ``how`` it was lost."""
        self.fell.add(host)
        self.leave_out(host, how)

    def leave_out(self, host: str, how: str) -> None:
        """The same of one that has had none in this generation: nothing can be there."""
        if host not in self.fell:
            self._members.discard(host)
        self.hosts = self.hosts - {host}
        self.lost[host] = how
        if self.chosen_routes is not None:
            self.chosen_routes.lose(host)
        self._lost_after[host] = self.number

    def lost_message(self, host: str) -> m.Lost:
        """At the client: what others are told of a host that is lost."""
        return m.Lost(self._out.run, host, self.moved, self._lost_after[host])

    def is_back(self, message: m.Lost) -> bool:
        """Whether the host has joined again since that was said."""
        return message.number < self._joined.get(message.host, self._first)

    def telling(self, *, upward: bool) -> bool:
        """Return whether messages carry measured links.

        Away from the client (``upward``) they do so only if hosts decide about moves themselves.
        """
        return bool(self._context.install.news) and (not upward or self._context.by_epochs is not None)

    def piggyback(self, host: str, *, upward: bool) -> m.Piggyback | None:
        """Return the newer locations and measured links for the next message to ``host``. None: there are none."""
        estimates = self._monitor.news_for(host, self._out.now) if self.telling(upward=upward) else ()
        locations = self._news_for(host) if self.changes else None
        return None if locations is None and not estimates else m.Piggyback(locations or (), estimates)

    def _news_for(self, host: str) -> tuple[m.Location, ...] | None:
        """What ``host`` was not told yet, None when nothing has changed since; with this it is."""
        sent = self._told.get(host, 0)
        if sent == self.changes:
            return None
        self._told[host] = self.changes
        return tuple([self.locations[name] for name, number in self._changed.items() if number > sent])

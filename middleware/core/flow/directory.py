"""Locations of a run's nodes, and the hosts of the run, as far as this host knows.

Rules:

R1. Locations are merged entry by entry. The higher version wins.
R2. After a change-over, the committed moves apply to later partitions, unless a newer location is known.
R3. Every change of a location is piggybacked once to every other host.
R4. A location from another host is accepted only if it is plausible. It names a host of the run, an operator that may
    move, and a version at most ``FAR`` above the known version. It never removes an operator from this host, and never
    brings an operator whose state is not restored here.
R5. A proposal may be older than the departure of a query, and name nodes that have left with the query. Moves of these
    nodes are ignored.
R6. A later generation begins with the sinks of other clients. A client that has a sink and did not start the run is a
    guest from the start. A guest is no host of the run.
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

FAR = 2**20  # versions: no host misses a million moves of one operator
REMEMBERED = 4096  # nodes that are gone: no proposal is so late that so many more have left meanwhile


class Switch(msgspec.Struct, frozen=True):
    """Moves of a change-over: locations of operators for partitions after ``iteration``.

    A location that is newer than a move replaces the move.
    """

    iteration: int
    moves: dict[str, m.Move]
    commit: m.Commit


def merge_locations(table: dict[str, m.Location], news: Iterable[m.Location]) -> tuple[m.Location, ...]:
    """Take every entry of ``news`` with a higher version into ``table``, and return the entries taken.

    Entries of unknown nodes are ignored.
    """
    newer = []
    for entry in news:
        if entry.node in table and entry.version > table[entry.node].version:
            table[entry.node] = entry
            newer.append(entry)
    return tuple(newer)


def guests_of(install: m.Install) -> set[str]:
    """Return the guests at the beginning: clients with sinks, except the run's own client (R6)."""
    flow = install.dataflow.by_name
    held = {entry.host for entry in install.locations if entry.node in flow and flow[entry.node].kind == "sink"}
    return held - {install.client}


class Directory:
    """Locations of one run's nodes, and the hosts and guests of the run. No other part writes these tables."""

    def __init__(self, context: RunContext, monitor: Monitor) -> None:
        install = context.install
        self._out, self._context = context.out, context
        self._first = install.number  # lower numbers are of messages before this host took part
        self.locations = {location.node: location for location in install.locations}
        self.subscribers = guests_of(install)  # guests: other clients, which have sinks and nothing else
        self.returning: set[str] = set()  # R6: at the client, guests that do not know this generation yet
        self.peers = {peer.name: peer for peer in install.peers if peer.name not in self.subscribers}
        self.hosts = (self.peers.keys() | {entry.host for entry in install.locations}) - self.subscribers
        self.vacating: set[str] = set()  # at the client, hosts that are to leave
        self._members = set(self.hosts)  # hosts that a location may name, also lost hosts
        self.members = {*self.peers, install.client, self._out.host}  # hosts whose messages about the run are accepted
        first = install.dataflow.by_name
        still = [
            entry for entry in install.locations if first[entry.node].kind != "operator" or first[entry.node].pinned
        ]
        self.senders = {entry.node: frozenset({entry.host}) for entry in still}  # senders of nodes that never move
        self._awaited: set[str] = set()  # operators whose state is restored here
        self._gone: dict[str, None] = {}  # names of nodes that are gone, oldest first
        self.lost: dict[str, str] = {}  # host -> how it was lost, at the client
        self.number = install.number  # at the client: number of the last message to all hosts
        self.fell: set[str] = set()  # hosts that took part in this generation before the loss, also if they are back
        self._lost_after: dict[str, int] = {}  # host -> ``number`` at the time of the loss
        self._joined: dict[str, int] = {}  # host -> number of its ``AddMember``
        self.doomed = False  # the run has to restart
        self.chosen_routes: RouteChoice | None = None  # created on first use
        self._monitor = monitor
        self.switch: Switch | None = None
        self.changes = 0  # number of changes of locations
        self._changed: dict[str, int] = {}  # node -> number of its newest change
        self._told: dict[str, int] = {}  # host -> number of the newest change that it was sent

    @property
    def routes(self) -> RouteChoice:
        """Networks and relays from this host to other hosts, as chosen by the client."""
        if self.chosen_routes is None:
            self.chosen_routes = RouteChoice(self._context)
            for host in self.lost:
                self.chosen_routes.lose(host)
        return self.chosen_routes

    def host_of(self, node: str, index: int) -> str:
        """Return the host of ``node`` while the node works on partition ``index`` (R2)."""
        location, switch = self.locations[node], self.switch
        if switch is not None and index > switch.iteration:
            move = switch.moves.get(node)
            if move is not None and move.version == location.version:  # R2: no location newer than the move is known
                return move.target
        return location.host

    def whereabouts(self, node: str, index: int) -> str:
        """Return the host for messages about partition ``index`` of a node that is not on this host.

        If the node is about to move here, return the host that it leaves.
        """
        host = self.locations[node].host
        if self.switch is None:
            return host
        target = self.host_of(node, index)
        return target if target != self._out.host else host  # the node is to come here, and has not come yet

    def where(self, names: Iterable[str]) -> dict[str, str]:
        """Return the hosts of nodes, by node."""
        return {name: self.locations[name].host for name in names}

    @property
    def everyone(self) -> set[str]:
        """Hosts and guests of the run."""
        return {*self.hosts, *self.subscribers}

    def reachable(self) -> Mapping[str, m.Peer]:
        """Return the hosts of the run that are not lost, with the endpoints as far as known."""
        return {name: peer for name, peer in self.peers.items() if name in self.hosts}

    @property
    def moved(self) -> tuple[m.Location, ...]:
        """Locations that have changed since the run began on this host."""
        return tuple([self.locations[name] for name in self._changed])

    def merge(self, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """Accept the plausible locations with a higher version from another host (R1, R4). Return them."""
        return self.settle([entry for entry in news if self.believes(entry)])

    def believes(self, entry: m.Location) -> bool:
        """Return whether a location from another host is plausible or already known (R4)."""
        known, here = self.locations.get(entry.node), self._out.host
        if known is None:
            return False
        if entry.version <= known.version:
            return entry.version < known.version or entry.host == known.host
        if entry.host not in self._members or entry.node in self.senders or entry.version > known.version + FAR:
            return False
        return known.host != here and (entry.host != here or entry.node in self._awaited)

    def wrong(self, moves: tuple[m.Move, ...]) -> str:
        """Return why ``moves`` cannot be moves of the run, or an empty text (R4)."""
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
        """Request a restart of the run, because a needed part is lost or an absent source is back."""
        self.doomed = True

    def avert_doom(self) -> None:
        """Clear the request of ``doom``, because the run restarts now."""
        self.doomed = False

    def vacate(self, host: str) -> None:
        """At the client: exclude a host that is to leave from new placements."""
        self.vacating.add(host)

    def stop_vacating(self, host: str) -> None:
        """At the client: permit new placements on a host, because the host stays or has joined anew."""
        self.vacating.discard(host)

    def admit_guest(self, name: str) -> None:
        """Add another client as a guest, which takes partitions of the run (R6)."""
        self.subscribers.add(name)

    def dismiss_guests(self, names: Iterable[str]) -> None:
        """Remove guests that no longer take partitions of the run (R6)."""
        self.subscribers.difference_update(names)

    def lose_guest(self, name: str) -> None:
        """At the client: remove a guest that is lost."""
        self.subscribers.discard(name)
        self.returning.discard(name)

    def await_guests(self, names: Iterable[str]) -> None:
        """At the client: set the guests that do not know the present generation yet (R6)."""
        self.returning = set(names)

    def await_guest_no_more(self, name: str) -> None:
        """At the client: record that a guest knows the present generation, or is given up (R6)."""
        self.returning.discard(name)

    def await_word(self, node: str) -> None:
        """Accept a move of an operator to this host from now on, because the state is restored here (R4)."""
        self._awaited.add(node)

    def await_no_word(self, node: str) -> None:
        """End the permission of ``await_word``, because the operator has come or does not come."""
        self._awaited.discard(node)

    def settle(self, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """Apply the locations with a higher version, without the check of R4. Return the applied entries.

        If an operator is now on a lost host, the client restarts the run, or ends a run without failover.
        """
        newer = merge_locations(self.locations, news)
        for entry in newer:
            self.changes += 1
            self._changed[entry.node] = self.changes
            if self._context.leads:
                self._out.emit(e.OperatorMoved(self._out.run, entry.node, entry.host))
                if entry.host in self.lost and self._context.fails_over:
                    self.doom()
                elif entry.host in self.lost:  # the operator went there before the loss, and is lost with the host
                    why = f"host {entry.host!r}, which holds {entry.node}, {self.lost[entry.host]}"
                    self._out.fail(why, host=entry.host, lost=True)
        return newer

    def switch_over(self, commit: m.Commit) -> None:
        """Apply the moves and routes of a change-over to later partitions (R2)."""
        self.switch = Switch(commit.iteration, {move.node: move for move in commit.moves}, commit)
        if commit.ways is not None:
            self.routes.change(commit.ways, commit.iteration)

    def appear(self, node: str, host: str, *, still: bool = False) -> None:
        """Add a node that a new tree or query brings. ``still``: the node never moves."""
        self.locations[node] = m.Location(node, host, 1)
        if still:
            self.senders[node] = frozenset({host})

    def forget(self, gone: AbstractSet[str]) -> None:
        """Remove nodes that no tree contains any longer."""
        tables: tuple[dict[str, Any], ...] = (self.locations, self._changed, self.senders)
        for table in tables:
            for name in gone & table.keys():
                del table[name]
        self._awaited -= gone

    def outlive(self, gone: AbstractSet[str]) -> None:
        """Remove nodes that no query uses any longer, and remember the names (R5)."""
        self.forget(gone)
        self._gone |= dict.fromkeys(sorted(gone))
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def had(self, name: str) -> bool:
        """Return whether the run has a node called ``name``, or had one."""
        return name in self.locations or name in self._gone

    def there(self, moves: Iterable[m.Move]) -> list[m.Move]:
        """Return ``moves`` without the moves of nodes that are gone (R5)."""
        return [move for move in moves if move.node not in self._gone]

    def new_number(self) -> int:
        """At the client: return a new number for a message that is repeated until every host has answered."""
        self.number += 1
        return self.number

    def join(self, peer: m.Peer, number: int) -> None:
        """Add a host that joins the run, or joins again, by the ``AddMember`` with this number."""
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
        """Remove a lost host from the run. ``how``: at the client, how the host was lost."""
        self.fell.add(host)
        self.leave_out(host, how)

    def leave_out(self, host: str, how: str) -> None:
        """Remove a host from the run.

        If the host has had no part in this generation, no location on the host is plausible (R4).
        """
        if host not in self.fell:
            self._members.discard(host)
        self.hosts = self.hosts - {host}
        self.lost[host] = how
        if self.chosen_routes is not None:
            self.chosen_routes.lose(host)
        self._lost_after[host] = self.number

    def lost_message(self, host: str) -> m.Lost:
        """At the client: return the message that notifies hosts of the loss of ``host``."""
        return m.Lost(self._out.run, host, self.moved, self._lost_after[host])

    def is_back(self, message: m.Lost) -> bool:
        """Return whether the host has joined again since the client sent ``message``."""
        return message.number < self._joined.get(message.host, self._first)

    def telling(self, *, upward: bool) -> bool:
        """Return whether messages carry measured links.

        Away from the client (``upward``), messages carry links only if hosts decide about moves themselves.
        """
        return bool(self._context.install.news) and (not upward or self._context.by_epochs is not None)

    def piggyback(self, host: str, *, upward: bool) -> m.Piggyback | None:
        """Return the newer locations and measured links for the next message to ``host``, or None."""
        estimates = self._monitor.news_for(host, self._out.now) if self.telling(upward=upward) else ()
        locations = self._news_for(host) if self.changes else None
        return None if locations is None and not estimates else m.Piggyback(locations or (), estimates)

    def _news_for(self, host: str) -> tuple[m.Location, ...] | None:
        """Return the changes that ``host`` was not sent yet, and record that they are sent now.

        None: there is no change since the last call.
        """
        sent = self._told.get(host, 0)
        if sent == self.changes:
            return None
        self._told[host] = self.changes
        return tuple([self.locations[name] for name, number in self._changed.items() if number > sent])

"""Where the nodes of a run are, as far as this host knows.

Rules:

R1. Locations merge entry by entry, the higher version wins.
R2. After a change-over the moves that were committed count for later partitions, unless a newer location is known.
R3. Every other host is told once of what has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from thalweg.middleware.core.outbox import Setting
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Switch(msgspec.Struct, frozen=True):
    """Where operators are for partitions after ``iteration``, unless a newer location than the moves' is known."""

    iteration: int
    moves: dict[str, m.Move]
    commit: m.Commit


def merge_locations(table: dict[str, m.Location], news: Iterable[m.Location]) -> tuple[m.Location, ...]:
    """Take over every entry whose version is higher, and return these; entries of unknown nodes are ignored."""
    taken = []
    for entry in news:
        if entry.node in table and entry.version > table[entry.node].version:  # R1
            table[entry.node] = entry
            taken.append(entry)
    return tuple(taken)


class Directory:
    """The only writer of a run's locations, and of the hosts that have a part in it."""

    def __init__(self, setting: Setting) -> None:
        install = setting.install
        self._out, self._leads = setting.out, setting.leads
        self.locations = {location.node: location for location in install.locations}
        self.peers = {peer.name: peer for peer in install.peers}
        self.hosts = self.peers.keys() | {entry.host for entry in install.locations}
        self.lost: dict[str, str] = {}  # host -> how it was lost, at the client
        self.switch: Switch | None = None
        self.changes = 0  # of locations
        self._changed: dict[str, int] = {}  # which change a node's was, in order
        self._told: dict[str, int] = {}  # host -> how much of it that was told

    def host_of(self, node: str, index: int) -> str:
        """The host that ``node`` is on when it works on partition ``index``."""
        location, switch = self.locations[node], self.switch
        if switch is not None and index > switch.iteration:
            move = switch.moves.get(node)
            if move is not None and move.version == location.version:  # R2
                return move.target
        return location.host

    def whereabouts(self, node: str, index: int) -> str:
        """The host to which goes what concerns partition ``index`` of a node that is not here."""
        host = self.locations[node].host
        if self.switch is None:
            return host
        there = self.host_of(node, index)
        return there if there != self._out.host else host  # it is to come here, and has not yet

    def where(self, names: Iterable[str]) -> dict[str, str]:
        """The hosts of these nodes."""
        return {name: self.locations[name].host for name in names}

    def reachable(self) -> Mapping[str, m.Peer]:
        """The hosts of the run that are not lost, and where they listen, as far as that is known."""
        return {name: peer for name, peer in self.peers.items() if name in self.hosts}

    @property
    def moved(self) -> tuple[m.Location, ...]:
        """Where all is that has moved, or begun, since the run did."""
        return tuple([self.locations[name] for name in self._changed])

    def merge(self, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """Take over every location whose version is higher; those that were."""
        taken = merge_locations(self.locations, news)
        for entry in taken:
            self.changes += 1
            self._changed[entry.node] = self.changes
            if self._leads:
                self._out.emit(e.Placed(self._out.run, entry.node, entry.host))
                if entry.host in self.lost:  # it went there before it was, and is lost with it
                    why = f"host {entry.host!r}, which holds {entry.node}, {self.lost[entry.host]}"
                    self._out.fail(why, host=entry.host, lost=True)
        return taken

    def switch_over(self, commit: m.Commit) -> None:
        """From a change-over on its moves count."""
        self.switch = Switch(commit.iteration, {move.node: move for move in commit.moves}, commit)

    def appear(self, node: str, host: str) -> None:
        """A node that another tree has, and the old one had not."""
        self.locations[node] = m.Location(node, host, 1)

    def forget(self, gone: AbstractSet[str]) -> None:
        """Nodes that no tree has any more."""
        for table in (self.locations, self._changed):
            for name in gone & table.keys():
                del table[name]

    def lose(self, host: str, how: str = "") -> None:
        """A host has no part in the run any more; at the client, ``how`` it was lost."""
        self.hosts = self.hosts - {host}
        self.lost[host] = how

    def news_for(self, host: str) -> tuple[m.Location, ...] | None:
        """What ``host`` was not told yet, None when nothing has changed since; with this it is."""
        told = self._told.get(host, 0)
        if told == self.changes:
            return None  # R3
        self._told[host] = self.changes
        return tuple([self.locations[name] for name, number in self._changed.items() if number > told])

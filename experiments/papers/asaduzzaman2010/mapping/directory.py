"""Who has which service, as one host knows it: spread by gossip.

- R1: there is one entry for each host, its own; the one of the higher version wins, and the host alone raises that;
- R2: every ``gossip_s`` a host tells another that it knows of, drawn at random, all that it knows; who hears that
  answers with what is newer there, if anything is;
- R3: a host that hears of itself what it does not say, as it began anew, says it again with a higher version;
- R4: nothing else hangs on it: what is out of date costs a map that was not found, or a message to who cannot use it.

Source: Asaduzzaman and Maheswaran, section 4.3, who assume it; Demers et al., Epidemic Algorithms for Replicated
Database Maintenance (1987), push and pull.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import CONTROL, DirectoryGossip, Entry, Transmit
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import SINK, Host


class ServiceDirectory:
    """Of one host; ``own``: what it says of itself, ``known``: what it was told of others before it began."""

    def __init__(self, own: Entry, known: Iterable[Entry], gossip_s: float, seed: int) -> None:
        self._host, self._gossip_s = own.host, gossip_s
        self._entries = {entry.host: entry for entry in known} | {own.host: own}
        self._random = random.Random(f"{seed} {own.host} gossip")
        self._told_s = 0.0
        self._index()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """By the hosts' numbers."""
        return tuple(self._entries[host] for host in sorted(self._entries))

    @property
    def services(self) -> frozenset[int]:
        """What this host has."""
        return self._entries[self._host].services

    def having(self, service: int) -> tuple[Host, ...]:
        """The hosts on the public network that have a service (``SINK``: all of them), by their numbers."""
        return self._having.get(service, ())

    def serve(self, services: frozenset[int]) -> None:
        """What this host has from now on."""
        own = self._entries[self._host]
        self._entries[self._host] = msgspec.structs.replace(own, services=services, version=own.version + 1)
        self._index()

    def tick(self, now: float, out: list[Transmit]) -> None:
        """Gossip, when it is time (R2)."""
        peers = [host for host in sorted(self._entries) if host != self._host]
        if now - self._told_s >= self._gossip_s and peers:
            self._told_s = now
            self._send(self._random.choice(peers), self.entries, answer=False, out=out)

    def on_gossip(self, message: DirectoryGossip, out: list[Transmit]) -> None:
        """Take what is newer (R1), and answer what is newer here (R2)."""
        own, changed = self._entries[self._host], False
        for entry in message.entries:
            if entry.host == self._host:
                # R3: an entry of an earlier start of this host: outdo its version
                if entry != own and entry.version >= own.version:
                    self._entries[self._host] = msgspec.structs.replace(own, version=entry.version + 1)
            elif entry.host not in self._entries or entry.version > self._entries[entry.host].version:
                # R1: the entry of the higher version wins
                self._entries[entry.host] = entry
                changed = True
        if changed:
            self._index()
        if not message.answer:
            versions = {entry.host: entry.version for entry in message.entries}
            newer = tuple(entry for entry in self.entries if entry.version > versions.get(entry.host, -1))
            if newer:
                self._send(message.sender, newer, answer=True, out=out)

    def _send(self, to: Host, entries: tuple[Entry, ...], *, answer: bool, out: list[Transmit]) -> None:
        out.append(Transmit(to, CONTROL, 0.0, DirectoryGossip(self._host, entries, answer)))

    def _index(self) -> None:
        index: dict[int, list[Host]] = {}
        for entry in self.entries:
            if entry.public:
                for service in (SINK, *entry.services):
                    index.setdefault(service, []).append(entry.host)
        self._having = {service: tuple(hosts) for service, hosts in index.items()}

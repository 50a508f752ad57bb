"""Directory of services by host, on one host, spread by gossip.

- R1: A host has one entry. The entry of the higher version wins, and only the host itself raises the version.
- R2: Every ``gossip_s`` a host sends the known entries to a random known host. The receiver answers with entries that
  are newer there, if there are some.
- R3: If a host receives an entry of itself from before a restart, it announces the current entry with a higher version.
- R4: Nothing else depends on the directory. An outdated entry costs a map that is not found, or a useless message.

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
    """Directory of one host. ``own``: the host's entry. ``known``: entries of hosts from before the start."""

    def __init__(self, own: Entry, known: Iterable[Entry], gossip_s: float, seed: int) -> None:
        self._host, self._gossip_s = own.host, gossip_s
        self._entries = {entry.host: entry for entry in known} | {own.host: own}
        self._random = random.Random(f"{seed} {own.host} gossip")
        self._told_s = 0.0
        self._index()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Entries by the hosts' numbers."""
        return tuple(self._entries[host] for host in sorted(self._entries))

    @property
    def services(self) -> frozenset[int]:
        """Services of this host."""
        return self._entries[self._host].services

    def having(self, service: int) -> tuple[Host, ...]:
        """Return the hosts on the public network with a service, by number. ``SINK``: every such host."""
        return self._having.get(service, ())

    def serve(self, services: frozenset[int]) -> None:
        """Set the services of this host from now on."""
        own = self._entries[self._host]
        self._entries[self._host] = msgspec.structs.replace(own, services=services, version=own.version + 1)
        self._index()

    def tick(self, now: float, out: list[Transmit]) -> None:
        """Send gossip if it is due (R2)."""
        peers = [host for host in sorted(self._entries) if host != self._host]
        if now - self._told_s >= self._gossip_s and peers:
            self._told_s = now
            self._send(self._random.choice(peers), self.entries, answer=False, out=out)

    def on_gossip(self, message: DirectoryGossip, out: list[Transmit]) -> None:
        """Take newer entries (R1), and answer with entries that are newer here (R2)."""
        own, changed = self._entries[self._host], False
        for entry in message.entries:
            if entry.host == self._host:
                # R3: an entry of an earlier start of this host: take a higher version
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

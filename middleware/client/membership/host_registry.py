"""Registry of the hosts of a client: their endpoints, their protocol versions, and the reasons of absent hosts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from thalweg.middleware.client.membership.hello import agree, identify_hosts
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import HostAbsentError, RunError, UsageError, words
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import usually_beside
from thalweg.middleware.shell.security import Keys


class HostRegistry:
    """Hosts of the client ``name``. ``peers``: every host that was ever present.

    ``gone``: absent hosts, with the reasons.

    ``there``: the endpoints of the hosts that are asked for their names. ``news``: the condition that guards and
    announces changes of the registry, and further news of the client. ``closing``: why the client is closed, or an
    empty text.

    Raises HostAbsentError if no host answers.
    """

    def __init__(
        self, name: str, addresses: Mapping[str, str], there: Mapping[str, str], keys: Keys | None = None
    ) -> None:
        self.name, self._keys = name, keys
        self._speaks: dict[str, m.Speaks] = {name: frames.SPEAKS}
        self.addresses = dict(addresses)
        self.gone: dict[str, str] = {}
        self.peers = identify_hosts(there, keys, down=self.gone, speaks=self._speaks)
        agree(self._speaks)
        self.news = threading.Condition()
        self.closing = ""
        self.joining = set[str]()  # names of hosts that are being added now

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the present hosts. The client is the last."""
        return tuple(host for host in self.peers if host not in self.gone)

    @property
    def known(self) -> set[str]:
        """Names of present and absent hosts."""
        return self.peers.keys() | self.gone.keys()

    @property
    def ends(self) -> dict[str, dict[str, str]]:
        """Bulk endpoints of every host, by host and network."""
        return {host: peer.ends for host, peer in self.peers.items()}

    def check_open(self) -> None:
        """Raise RunError if the client is closed."""
        if self.closing:
            raise RunError(self.closing, host=self.name)

    def close_to(self, why: str) -> None:
        """Record why the client is closed, and wake waiting calls. The first reason stays."""
        with self.news:
            self.closing = self.closing or why
            self.news.notify_all()

    def check_there(self, placement: Mapping[str, str], *, lasting: bool = False) -> None:
        """Raise HostAbsentError if ``placement`` puts a node on an absent host.

        ``lasting``: the run has failover. A host that was present once then counts as lost during the run, which is no
        error.
        """
        for node, host in placement.items():
            if (how := self.gone.get(host)) and not (lasting and host in self.peers):
                raise HostAbsentError(f"host {host!r}, where {node!r} is to be, {how}", node=node, host=host)

    def await_sources(self, dataflow: Dataflow) -> None:
        """Add the hosts of sources that were never present as lost hosts, which a run with failover waits for.

        Until the host answers, its control endpoint is as the client was given, and its bulk endpoint is the default.
        """
        for source in dataflow.sources:
            host = dataflow.by_name[source].pinned
            if host in self.gone and host in self.addresses and host not in self.peers:
                address = self.addresses[host]
                absent = m.Peer(host, address, usually_beside(address))
                self.peers = {host: absent, **self.peers}  # the client is the last

    @property
    def version(self) -> int:
        """Newest version of the protocol that every present host knows. New runs use this version."""
        return agree({host: self._speaks[host] for host in (self.name, *self.hosts)})

    def add(self, name: str, endpoint: str | None, runs: Sequence[str]) -> m.Peer:
        """Add a host, with the errors of ``Client.add_host``. Return the host as a peer.

        ``runs``: the present runs, whose protocol version the host must know.
        """
        self.check_open()
        (name,) = words([name], "a host is named by a text")
        address = endpoint or self.addresses.get(name)
        if name == self.name:
            raise UsageError(f"{name!r} is this client itself")
        if address is None:
            raise UsageError(f"the endpoint of host {name!r} is unknown; give it, as tcp://192.0.2.7:7800")
        speaks = {host: self._speaks[host] for host in (self.name, *self.hosts) if host != name}
        peer = identify_hosts({name: address}, self._keys, speaks=speaks)[name]
        version = agree(speaks)
        if runs and version < self.version:
            raise UsageError(
                f"host {name!r} speaks {frames.spoken(speaks[name])} of the protocol, and run {runs[0]} version"
                f" {self.version}; upgrade {name!r}, or end the run first"
            )
        with self.news:
            self._speaks[name] = speaks[name]
            self.addresses[name] = address
            other_peers = {host: known for host, known in self.peers.items() if host not in (name, self.name)}
            self.peers = {**other_peers, name: peer, self.name: self.peers[self.name]}
            self.gone.pop(name, None)
        return peer

    def enlists(self, peer: m.Peer) -> bool:
        """Return whether an announced host is unknown or absent, and is to be added now."""
        name, known = peer.name, self.peers.get(peer.name)
        is_known = known is not None and known.instance == peer.instance and name not in self.gone
        if is_known or name == self.name or name in self.joining or self.closing:
            return False
        self.joining.add(name)
        return True

    def lose(self, host: str, how: str) -> None:
        """Record that a host is gone, and why."""
        with self.news:
            self.gone.setdefault(host, how)
            self.news.notify_all()

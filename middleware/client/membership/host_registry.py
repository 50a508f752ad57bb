"""Who takes part in what a client begins: its hosts, where they listen, and those that are not there, and why."""

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
    """The hosts of client ``name``: ``peers`` all that were there once, ``gone`` those that are not, and how they went.

    ``there``: where those listen that are asked who they are. ``news`` is of what changes here, and of all else that
    somebody waits for. ``closing``: why nothing can be begun any more.

    Raises HostAbsentError when none of them answers.
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
        self.joining = set[str]()  # names of hosts that are being added

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that are there; the client is the last."""
        return tuple(host for host in self.peers if host not in self.gone)

    @property
    def known(self) -> set[str]:
        """All that there are, or were."""
        return self.peers.keys() | self.gone.keys()

    @property
    def ends(self) -> dict[str, dict[str, str]]:
        """By host its bulk endpoints, by network."""
        return {host: peer.ends for host, peer in self.peers.items()}

    def check_open(self) -> None:
        """Raises RunError when the client is closed."""
        if self.closing:
            raise RunError(self.closing, host=self.name)

    def close_to(self, why: str) -> None:
        """Nothing can be begun any more."""
        with self.news:
            self.closing = self.closing or why
            self.news.notify_all()

    def check_there(self, placement: Mapping[str, str], *, lasting: bool = False) -> None:
        """Raises HostAbsentError for a node that is to be on a host that is not there.

        ``lasting``: the run outlives its hosts, and goes on with one that was there as with one that it loses.
        """
        for node, host in placement.items():
            if (how := self.gone.get(host)) and not (lasting and host in self.peers):
                raise HostAbsentError(f"host {host!r}, where {node!r} is to be, {how}", node=node, host=host)

    def await_sources(self, dataflow: Dataflow) -> None:
        """Take hosts of sources that have not been there yet for lost ones, which a run that outlives hosts waits for.

        Their endpoints are as they were told, and those for bulk as usual, until they say so themselves.
        """
        for source in dataflow.sources:
            host = dataflow.by_name[source].pinned
            if host in self.gone and host in self.addresses and host not in self.peers:
                address = self.addresses[host]
                absent = m.Peer(host, address, usually_beside(address))
                self.peers = {host: absent, **self.peers}  # the client is the last

    @property
    def version(self) -> int:
        """The newest version of the protocol that all hosts speak, as what is begun now does."""
        return agree({host: self._speaks[host] for host in (self.name, *self.hosts)})

    def add(self, name: str, endpoint: str | None, runs: Sequence[str]) -> m.Peer:
        """A host is to take part from now on, as ``Client.add_host`` says, and raises.

        ``runs``: those that go on.
        """
        self.check_open()
        (name,) = words([name], "a host is named by a text")
        address = endpoint or self.addresses.get(name)
        if name == self.name:
            raise UsageError(f"{name!r} is this client itself")
        if address is None:
            raise UsageError(f"where does host {name!r} listen? Say its endpoint, as tcp://192.0.2.7:7800")
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
        """Whether a host that says that it is there is not known to be, and is to be added now."""
        name, known = peer.name, self.peers.get(peer.name)
        is_known = known is not None and known.instance == peer.instance and name not in self.gone
        if is_known or name == self.name or name in self.joining or self.closing:
            return False
        self.joining.add(name)
        return True

    def lose(self, host: str, how: str) -> None:
        """A host is gone."""
        with self.news:
            self.gone.setdefault(host, how)
            self.news.notify_all()

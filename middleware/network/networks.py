"""The networks that a run may use: what each costs, and which links there are in it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

import msgspec

from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import Link, Pair


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network that joins hosts: what it costs, and its links.

    ``links``: what each directed link carries in bit/s, as was agreed; nothing else of the network is used then. None:
    it joins these ``hosts``, or all, and what it carries is measured.
    Raises UsageError for a dedicated network without links, a link of a host to itself, and a rate that is none.
    """

    tariff: Tariff = Tariff()
    links: dict[Pair, float] | None = None
    hosts: frozenset[str] | None = None

    def joins(self, source: str, target: str) -> bool:
        """Whether there is a link from the one host to the other."""
        if self.links is not None:
            return (source, target) in self.links
        return self.hosts is None or {source, target} <= self.hosts

    def __post_init__(self) -> None:
        if self.tariff.kind == "dedicated" and self.links is None:
            raise UsageError("a dedicated network has the links that were agreed on; give their rates")
        for (source, target), rate_bps in (self.links or {}).items():
            if source == target:
                raise UsageError(f"a network has no link from {source!r} to itself; leave it out")
            if not 0 < rate_bps < math.inf:
                raise UsageError(f"the link from {source!r} to {target!r} has a rate of {rate_bps}; give bits a second")


def check_networks(
    networks: Mapping[str, Network], joined: Mapping[str, Iterable[str]], absent: Container[str] = ()
) -> None:
    """UsageError for networks that these hosts do not have; ``joined``: by host, the networks that it is joined to.

    ``absent``: hosts that may join later, of which nobody knows yet.
    """
    known = sorted({via for vias in joined.values() for via in vias})
    for name, network in networks.items():
        if name not in known:
            raise UsageError(f"no host is joined to a network {name!r}; {nearest(name, known)}")
        for link in network.links or {}:
            for host in link:
                if host in absent and host not in joined:
                    continue
                if host not in joined:
                    raise UsageError(f"network {name!r}: there is no host {host!r}; {nearest(host, sorted(joined))}")
                if name not in joined[host]:
                    raise UsageError(
                        f"the link {link[0]} > {link[1]} of network {name!r}: host {host!r} is not joined to it; start"
                        f" it with --network {name}=ENDPOINT"
                    )


def where_joined(networks: Mapping[str, Network], joined: Mapping[str, Iterable[str]]) -> dict[str, Network]:
    """The same networks as far as these hosts are joined to them, of which by name is said to what they are."""
    restricted = {}
    for name, network in networks.items():
        members = frozenset(host for host, vias in joined.items() if name in vias)
        hosts = members if network.hosts is None else members & network.hosts
        links = network.links
        if links is not None:
            links = {link: rate_bps for link, rate_bps in links.items() if members.issuperset(link)}
        restricted[name] = msgspec.structs.replace(network, hosts=hosts, links=links)
    return restricted


def links_of(networks: Mapping[str, Network]) -> dict[Link, float]:
    """The links that were agreed on, in all of these networks, and their rates in bit/s."""
    return {
        Link(source, target, name): rate_bps
        for name, network in networks.items()
        for (source, target), rate_bps in (network.links or {}).items()
    }


def networks_of(
    tariffs: Mapping[str, Tariff], agreed_bps: Iterable[tuple[tuple[str, ...], float]]
) -> dict[str, Network]:
    """Networks that cost this, with the links that were agreed on, of whatever network, and their rates in bit/s."""
    rates: dict[str, dict[Pair, float]] = {}
    for link, rate_bps in agreed_bps:
        source, target, via = Link(*link).source, Link(*link).target, Link(*link).via
        rates.setdefault(via, {})[source, target] = rate_bps
    return {via: Network(tariff, rates.get(via)) for via, tariff in tariffs.items()}

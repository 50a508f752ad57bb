"""Networks that a run may use, with prices and links."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

import msgspec

from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import Link, Pair


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Network that joins hosts, with its prices and links.

    ``links``: the agreed rate of each directed link in bit/s. The network then has no further links. None: the network
    joins ``hosts``, or every host, and rates are measured.

    Raises UsageError for a dedicated network without links, for a link from a host to itself, and for a wrong rate.
    """

    tariff: Tariff = Tariff()
    links: dict[Pair, float] | None = None
    hosts: frozenset[str] | None = None

    def joins(self, source: str, target: str) -> bool:
        """Return whether the network has a link from ``source`` to ``target``."""
        if self.links is not None:
            return (source, target) in self.links
        return self.hosts is None or {source, target} <= self.hosts

    def __post_init__(self) -> None:
        if self.tariff.kind == "dedicated" and self.links is None:
            raise UsageError("a dedicated network has only agreed links; give their rates")
        for (source, target), rate_bps in (self.links or {}).items():
            if source == target:
                raise UsageError(f"a network has no link from {source!r} to itself; leave it out")
            if not 0 < rate_bps < math.inf:
                raise UsageError(f"the link from {source!r} to {target!r} has a rate of {rate_bps}; give bits a second")


def check_networks(
    networks: Mapping[str, Network], joined: Mapping[str, Iterable[str]], absent: Container[str] = ()
) -> None:
    """Raise UsageError for a network without joined hosts, or for an agreed link of a host that is not joined.

    ``joined``: the networks of each host. ``absent``: hosts that may join later, with unknown networks.
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
    """Return the networks restricted to the hosts joined to them. ``joined``: the networks of each host."""
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
    """Return the agreed links of the networks, with their rates in bit/s."""
    return {
        Link(source, target, name): rate_bps
        for name, network in networks.items()
        for (source, target), rate_bps in (network.links or {}).items()
    }


def networks_of(
    tariffs: Mapping[str, Tariff], agreed_bps: Iterable[tuple[tuple[str, ...], float]]
) -> dict[str, Network]:
    """Return networks with these tariffs and agreed links.

    ``agreed_bps``: links of every network, with rates in bit/s.
    """
    rates: dict[str, dict[Pair, float]] = {}
    for link, rate_bps in agreed_bps:
        source, target, via = Link(*link).source, Link(*link).target, Link(*link).via
        rates.setdefault(via, {})[source, target] = rate_bps
    return {via: Network(tariff, rates.get(via)) for via, tariff in tariffs.items()}

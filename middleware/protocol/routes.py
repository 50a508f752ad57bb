"""Routes between two hosts: over a network, or over relays (``core.routes``)."""

from __future__ import annotations

import itertools
from typing import Annotated

import msgspec

from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol.fields import MAX_NETWORKS, Index, Name, RunMessage

MAX_HOPS = 8  # links of a route over relays


class LinkEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """End of a link that is not in the shared network, or end of a hop over relays in any network."""

    host: Name
    via: Name


Hops = Annotated[tuple[LinkEnd, ...], msgspec.Meta(min_length=2, max_length=MAX_HOPS)]
Via = str | Hops  # a network, or the hops over relays; the last hop ends at the target


def links_over(source: str, target: str, via: Via) -> tuple[Link, ...]:
    """Return the links of a route from ``source`` to ``target``."""
    if isinstance(via, str):
        return (Link(source, target, via),)
    hosts = [source, *(hop.host for hop in via)]
    return tuple(Link(*pair, hop.via) for pair, hop in zip(itertools.pairwise(hosts), via, strict=True))


class RoutePreference(msgspec.Struct, frozen=True, array_like=True):
    """Networks and routes over relays from ``source`` to ``target``, in order of preference (``over``).

    Bulk goes over the first route that works. ``rates_bps``: rate of each route, as far as the client knows (0:
    unknown). Raises ValueError (on decoding, msgspec.ValidationError) for a route that ends elsewhere, or visits a host
    twice.
    """

    source: Name
    target: Name
    over: Annotated[tuple[Name | Hops, ...], msgspec.Meta(max_length=MAX_NETWORKS)]
    rates_bps: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_NETWORKS)] = ()

    def __post_init__(self) -> None:
        for hops in self.over:
            if not isinstance(hops, str):
                met = [self.source, *(hop.host for hop in hops)]
                if met[-1] != self.target or len({*met}) < len(met):
                    raise ValueError(f"a route from {self.source!r} to {self.target!r} cannot go over {met[1:]}")

    @property
    def links(self) -> list[tuple[Link, ...]]:
        """Links of each network or route, in the order of ``over``."""
        return [links_over(self.source, self.target, via) for via in self.over]


class Impassable(RunMessage, frozen=True):
    """Report to the client that bulk from this host to ``target`` does not arrive over the relays ``hops``.

    The report is about the route as a whole, whatever the single links carry.
    """

    target: Name
    hops: Hops

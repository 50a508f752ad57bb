"""Criteria of placements besides transfers: room on hosts, reliability, and an objective."""

from __future__ import annotations

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import Link


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Capacities, reliabilities and an objective, by the names of nodes and hosts.

    Symbols are those of Cardellini et al. (2016), Table 1.

    - ``demand``: C_i, by default 1 for an operator, 0 for a source or a sink.
    - ``candidates``: hosts that a node may be on, by default all hosts. Sources, sinks and pinned nodes stay.
    - ``capacity``: C_u, by default without limit. ``availability``: A_u, by default 1.
    - ``link_availability``: A_uv, by default 1. ``bandwidth``: B_uv in bytes per second, by default without limit.
    - ``state_bytes``: size of the state that goes with a moving operator, by default 0.
    - ``objective``: weights by metric: response, availability, and one of traffic, usage and energy. {}: the response.
    - ``counted``: for the availability, ``hosts`` counts each host in use once, and ``operators`` counts each operator.
    """

    demand: dict[str, float] = {}
    candidates: dict[str, tuple[str, ...]] = {}
    capacity: dict[str, float] = {}
    availability: dict[str, float] = {}
    link_availability: dict[Link, float] = {}
    bandwidth: dict[Link, float] = {}
    state_bytes: dict[str, float] = {}
    objective: dict[str, float] = {}
    counted: str = "operators"

    def check(self, dataflow: Dataflow, hosts: tuple[str, ...]) -> Quality:
        """Return self. Raise UsageError for an unknown node or host, no candidate, or a pin that is no candidate."""
        for field in ("demand", "candidates", "state_bytes"):
            for name in getattr(self, field):
                if name not in dataflow.by_name:
                    raise UsageError(f"{field} name unknown node {name!r}; {nearest(name, list(dataflow.by_name))}")
        for name, allowed in self.candidates.items():
            if not allowed:
                raise UsageError(f"node {name!r} has no candidate; name a host that it may be on")
            for host in allowed:
                if host not in hosts:
                    raise UsageError(
                        f"node {name!r} has the candidate {host!r}, which is no host; {nearest(host, hosts)}"
                    )
            pin = dataflow.by_name[name].pinned
            if pin is not None and pin not in allowed:
                raise UsageError(f"node {name!r} is pinned to {pin!r}, which is not among its candidates; add it")
        named = {"capacity": self.capacity, "availability": self.availability}
        ends = {"link_availability": self.link_availability, "bandwidth": self.bandwidth}
        for field, of in (
            *named.items(),
            *((field, [host for link in of for host in link]) for field, of in ends.items()),
        ):
            for host in of:
                if host not in hosts:
                    raise UsageError(f"{field} names unknown host {host!r}; {nearest(host, hosts)}")
        return self

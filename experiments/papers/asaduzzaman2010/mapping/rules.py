"""Which of two maps is the better one, and which maps a host passes on.

A cost is one number, so made that an earlier part decides before a later one:

- ``balanced``, the paper's: the mean load factor of the hosts in the map, in steps of 0.1, then more dedicated
  hops, then fewer public ones
- ``frugal``, ours: fewer public hops, then fewer dedicated ones, then less load
- ``links``: the sum of the costs of the dedicated links

Source: Asaduzzaman and Maheswaran, sections 4.1 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from thalweg.middleware.errors import UsageError, nearest

FIRST, SECOND = 1e6, 1e3  # a step of the first part of a cost, and of the second; no map has a thousand hops
STEP = 0.1  # of load factors that are alike: steps, for "within 10 %" is not transitive
Weigh = Callable[[int, int, float, float], float]  # public, dedicated hops, links' cost, load


def _balanced(public: int, dedicated: int, links: float, load: float) -> float:
    return FIRST * int(load / STEP + 1e-9) - SECOND * dedicated + public


def _frugal(public: int, dedicated: int, links: float, load: float) -> float:
    return FIRST * public + SECOND * dedicated + load


def _links(public: int, dedicated: int, links: float, load: float) -> float:
    return links


class Waits(msgspec.Struct, frozen=True):
    """How long a map waits for what its cost has grown by: seconds for a public hop, a dedicated one, a unit of a
    link's cost, and of load."""

    public_s: float = 0.0
    dedicated_s: float = 0.0
    link_s: float = 0.0
    load_s: float = 0.0


COSTS: Mapping[str, tuple[Weigh, Waits]] = {  # the waits are some of the delays that would else decide who comes first
    "frugal": (_frugal, Waits(public_s=0.4, dedicated_s=0.02, load_s=0.2)),
    "balanced": (_balanced, Waits(load_s=1.0)),
    "links": (_links, Waits(link_s=1.0)),
}


PRUNINGS = ("exact", "least-cost", "annealed", "random-neighbor")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How hosts map.

    - ``cost``: of ``COSTS``; ``ordered``: a map waits in proportion to it before it is passed on, so that the cheapest
      comes first
    - ``pruning``: ``exact`` passes on every map that fits; ``least-cost`` those cheaper than all before with as many
      components placed; ``annealed`` others too, with the chance ``extend`` · e^(−components placed);
      ``random-neighbor`` as least-cost, each to ``neighbours`` hosts drawn at random
    - ``limit``: of maps of one task that a host passes on; ``patience_s``: after which a host forgets a task, and a
      sink goes by the maps that it has
    - ``lease_s``: of what a running task holds, ``probe_s`` of what is held for a task that may come to run;
      ``attempts``: maps that a sink tries to reserve; ``gossip_s``: after which a host tells another who has which
      service
    """

    cost: Literal["frugal", "balanced", "links"] = "frugal"
    ordered: bool = True
    pruning: Literal["exact", "least-cost", "annealed", "random-neighbor"] = "least-cost"
    extend: float = 0.5
    neighbours: int = 1
    limit: int = 100_000
    patience_s: float = 60.0
    lease_s: float = 30.0
    probe_s: float = 10.0
    attempts: int = 8
    gossip_s: float = 10.0

    @property
    def waits(self) -> Waits:
        return COSTS[self.cost][1] if self.ordered else Waits()

    def check(self) -> Rules:
        """Return self; UsageError for what cannot be."""
        for name in ("patience_s", "lease_s", "probe_s", "neighbours", "limit", "attempts", "gossip_s"):
            if not (value := getattr(self, name)) > 0:
                raise UsageError(f"{name} of mapping is {value:g}; it must be above 0")
        if not 0 <= self.extend <= 1:
            raise UsageError(f"extend of mapping is {self.extend:g}; it is a chance, from 0 to 1")
        for name, known in (("cost", COSTS), ("pruning", PRUNINGS)):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} of mapping is {value!r}; {nearest(value, known)}")
        return self

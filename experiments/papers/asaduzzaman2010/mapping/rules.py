"""Rules of mapping: the comparison of maps, and the maps that a host passes on.

A cost is one number in which an earlier part decides before a later part.

- ``balanced``, the paper's: the mean load factor of the hosts in the map, in steps of 0.1, then more dedicated hops,
  then fewer public hops.
- ``frugal``, ours: fewer public hops, then fewer dedicated hops, then less load.
- ``links``: the sum of the costs of the dedicated links.

Source: Asaduzzaman and Maheswaran, sections 4.1 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from thalweg.middleware.errors import UsageError, nearest

FIRST, SECOND = 1e6, 1e3  # steps of the first and the second part of a cost; no map has a thousand hops
STEP = 0.1  # of load factors that count as equal: a step, as "within 10 %" is not transitive
Weigh = Callable[[int, int, float, float], float]  # public, dedicated hops, links' cost, load


def _balanced(public: int, dedicated: int, links: float, load: float) -> float:
    return FIRST * int(load / STEP + 1e-9) - SECOND * dedicated + public


def _frugal(public: int, dedicated: int, links: float, load: float) -> float:
    return FIRST * public + SECOND * dedicated + load


def _links(public: int, dedicated: int, links: float, load: float) -> float:
    return links


class Waits(msgspec.Struct, frozen=True):
    """Waits of a map for the growth of its cost: seconds for a public hop, a dedicated hop, a unit of a link's cost,
    and a unit of load.
    """

    public_s: float = 0.0
    dedicated_s: float = 0.0
    link_s: float = 0.0
    load_s: float = 0.0


COSTS: Mapping[str, tuple[Weigh, Waits]] = {  # the waits outweigh the delays that would else decide which map is first
    "frugal": (_frugal, Waits(public_s=0.4, dedicated_s=0.02, load_s=0.2)),
    "balanced": (_balanced, Waits(load_s=1.0)),
    "links": (_links, Waits(link_s=1.0)),
}


PRUNINGS = ("exact", "least-cost", "annealed", "random-neighbor")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of mapping, which all hosts share.

    - ``cost``: a name in ``COSTS``. ``ordered``: a map waits in proportion to its cost before it is passed on, so that
      the cheapest map arrives first.
    - ``pruning``: ``exact`` passes on every map that fits. ``least-cost`` passes on maps that are cheaper than all
      earlier maps with as many components placed. ``annealed`` also passes on a dearer map with the chance ``extend`` ·
      e^(−components placed). ``random-neighbor`` is least-cost, to ``neighbours`` random hosts each.
    - ``limit``: of maps of one task that a host passes on. ``patience_s``: the time after which a host forgets a task,
      and a sink uses the maps that it has.
    - ``lease_s``: of the holdings of a running task. ``probe_s``: of holdings for a task that may come to run.
      ``attempts``: maps that a sink tries to reserve. ``gossip_s``: the time between two gossip messages of a host.
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
        """Return self. Raise UsageError for a value out of range or an unknown name."""
        for name in ("patience_s", "lease_s", "probe_s", "neighbours", "limit", "attempts", "gossip_s"):
            if not (value := getattr(self, name)) > 0:
                raise UsageError(f"{name} of mapping is {value:g}; it must be above 0")
        if not 0 <= self.extend <= 1:
            raise UsageError(f"extend of mapping is {self.extend:g}; it is a chance, from 0 to 1")
        for name, known in (("cost", COSTS), ("pruning", PRUNINGS)):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} of mapping is {value!r}; {nearest(value, known)}")
        return self

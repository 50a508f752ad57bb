"""Options of a run that belong together, as ``Client.run`` accepts them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from thalweg.middleware.errors import expect
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.view import Link, LinkEstimate
from thalweg.middleware.planning import CostModel, CostParameters, Hints, Planner
from thalweg.middleware.planning.problem.routes import HOPS
from thalweg.middleware.planning.registry import AGAIN


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the plans of a run, of the first one and of later ones.

    - ``model``: the cost model, as a name, an import path or an object.
    - ``costs``: costs of resources. By default no start-up of messages and no read of a disk costs time.
    - ``hints``: sizes and times of the nodes. By default the nodes' own code is asked.
    - ``known``: rates of links at the start of the run, for planners that use measurements. Hosts then forget earlier
      measurements, also for other runs, as after an emulator has restarted its traces. By default the measurements of
      planning and of earlier runs count, with their ages.
    - ``planner``: the planner while data flows under GlobalMoves. By default it is one-shot from the current placement.
    """

    model: str | CostModel = "critical-path"
    costs: CostParameters | None = None
    hints: Hints | None = None
    known: Mapping[Link, LinkEstimate] | None = None
    planner: Planner = AGAIN


class Networks(msgspec.Struct, frozen=True):
    """Further networks of a run, and the choice between them.

    Between two hosts, partitions take the cheapest network that keeps the wanted rate, or else the fastest. Under
    GlobalMoves, the networks change when links change. If a link fails, partitions take a different network.

    - ``networks``: further networks with their prices, and the price of ``net``, which all hosts share.
    - ``wanted_hz``: wanted partitions a second. By default as many as sources give and links carry.
    - ``hops``: the largest number of rented links that a partition takes in a row, over relays. With 1, no host is a
      relay.
    """

    networks: dict[str, Network] = {}
    wanted_hz: float | None = None
    hops: int = HOPS


def networks_of(option: Networks | Mapping[str, Network] | None) -> Networks:
    """Return the option ``networks`` of a run, for which a mapping is enough."""
    if isinstance(option, Networks):
        return option
    expect({} if option is None else option, Mapping, "networks are a mapping of names to Network objects, or Networks")
    return Networks(dict(option or {}))

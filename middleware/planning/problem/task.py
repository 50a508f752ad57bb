"""Input of planners: every planner gets a task and a cost model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from thalweg.middleware.dataflow import Dataflow, Node, Placement
from thalweg.middleware.errors import DataflowError, PlacementError
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.view import Link, NetworkView
from thalweg.middleware.planning.problem.hints import CostParameters, Hints
from thalweg.middleware.planning.problem.quality import Quality
from thalweg.middleware.planning.problem.routes import HOPS


class Stripe(msgspec.Struct, frozen=True):
    """One of several trees over which a stream goes at once, with its placement and its share of the partitions."""

    dataflow: Dataflow
    placement: Placement
    share: float


class Task(msgspec.Struct, frozen=True, dict=True):
    """Question to a planner: on which of ``hosts`` do the nodes of ``dataflows`` run?

    - ``dataflows``: most often one. Several dataflows are planned together, and share nodes of the same name.
    - ``hosts``: hosts in the order that decides ties.
    - ``view``: rates of links in bit/s. A planner raises LinksNeeded if it needs a link that is not in the view.
    - ``hints``: bytes and seconds of one partition at every node.
    - ``costs``: costs of resources.
    - ``current``: the present placement. None: the run has not begun.
    - ``quality``: further properties of hosts and nodes, and the objective, for planners that use them.
    - ``networks``: further networks between hosts, and the costs of every network. If there are further networks, a
      plan gives the network of every link (``choice``).
    - ``routes``: routes that transfers take at present.
    - ``wanted_hz``: wanted partitions a second. None: as many as sources produce and links carry.
    - ``partitions``: length of the stream. None: unknown.
    - ``share``: part of the stream's partitions that goes over the planned tree.
    - ``beside``: trees for the rest of the partitions, which keep the same links and hosts busy.
    - ``hops``: most rented links in a route between two hosts. 1: no host is a relay.
    - ``shunned``: routes over relays that are not used because nothing came over them lately.
    """

    dataflows: tuple[Dataflow, ...]
    hosts: tuple[str, ...]
    view: NetworkView
    hints: Hints
    costs: CostParameters = CostParameters()
    current: Placement | None = None
    quality: Quality = Quality()
    networks: Mapping[str, Network] = {}
    routes: Mapping[Link, tuple[Link, ...]] = {}
    wanted_hz: float | None = None
    partitions: int | None = None
    share: float = 1.0
    beside: tuple[Stripe, ...] = ()
    hops: int = HOPS
    shunned: frozenset[tuple[Link, ...]] = frozenset()

    @cached_property
    def dataflow(self) -> Dataflow:
        """Single dataflow, or the union of several dataflows as one graph.

        Raises DataflowError if one name stands for different nodes.
        """
        if len(self.dataflows) == 1:
            return self.dataflows[0]
        nodes: dict[str, Node] = {}
        for node in (node for dataflow in self.dataflows for node in dataflow.nodes):
            if nodes.setdefault(node.name, node) != node:
                raise DataflowError(f"node {node.name!r} differs between two dataflows; nodes they share are the same")
        return Dataflow(tuple(nodes.values()))

    def root(self, sink: str) -> str:
        """Return the host of a sink: its pin or its present host. Raise PlacementError if neither is given."""
        host = self.dataflow.by_name[sink].pinned or (self.current or {}).get(sink)
        if host is None:
            raise PlacementError(f"sink {sink!r} has no host; pin it or place it")
        return host

    def compute_factor(self, host: str) -> float:
        """Return the time of a computation on a host, as a multiple of the time on a host of speed 1."""
        declared = self.hints.hosts.get(host)
        return self.costs.host_compute_factor.get(host, 1.0 if declared is None else 1 / declared.speed)

    def cores(self, host: str) -> int:
        """Return the number of computations that a host runs at once."""
        declared = self.hints.hosts.get(host)
        return self.costs.cores if declared is None else max(self.costs.cores, declared.cores)

    def but(self, **changes: object) -> Task:
        """Return a copy of the task with other values of some fields, as in ``task.but(current=None)``."""
        return msgspec.structs.replace(self, **changes)

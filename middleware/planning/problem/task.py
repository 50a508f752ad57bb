"""What planners are given: a planner takes a task and a cost model, whatever a task comes to hold."""

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
    """One of several trees that a stream goes over at once: where it runs, and its part of the partitions."""

    dataflow: Dataflow
    placement: Placement
    share: float


class Task(msgspec.Struct, frozen=True, dict=True):
    """Where on ``hosts`` do the nodes of ``dataflows`` go, by what ``view`` knows of the links between them?

    - ``dataflows``: most often one. Several are planned together; nodes of one name are one node, which they share
    - ``hosts``: in the order that decides ties
    - ``view``: rates of links in bit/s; a planner that needs one that is not in it raises LinksNeeded
    - ``hints``: bytes and seconds of one partition at every node
    - ``costs``: what resources cost
    - ``current``: where nodes are now; None before a run
    - ``networks``: further networks between hosts, and what these and the shared one cost; where there are some, a
      plan says over which each link goes (``choice``). ``routes``: over which links they go now
    - ``wanted_hz``: partitions a second that are wanted of it; None: as many as sources give, and links carry
    - ``hops``: rented links that a route between two hosts has at most; 1: no host passes on what others send
    - ``shunned``: routes over relays that are not taken, as nothing came over them lately, whatever their links carry
    - ``quality``: what else hosts and nodes are known by, and the objective, for who goes by it
    - ``share``: the part of the stream's partitions that goes over what is planned; ``beside``: over which other trees
      the rest goes, which keep the same links and hosts busy
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
    share: float = 1.0
    beside: tuple[Stripe, ...] = ()
    hops: int = HOPS
    shunned: frozenset[tuple[Link, ...]] = frozenset()

    @cached_property
    def dataflow(self) -> Dataflow:
        """The only dataflow, or several as one graph; DataflowError where one name stands for different nodes."""
        if len(self.dataflows) == 1:
            return self.dataflows[0]
        nodes: dict[str, Node] = {}
        for node in (node for dataflow in self.dataflows for node in dataflow.nodes):
            if nodes.setdefault(node.name, node) != node:
                raise DataflowError(f"node {node.name!r} differs between two dataflows; nodes they share are the same")
        return Dataflow(tuple(nodes.values()))

    def root(self, sink: str) -> str:
        """The host of a sink: its pin, or where it is now; PlacementError when neither is given."""
        host = self.dataflow.by_name[sink].pinned or (self.current or {}).get(sink)
        if host is None:
            raise PlacementError(f"nobody says where sink {sink!r} is; pin it or place it")
        return host

    def compute_factor(self, host: str) -> float:
        """How many times as long a computation takes there as on a host of speed 1."""
        declared = self.hints.hosts.get(host)
        return self.costs.host_compute_factor.get(host, 1.0 if declared is None else 1 / declared.speed)

    def cores(self, host: str) -> int:
        """How many computations that host runs at once."""
        declared = self.hints.hosts.get(host)
        return self.costs.cores if declared is None else max(self.costs.cores, declared.cores)

    def but(self, **changes: object) -> Task:
        """The same task with other fields, as ``task.but(current=None)``."""
        return msgspec.structs.replace(self, **changes)

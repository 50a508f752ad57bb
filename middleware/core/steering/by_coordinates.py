"""Placement decisions for one operator at its host, by network coordinates: the local placement optimiser.

Rules (Pietzuch et al. 2006, section 3.2):

R1. Every ``period_s`` a host checks each of its operators that may move. It computes the operator's rest position
    between its neighbours, which pull with the bytes that flow. The host compares this position with the rest position
    at the last search that left the operator in place. If the distance is more than ``displacement_s``, it searches for
    a better host.
R2. Candidates are the known hosts with enough room. The best candidate has the least network usage for the operator, by
    the distances of coordinates with heights, and by load. A move is requested if the saving exceeds the share
    ``saving`` of the present usage.
R3. One operator moves at a time. The client proposes the requested move at the barrier (``proposer``). If a change is
    under way, the request is dropped without an answer. The host repeats the request at its next check if the move
    still saves enough.
R4. Hosts check at different times. Coordinates count from ``SETTLED`` measurements on. Nothing is decided without
    coordinates of the local host and of the hosts of all neighbours.
R5. Subscribers have no coordinates. Their sinks count as if they were at the client.
"""

from __future__ import annotations

import math

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Need, Part, RunBeginning, RunParts
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.network.figures import NodeFigures, Taking, lacks
from thalweg.middleware.network.place import Place
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import SpaceMoves

SETTLED = 30
Pulls = list[tuple[str, float]]  # host of a neighbour, bytes of a partition between neighbour and operator


class CoordinateSteering(Part):
    """Local placement optimiser of one host, for the operators of one run on the host."""

    NEEDED_FOR = Need.COORDINATES

    @classmethod
    def of(cls, parts: RunParts) -> CoordinateSteering:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Flow), parts.get(Gossip))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, flow: Flow, gossip: Gossip) -> None:
        self._out, self._client, moves = context.out, context.install.client, context.install.moves
        self._options = moves if isinstance(moves, SpaceMoves) else None
        self._tree, self._directory, self._flow, self._gossip = tree, directory, flow, gossip
        self.rested: dict[str, tuple[float, ...]] = {}  # by operator: its rest position at the last search (R1)

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Set the time of the first check, if the run has moves by coordinates (R4)."""
        if self._options is not None:
            hosts = sorted(self._directory.hosts)
            share = (hosts.index(self._out.host) + 1) / len(hosts)
            # R4: hosts check at different times
            self._out.wake(Timer.LOOK, self._out.now + self._options.period_s * (1 + share))

    def on_timer(self) -> None:
        """Check every operator on the local host that may move (R1)."""
        if self._options is None:
            return
        figures = self._gossip.nodes()
        places = {host: place for host, place in self._gossip.places().items() if place.count >= SETTLED}
        here = {
            name: figures[name]
            for name, node in self._flow.nodes.items()
            if node.node.kind == "operator" and node.node.pinned is None and name in figures
        }
        self.rested = {name: rest for name, rest in self.rested.items() if name in here}
        for name, node_figures in here.items():
            self._check(self._options, name, node_figures, places)
        self._out.wake(Timer.LOOK, self._out.now + self._options.period_s)

    def _pulls(self, name: str, figures: NodeFigures) -> Pulls:
        """Return the hosts of an operator's neighbours, with the bytes of a partition between each and the operator."""
        where, consumers = self._directory.where(self._directory.locations), self._tree.consumers[name]
        pulls: Pulls = [(where[producer], size) for producer, size in figures.input_bytes.items() if producer in where]
        # R5: subscribers have no coordinates, so their sinks count as at the client
        guests = [consumer for consumer in consumers if where[consumer] in self._directory.subscribers]
        where |= dict.fromkeys(guests, self._client)
        return [*pulls, *((where[consumer], figures.output_bytes) for consumer in consumers)]

    def _check(self, options: SpaceMoves, name: str, figures: NodeFigures, places: dict[str, Place]) -> None:
        here, pulls, consumers = self._out.host, self._pulls(name, figures), self._tree.consumers[name]
        total = plain_sum(size for _, size in pulls)
        # R4: the coordinates of this host and of all neighbours are needed
        if not total or not places.keys() >= {here, *(host for host, _ in pulls)}:
            return
        axes = range(len(places[here].at))
        rest = tuple([plain_sum(size * places[host].at[axis] for host, size in pulls) / total for axis in axes])
        if name in self.rested and math.dist(rest, self.rested[name]) <= options.displacement_s:
            return
        taking = Taking.of(
            figures.rate_hz, figures.call_s, figures.input_bytes.values(), figures.output_bytes, len(consumers)
        )

        def usage(host: str) -> float:
            far_s = options.load_s * places[host].host.load
            return plain_sum(
                size * (far_s + (places[host].distance_s(places[other]) if other != host else 0.0))
                for other, size in pulls
            )

        fit = [host for host in places if host == here or not lacks(places[host].host, taking)]
        costs = {host: usage(host) for host in fit}
        best = min(costs, key=lambda host: (costs[host], host != here, host))
        moves = costs[best] < costs[here] * (1 - options.saving)
        if moves:  # R2: the move saves enough
            version = self._directory.locations[name].version
            self._out.send(self._client, m.MoveRequest(self._out.run, name, version, best))
        else:
            self.rested[name] = rest
        detail = {"best": best, "best_usage": costs[best], "decision": "wish" if moves else "stay", "known": len(fit)}
        self._out.record("look", node=name, value=costs[here], detail=detail)

    HANDLERS = Handlers(
        timers={Timer.LOOK: on_timer},
    )

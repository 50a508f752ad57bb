"""What decides for one operator by coordinates while data flows, at its host: the local placement optimiser.

Rules (Pietzuch et al. 2006, section 3.2):

R1. Every ``period_s`` a host looks at each operator that is there and may move. Where it would be at rest between its
    neighbours, each pulling by what flows, is compared with where it was when a host was looked for last: only a
    displacement of more than ``displacement_s`` has one looked for.
R2. Of all hosts that this one knows of, and that have room, that is chosen where the operator's usage is least, by the
    distances of their coordinates with heights, and by their load. It is wished for if it saves ``saving`` of what is
    used here.
R3. One moves at a time: the client proposes what is wished for at the barrier (``proposer``) unless something is under
    way. Nobody is told; who still wishes it at the next look says so again.
R4. Hosts look at different times. Coordinates count from ``SETTLED`` measurements on; without those of this host and of
    all neighbours' nothing is decided.
R5. What a guest takes counts as if it were taken at the client: guests have no coordinates.
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
Pulls = list[tuple[str, float]]  # hosts of an operator's neighbours, and the bytes of a partition between the two


class CoordinateSteering(Part):
    """A host's part, for the operators of one run that are here."""

    NEEDED_FOR = Need.COORDINATES

    @classmethod
    def of(cls, parts: RunParts) -> CoordinateSteering:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Flow), parts.get(Gossip))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, flow: Flow, gossip: Gossip) -> None:
        self._out, self._client, moves = context.out, context.install.client, context.install.moves
        self._options = moves if isinstance(moves, SpaceMoves) else None
        self._tree, self._directory, self._flow, self._gossip = tree, directory, flow, gossip
        self.rested: dict[str, tuple[float, ...]] = {}  # by operator: where it was to rest when a host was looked for

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """The run begins here."""
        if self._options is not None:
            hosts = sorted(self._directory.hosts)
            share = (hosts.index(self._out.host) + 1) / len(hosts)
            # R4: hosts check at different times
            self._out.wake(Timer.LOOK, self._out.now + self._options.period_s * (1 + share))

    def on_timer(self) -> None:
        """R1: look at all that is here."""
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
        """Return the hosts of the neighbours of an operator, with the bytes that they exchange with it."""
        where, consumers = self._directory.where(self._directory.locations), self._tree.consumers[name]
        pulls: Pulls = [(where[producer], size) for producer, size in figures.input_bytes.items() if producer in where]
        # R5: guests have no coordinates, so their sinks count as at the client
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

"""Streams over several trees, drawn by a seed: trees of any shape over the same sources, and operators above the trees.

Operators of the trees are free, so every tree makes the same of the sources' partitions. In half of the trials
operators with state run once above the trees, in some of these trials with a second sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from thalweg.emulation.virtual.config import Striped
from thalweg.emulation.virtual.world import World
from thalweg.experiments.drivers.random_moves import shuffled
from thalweg.experiments.faults.trial_code import FREE
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.protocol.split_graph import PlacedGraph, SplitGraph, parted, split_graph

TREES = (2, 2, 3, 4)
WINDOWS = (0, 0, 1, 3, 8)  # partitions that wait; 0: the runtime's default
ABOVE = 0.5  # share of trials with operators with state above the trees
SECOND_SINK = 0.4  # share of these trials with a sink that takes the trees' output and a source's partitions
REMEMBERS = Code("operator")


class OneStripe:
    """A tree of a world's stream, or the upper graph, for a driver that moves operators at random."""

    def __init__(self, world: World, number: int | None) -> None:
        self._world, self._number = world, number

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """Graph of the stripe, and the placement of its nodes."""
        return self._world.trees[self._number]

    def move(self, placement: Mapping[str, str]) -> None:
        """Move operators of the stripe to other hosts."""
        self._world.move(placement, self._number)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        """Replace the tree of the stripe by another tree."""
        self._world.reshape(dataflow, placement, self._number)


def topped(dice: Random, tree: Dataflow, client: str) -> Dataflow:
    """Return the tree, in some trials with operators with state and a second sink above it."""
    if dice.random() >= ABOVE:
        return tree
    (sink,) = tree.sinks
    root = tree.by_name[sink].inputs[0]
    nodes = [node for node in tree.nodes if node.kind != "sink"]
    nodes.append(Node("c0", "operator", (root,), REMEMBERS))
    top = "c0"
    if dice.random() < 0.5:
        top = "c1"
        nodes.append(Node(top, "operator", ("c0",), REMEMBERS))
    nodes.append(Node(sink, "sink", (top,), None, client))
    if dice.random() < SECOND_SINK:
        nodes.append(Node("u", "sink", (root, tree.sources[0]), None, client))
    return Dataflow(tuple(nodes))


def draw_stripes(dice: Random, flow: Dataflow, placement: Placement, hosts: Sequence[str], client: str) -> Striped:
    """Draw several trees that make the result of ``flow``, with placements of their own.

    If the sink takes one node, the shapes may differ as well.
    """
    parts = split_graph(flow, [node.name for node in flow.nodes if node.code == REMEMBERS], client)
    first, above = parted(PlacedGraph(flow, placement), parts, client)
    trees = [(first.dataflow, first.placement)]
    for _ in range(dice.choice(TREES) - 1):
        trees.append(_another(dice, parts, first.placement, hosts))
    shares = [dice.choice([1.0, 1.0, 2.0]) for _ in trees]
    total = plain_sum(shares)
    return Striped(
        tuple(trees),
        tuple([share / total for share in shares]),
        dice.choice(WINDOWS),
        (above.dataflow, above.placement),
    )


def _another(dice: Random, parts: SplitGraph, placement: Placement, hosts: Sequence[str]) -> tuple[Dataflow, Placement]:
    """Draw a tree with a new placement, and perhaps with a new shape."""
    below: Callable[[int], int] = dice.randrange
    (sink,) = parts.lower.sinks
    if len(parts.lower.by_name[sink].inputs) == 1 and dice.random() < 0.7:
        return shuffled(parts.lower, placement, (FREE,), hosts, below)
    where = {name: dice.choice(hosts) for name in parts.lower.operators}
    return parts.lower, {**placement, **where}

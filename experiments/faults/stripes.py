"""Streams over several trees that a seed draws: trees of any shape over the same sources, and operators above them.

The operators of the trees are free, so that every tree makes the same of the sources' partitions. In half of the
trials operators with state run above the trees, once, in some of these with a second sink.
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
WINDOWS = (0, 0, 1, 3, 8)  # 0: the runtime's own
ABOVE = 0.5  # of the trials: an operator with state runs above the trees
SECOND_SINK = 0.4  # of these: a sink takes what the trees give, and a source's partitions
REMEMBERS = Code("operator")


class OneStripe:
    """A tree of a world's stream, or what is above the trees, as what moves operators at random has it."""

    def __init__(self, world: World, number: int | None) -> None:
        self._world, self._number = world, number

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """Its graph, and where the nodes are."""
        return self._world.trees[self._number]

    def move(self, placement: Mapping[str, str]) -> None:
        """Have operators of it change hosts."""
        self._world.move(placement, self._number)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        """Have it go on as another tree."""
        self._world.reshape(dataflow, placement, self._number)


def topped(dice: Random, tree: Dataflow, client: str) -> Dataflow:
    """Return the tree with what some trials have above it: operators with state, and a second sink."""
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
    """Draw several trees that make what ``flow`` does: each elsewhere, and of another shape where one node is taken."""
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
    """Draw another tree."""
    below: Callable[[int], int] = dice.randrange
    (sink,) = parts.lower.sinks
    if len(parts.lower.by_name[sink].inputs) == 1 and dice.random() < 0.7:
        return shuffled(parts.lower, placement, (FREE,), hosts, below)
    where = {name: dice.choice(hosts) for name in parts.lower.operators}
    return parts.lower, {**placement, **where}

"""Queries that begin and leave while a trial's graph runs, as its seed draws them, and the application that asks.

Some nodes of a query are the run's, or another query's; beside these it has operators with state, filters and windows
of its own, and sometimes a source. Some have code that fails. When each comes and goes is told in partitions that the
application has got, so that it means much the same whatever else goes wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec

from thalweg.emulation.virtual.world import World
from thalweg.experiments.faults.graphs import STATES, draw_code, numbers
from thalweg.middleware.dataflow import Dataflow, Node, Placement

MOST = 5  # in one run
QUERIED = (0, 1, 2)  # of every five seeds: queries come to their graphs, and go
BREAKS = 0.05  # of the operators that a query brings


class Coming(msgspec.Struct, frozen=True):
    """A query that is attached once the application has got ``after`` partitions, of whatever sink.

    ``stays``: how many more it gets until it detaches the query; None: until its end. ``placement``: of all its nodes.
    """

    after: int
    dataflow: Dataflow
    placement: Placement
    stays: int | None


def draw_queries(
    seed: int, flow: Dataflow, hosts: Sequence[str], partitions: int, *, ends: bool
) -> tuple[tuple[Coming, ...], int | None]:
    """The queries of a seed's graph, none for some, and after how many partitions the one that began the run leaves.

    ``hosts``: the client is the last of them; ``partitions``: of a sink; ``ends``: streams do.
    """
    dice = Random(f"{seed} queries")
    if seed % 5 not in QUERIED:
        return (), None
    comings: list[Coming] = []
    for number in range(1, dice.randint(1, MOST) + 1):
        like = dice.choice([flow, *(coming.dataflow for coming in comings)])
        query = draw_query(dice, like, hosts, number, partitions if ends else None)
        where = {node.name: node.pinned or dice.choice(hosts) for node in query.nodes}
        stays = dice.randint(0, partitions) if dice.random() < 0.5 else None
        comings.append(Coming(dice.randint(0, partitions), query, where, stays))
    leaves = dice.randint(1, 2 * partitions) if dice.random() < 0.2 else None
    return tuple(sorted(comings, key=lambda coming: coming.after)), leaves


def draw_query(dice: Random, flow: Dataflow, hosts: Sequence[str], number: int, length: int | None) -> Dataflow:
    """Some nodes of ``flow`` and what they are made of, and on them none to four operators, perhaps a source too.

    ``length``: of the source's stream, where it ends.
    """
    names = [node.name for node in flow.nodes if node.kind != "sink"]
    kept = set(dice.sample(names, min(len(names), dice.randint(1, 3))))
    for name in reversed(flow.upward):
        if name in kept:
            kept.update(flow.by_name[name].inputs)
    nodes = [msgspec.structs.replace(flow.by_name[name], ahead=1) for name in flow.upward if name in kept]
    if dice.random() < 0.3:
        nodes.append(Node(f"z{number}", "source", (), numbers(f"z{number}", length), dice.choice(hosts)))
    for count in range(dice.randint(0, 4)):
        inputs = dice.sample([node.name for node in nodes], min(len(nodes), dice.randint(1, 3)))
        name = f"op{number}{count}"
        code = draw_code(dice, name, dice.choice(STATES), gaps=True)
        if dice.random() < BREAKS:
            code = msgspec.structs.replace(code, params={**code.params, "breaks_after": dice.randint(0, 20)})
        nodes.append(Node(name, "operator", tuple(inputs), code))
    taken = {name for node in nodes for name in node.inputs}
    loose = tuple(node.name for node in nodes if node.name not in taken)
    again = dice.choice(nodes).name
    nodes.append(Node("t0", "sink", loose, None, hosts[-1]))
    if dice.random() < 0.4:
        nodes.append(Node("t1", "sink", (again,), None, hosts[-1]))
    return Dataflow(tuple(nodes)).validate(hosts, connected=False)


class Guests:
    """Has the queries of a trial come and go in ``world``; ``leaves`` is when the one that began the run does.

    ``asked``, ``left``: those that were attached and detached.
    """

    def __init__(self, comings: Sequence[Coming], leaves: int | None, world: World) -> None:
        self._comings, self._world = dict(enumerate(comings, start=1)), world
        self._until = {0: leaves} | {
            number: None if coming.stays is None else coming.after + coming.stays
            for number, coming in self._comings.items()
        }
        self._count = 0
        self.asked: set[int] = set()
        self.left: set[int] = set()

    def begin(self) -> None:
        """The run was asked for."""
        self._count = -1
        self.on_delivered()

    def on_delivered(self) -> None:
        """The application has got a partition."""
        world = self._world
        self._count += 1
        for number, coming in self._comings.items():
            if number not in self.asked and coming.after <= self._count and world.open and world.failed is None:
                self.asked.add(number)
                world.attach(number, coming.dataflow, coming.placement)
        for number, until in self._until.items():
            others = world.open - {number}
            if until is not None and until <= self._count and number in world.open and (number or others):
                self.left.add(number)
                world.detach(number)

    def counts(self) -> dict[str, int]:
        """What has become of the queries beside the first: how many were asked for, began, were detached, failed."""
        world = self._world
        failed, begun = world.queries_failed.keys() - {0}, world.attached.keys()
        found = Counter(asked=len(self.asked), attached=len(begun), detached=len(self.left))
        found.update(failed=len(failed & begun), refused=len(failed - begun))
        return {kind: count for kind, count in found.items() if count}

"""Queries that begin and leave while a trial's graph runs, as its seed draws them, and the applications that ask.

Some nodes of a query are the run's, or another query's; beside these it has operators with state, filters and windows
of its own, and sometimes a source. Some have code that fails. Others are those of other clients, ``GUESTS``, which
subscribe to a node that is there, and of which one may die. When each comes and goes is told in partitions that the
applications have got, so that it means much the same whatever else goes wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec

from thalweg.emulation.virtual.faults import Crash
from thalweg.emulation.virtual.world import World
from thalweg.experiments.faults.graphs import STATES, draw_code, numbers
from thalweg.middleware.dataflow import Dataflow, Node, Placement

MOST = 5  # in one run
QUERIED = (0, 1, 2)  # of every five seeds: queries come to their graphs, and go
BREAKS = 0.05  # of the operators that a query brings
GUESTS = ("g1", "g2")
SUBSCRIBED = (1, 2, 3)  # of every five seeds: other clients subscribe
DIES = 0.4  # of these seeds: one does, and may be back


class Coming(msgspec.Struct, frozen=True):
    """A query that is attached once the application has got ``after`` partitions, of whatever sink.

    ``stays``: how many more it gets until it detaches the query; None: until its end. ``placement``: of all its nodes.
    """

    after: int
    dataflow: Dataflow
    placement: Placement
    stays: int | None


class Subscribing(msgspec.Struct, frozen=True):
    """That ``guest`` subscribes to a node, with ``after`` and ``stays`` as of a query.

    ``share``: which node, of all that the run has then.
    """

    after: int
    guest: str
    share: float
    stays: int | None


def draw_subscriptions(seed: int, partitions: int) -> tuple[Subscribing, ...]:
    """What other clients take of a seed's graph, for some nothing."""
    dice = Random(f"{seed} subscriptions")
    if seed % 5 not in SUBSCRIBED:
        return ()
    drawn = []
    for _ in range(dice.randint(1, MOST)):
        stays = dice.randint(0, partitions) if dice.random() < 0.4 else None
        drawn.append(Subscribing(dice.randint(0, partitions), dice.choice(GUESTS), dice.random(), stays))
    return tuple(sorted(drawn, key=lambda each: each.after))


def draw_death(seed: int, duration_s: float) -> tuple[Crash, ...]:
    """A client that subscribes and dies, in some seeds."""
    dice = Random(f"{seed} death")
    if seed % 5 not in SUBSCRIBED or dice.random() > DIES:
        return ()
    return (Crash(GUESTS[1], round(dice.uniform(0.0, duration_s), 2), dice.choice([None, 0.5, 5.0, 50.0])),)


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


class Callers:
    """Has the queries of a trial come and go in ``world``; ``leaves`` is when the one that began the run does.

    ``asked``, ``left``: those that were attached and detached. ``subscribed``, ``parted``: the same of subscriptions,
    by guest and number.
    """

    def __init__(
        self, comings: Sequence[Coming], leaves: int | None, subscriptions: Sequence[Subscribing], world: World
    ) -> None:
        self._comings, self._world = dict(enumerate(comings, start=1)), world
        self._subscriptions = dict(enumerate(subscriptions, start=1))
        self.subscribed: set[tuple[str, int]] = set()
        self.parted: set[tuple[str, int]] = set()
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
        if self._subscriptions:
            self._world.allow(GUESTS)
        self.on_delivered()

    def on_delivered(self) -> None:
        """The application has got a partition."""
        self._count += 1
        self._attach_and_detach()
        self._subscribe_and_leave()

    def _attach_and_detach(self) -> None:
        """Do with the application's own queries what is due."""
        world = self._world
        for number, coming in self._comings.items():
            if number not in self.asked and coming.after <= self._count and world.open and world.failed is None:
                self.asked.add(number)
                world.attach(number, coming.dataflow, coming.placement)
        for number, until in self._until.items():
            others = world.open - {number}
            if until is not None and until <= self._count and number in world.open and (number or others):
                self.left.add(number)
                world.detach(number)

    def _subscribe_and_leave(self) -> None:
        """Do with the subscriptions of guests what is due."""
        world = self._world
        for number, each in self._subscriptions.items():
            key = each.guest, number
            if key not in self.subscribed and each.after <= self._count and world.open and world.failed is None:
                self.subscribed.add(key)
                names = sorted(world.tree[0].by_name)
                world.subscribe(*key, names[int(each.share * len(names))])
            until = None if each.stays is None else each.after + each.stays
            if until is not None and until <= self._count and key in self.subscribed - self.parted:
                self.parted.add(key)
                world.unsubscribe(*key)

    @property
    def lasting(self) -> set[str]:
        """The sinks of guests that are to get all there is."""
        world = self._world
        begun = world.subscribed.keys() - self.parted - world.dismissed.keys()
        begun = {(guest, number) for guest, number in begun if guest != GUESTS[1]}  # which may die
        return {name for key in begun for name in world.subscribed[key].names.values()}

    def counts(self) -> dict[str, int]:
        """What has become of the queries beside the first: how many were asked for, began, were detached, failed.

        And of subscriptions: how many began, and were ended by somebody else.
        """
        world = self._world
        failed, begun = world.queries_failed.keys() - {0}, world.attached.keys()
        found = Counter(asked=len(self.asked), attached=len(begun), detached=len(self.left))
        found.update(failed=len(failed & begun), refused=len(failed - begun))
        found.update(subscribed=len(world.subscribed), dismissed=len(world.dismissed))
        return {kind: count for kind, count in found.items() if count}

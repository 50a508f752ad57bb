"""Queries that join and leave while a trial's graph runs, as the seed draws them, and the applications that ask.

A query shares some nodes with the run or with another query. Its own nodes are operators with state, filters and
windows, and sometimes a source. The code of some operators fails. Other clients, ``GUESTS``, subscribe to a node of the
run, and a guest may die. Joining and leaving are timed by the number of partitions that the application has received,
so a query means much the same under all faults.
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

MOST = 5  # queries or subscriptions in one run
QUERIED = (0, 1, 2)  # of every five seeds: queries join the graph and leave it
BREAKS = 0.05  # share of a query's own operators whose code fails
GUESTS = ("g1", "g2")
SUBSCRIBED = (1, 2, 3)  # of every five seeds: other clients subscribe
DIES = 0.4  # share of these seeds in which a guest dies, and may return


class Coming(msgspec.Struct, frozen=True):
    """Query that is attached once the application has received ``after`` partitions, of any sinks.

    ``stays``: number of further partitions until the query is detached. None: until its end. ``placement``: of all
    nodes.
    """

    after: int
    dataflow: Dataflow
    placement: Placement
    stays: int | None


class Subscribing(msgspec.Struct, frozen=True):
    """Subscription of ``guest`` to a node, with ``after`` and ``stays`` as of a query.

    ``share``: position of the node in the list of the run's nodes at that time, from 0 to 1.
    """

    after: int
    guest: str
    share: float
    stays: int | None


def draw_subscriptions(seed: int, partitions: int) -> tuple[Subscribing, ...]:
    """Draw the subscriptions of other clients to a seed's graph. Some seeds have none."""
    dice = Random(f"{seed} subscriptions")
    if seed % 5 not in SUBSCRIBED:
        return ()
    drawn = []
    for _ in range(dice.randint(1, MOST)):
        stays = dice.randint(0, partitions) if dice.random() < 0.4 else None
        drawn.append(Subscribing(dice.randint(0, partitions), dice.choice(GUESTS), dice.random(), stays))
    return tuple(sorted(drawn, key=lambda each: each.after))


def draw_death(seed: int, duration_s: float) -> tuple[Crash, ...]:
    """Draw the crash of a subscribed client. Some seeds have none."""
    dice = Random(f"{seed} death")
    if seed % 5 not in SUBSCRIBED or dice.random() > DIES:
        return ()
    return (Crash(GUESTS[1], round(dice.uniform(0.0, duration_s), 2), dice.choice([None, 0.5, 5.0, 50.0])),)


def draw_queries(
    seed: int, flow: Dataflow, hosts: Sequence[str], partitions: int, *, ends: bool
) -> tuple[tuple[Coming, ...], int | None]:
    """Draw the queries of a seed's graph, if it has some, and after how many partitions the first query leaves.

    ``hosts``: the client is the last. ``partitions``: of a sink. ``ends``: whether streams end.
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
    """Draw a query: some nodes of ``flow`` with all nodes below, up to four new operators, and sometimes a source.

    ``length``: of the source's stream, if the stream ends.
    """
    names = [node.name for node in flow.nodes if node.kind != "sink"]
    shared = set(dice.sample(names, min(len(names), dice.randint(1, 3))))
    for name in reversed(flow.upward):
        if name in shared:
            shared.update(flow.by_name[name].inputs)
    nodes = [msgspec.structs.replace(flow.by_name[name], ahead=1) for name in flow.upward if name in shared]
    if dice.random() < 0.3:
        nodes.append(Node(f"z{number}", "source", (), numbers(f"z{number}", length), dice.choice(hosts)))
    for count in range(dice.randint(0, 4)):
        inputs = dice.sample([node.name for node in nodes], min(len(nodes), dice.randint(1, 3)))
        name = f"op{number}{count}"
        code = draw_code(dice, name, dice.choice(STATES), gaps=True)
        if dice.random() < BREAKS:
            code = msgspec.structs.replace(code, params={**code.params, "breaks_after": dice.randint(0, 20)})
        nodes.append(Node(name, "operator", tuple(inputs), code))
    used = {name for node in nodes for name in node.inputs}
    loose = tuple(node.name for node in nodes if node.name not in used)
    again = dice.choice(nodes).name
    nodes.append(Node("t0", "sink", loose, None, hosts[-1]))
    if dice.random() < 0.4:
        nodes.append(Node("t1", "sink", (again,), None, hosts[-1]))
    return Dataflow(tuple(nodes)).validate(hosts, connected=False)


class Callers:
    """Applications that attach and detach the queries of a trial in ``world``. ``leaves``: when the first query leaves.

    ``asked``, ``left``: queries that were attached and detached. ``subscribed``, ``parted``: the same of subscriptions,
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
        """Allow the guests of a requested run, and make the first requests."""
        self._count = -1
        if self._subscriptions:
            self._world.allow(GUESTS)
        self.on_delivered()

    def on_delivered(self) -> None:
        """Count a delivered partition, and make the requests that are due."""
        self._count += 1
        self._attach_and_detach()
        self._subscribe_and_leave()

    def _attach_and_detach(self) -> None:
        """Attach and detach the application's own queries that are due."""
        world = self._world
        for number, coming in self._comings.items():
            if number not in self.asked and coming.after <= self._count and world.open and world.failed is None:
                self.asked.add(number)
                world.attach(number, coming.dataflow, coming.placement)
        for number, until in self._until.items():
            remaining = world.open - {number}
            if until is not None and until <= self._count and number in world.open and (number or remaining):
                self.left.add(number)
                world.detach(number)

    def _subscribe_and_leave(self) -> None:
        """Begin and end the subscriptions of guests that are due."""
        world = self._world
        for number, subscription in self._subscriptions.items():
            key = subscription.guest, number
            if key not in self.subscribed and subscription.after <= self._count and world.open and world.failed is None:
                self.subscribed.add(key)
                names = sorted(world.tree[0].by_name)
                world.subscribe(*key, names[int(subscription.share * len(names))])
            until = None if subscription.stays is None else subscription.after + subscription.stays
            if until is not None and until <= self._count and key in self.subscribed - self.parted:
                self.parted.add(key)
                world.unsubscribe(*key)

    @property
    def lasting(self) -> set[str]:
        """Sinks of guests that should receive everything."""
        world = self._world
        begun = world.subscribed.keys() - self.parted - world.dismissed.keys()
        begun = {(guest, number) for guest, number in begun if guest != GUESTS[1]}  # this guest may die
        return {name for key in begun for name in world.subscribed[key].names.values()}

    def counts(self) -> dict[str, int]:
        """Return how many queries beside the first were asked for, began, were detached, failed, or were refused.

        The counts also have how many subscriptions began, and how many somebody else ended.
        """
        world = self._world
        failed, begun = world.queries_failed.keys() - {0}, world.attached.keys()
        counter = Counter(asked=len(self.asked), attached=len(begun), detached=len(self.left))
        counter.update(failed=len(failed & begun), refused=len(failed - begun))
        counter.update(subscribed=len(world.subscribed), dismissed=len(world.dismissed))
        return {kind: count for kind, count in counter.items() if count}

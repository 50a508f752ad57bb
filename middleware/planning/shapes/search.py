"""Local search over trees of hosts, for the tree whose busiest resource is as little busy as possible.

The cost of a tree is the *a*-norm of the loads, (Σ l_i^a)^(1/a). *l_i* is the number of seconds that a partition keeps
resource *i* busy. ``ExpectedPeriod`` minimises the same norm. Here the resources are those of every kind of interface
that ``Period`` knows. With growing *a* the norm approaches the period itself. With a finite *a*, a search sees progress
where the maximum stays on a plateau, and a plan does not rest on one lucky measurement.

A change hangs one host below a different parent, and changes the loads of three hosts. So all changes are evaluated
together, as arrays (hosts, hosts). The best change is made until none helps (steepest descent). Then a few hosts are
hung at random places, and the descent is repeated from there. A better result is kept (iterated local search). The
search ends after a number of evaluated trees. Random numbers come from a seed.

A tree may carry only a share of the partitions, beside other trees (``shapes.mixture``). Its own work then counts by
that share, and the loads of the other trees (``Busy``) lie below.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.arrays import exp, power
from thalweg.middleware.planning.problem.loads import CARRIERS, Carrier, Floats, Interface

UNKNOWN_S = 1e6  # time of a transfer over an unusable link: finite, so that a tree over two such links is worse
ENOUGH = 1e-9  # relative; less is rounding
NORMAL = (  # seven values that stand for a normal distribution (Gauss-Hermite), and their weights
    (-3.7504397177257425, -2.3667594107345415, -1.1544053947399682, 0.0,
     1.1544053947399682, 2.3667594107345415, 3.7504397177257425),
    (0.000548268855972217, 0.03075712396758652, 0.2401231786050127, 0.45714285714285724,
     0.2401231786050127, 0.03075712396758652, 0.000548268855972217),
)  # fmt: skip


class Busy(NamedTuple):
    """Loads of resources, in seconds a partition of the stream.

    ``carried``: (hosts,) for every kind of interface, or (hosts, hosts) for links. ``work``: (hosts,) for processors
    and disks.
    """

    carried: tuple[Floats, ...]
    work: Floats

    def plus(self, other: Busy) -> Busy:
        """Return the sum of both loads."""
        return Busy(tuple(a + b for a, b in zip(self.carried, other.carried, strict=True)), self.work + other.work)

    def less(self, other: Busy) -> Busy:
        """Return the loads without ``other``, and at least 0."""
        carried = (np.maximum(a - b, 0.0) for a, b in zip(self.carried, other.carried, strict=True))
        return Busy(tuple(carried), np.maximum(self.work - other.work, 0.0))


def idle(count: int, interface: Interface) -> Busy:
    """Return loads of 0 for this number of hosts."""
    of_kind = (count, count) if interface == "independent" else (count,)
    return Busy(tuple(np.zeros(of_kind) for _ in CARRIERS[interface]), np.zeros(count))


@dataclass(frozen=True, eq=False)
class TreeLoads:
    """Loads of every host and link, for all trees over hosts 0 (the root), 1, 2, …

    - ``transfer_s``: function from a size in bytes to the seconds of a transfer. The seconds are (hosts, hosts),
      finite, and 0 on one host.
    - ``sizes``: for every host, the bytes of its own sources.
    - ``made``, ``compute_s``: bytes of the combination of inputs with these sizes, and the seconds on that host.
    - ``disk_s``: (hosts,) seconds of reading a host's own sources.
    - ``interface``: as in ``Period``. ``shape``: shape of the norm, above 1.
    - ``joint``: a host's computing and reading delays its transfers (single interfaces only). False: they overlap.
    - ``share``: part of the stream's partitions that the tree carries.
    - ``beside``: loads of other trees. None: there are none.
    """

    transfer_s: Callable[[float], Floats]
    sizes: Sequence[Sequence[float]]
    made: Callable[[Sequence[float]], float]
    compute_s: Callable[[int, Sequence[float]], float]
    disk_s: Floats
    interface: Interface
    shape: float
    joint: bool
    share: float = 1.0
    beside: Busy | None = None
    _rows: dict[float, Floats] = field(default_factory=dict)  # transfers by size, the same for every share

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def together(self) -> bool:
        """Return whether transfers and the host's own work are one load."""
        return self.joint and self.interface == "single"

    def transfer(self, size: float) -> Floats:
        """Return the seconds of a result of ``size`` bytes between every two hosts, (hosts, hosts).

        The seconds are multiplied by the tree's share.
        """
        seconds = self._rows.get(size)
        if seconds is None:
            seconds = self._rows[size] = self.transfer_s(size)
        return seconds if self.share == 1 else self.share * seconds

    @cached_property
    def below(self) -> Busy:
        """Loads of other trees."""
        return idle(self.count, self.interface) if self.beside is None else self.beside

    @cached_property
    def idly(self) -> float:
        """Cost of the loads of other trees on links, which most trees leave unchanged."""
        links = self.interface == "independent" and self.beside is not None
        return float(power(self.below.carried[0], self.shape).sum()) if links else 0.0


class LoadedTree:
    """Tree with its loads, and with the effects of every single change on its cost."""

    def __init__(self, loads: TreeLoads, parent: Sequence[int]) -> None:
        self.loads, self.parent = loads, list(parent)
        self._together = loads.together
        count = loads.count
        self._children: list[list[int]] = [[] for _ in range(count)]
        for host in range(1, count):
            self._children[parent[host]].append(host)
        self.below = np.eye(count, dtype=bool)  # [v, u]: u is v or below v
        self.sends = np.zeros((count, count))  # [v, p]: seconds of v's result to p
        self.compute = np.zeros(count)
        self.more = np.zeros(count)  # computing with one input more
        self.fewer = np.zeros(count)  # computing with one input fewer
        self._out = [-1.0] * count  # bytes of every host's result
        order = [0]
        for host in order:
            order.extend(self._children[host])
        for host in reversed(order):
            self._combine(host)
            for child in self._children[host]:
                self.below[host] |= self.below[child]
        self._add_up()

    def _combine(self, host: int) -> bool:
        """Compute the result of ``host`` from its present inputs. Return whether the result's size has changed."""
        loads, inputs = self.loads, [*self.loads.sizes[host], *(self._out[child] for child in self._children[host])]
        size = loads.made(inputs) if inputs else 0.0
        self.compute[host] = loads.share * loads.compute_s(host, inputs)
        self.more[host] = loads.share * loads.compute_s(host, [*inputs, max(inputs, default=0.0)])
        self.fewer[host] = loads.share * loads.compute_s(host, inputs[:-1])
        changed = size != self._out[host]
        if changed:
            self._out[host] = size
            self.sends[host] = loads.transfer(size)[host]
        return changed

    def _add_up(self) -> None:
        to = np.array(self.parent)
        self.up: Floats = self.sends[np.arange(self.loads.count), to]
        self.up[0] = 0.0
        self.into: Floats = np.bincount(to[1:], self.up[1:], self.loads.count).astype(np.float64)
        below, links = self.loads.below, self.loads.interface == "independent"
        self._before = below.carried[0][np.arange(self.loads.count), to] if links else np.zeros(0)
        # (hosts,) the transfers on every kind of interface, or on the link from each host to its parent
        self._carried: list[tuple[Carrier, Floats]] = [
            (carrier, (self._before if links else base) + self._own(carrier))
            for carrier, base in zip(CARRIERS[self.loads.interface], below.carried, strict=True)
        ]
        work = self._work(self.compute)
        loads = [load + work if self._together else load for _, load in self._carried]
        if not self._together:
            loads.append(work)
        a = self.loads.shape
        self.cost = float(plain_sum(power(load, a).sum() for load in loads))
        if links and self.loads.beside is not None:
            self.cost += self.loads.idly - float(power(self._before, a).sum())

    def _own(self, carrier: Carrier) -> Floats:
        if carrier.sender and carrier.receiver:
            return self.up + self.into
        return self.up if carrier.sender else self.into

    def _work(self, compute: Floats) -> Floats:
        return compute + self.loads.share * self.loads.disk_s + self.loads.below.work

    @property
    def busy(self) -> Busy:
        """Loads of this tree alone, by its share."""
        loads = self.loads
        work = self.compute + loads.share * loads.disk_s
        if loads.interface != "independent":
            return Busy(tuple(self._own(carrier) for carrier in CARRIERS[loads.interface]), work)
        links = np.zeros((loads.count, loads.count))
        links[np.arange(loads.count), self.parent] = self.up
        return Busy((links,), work)

    def changes(self) -> Floats:
        """Return the increase of the cost if host v is hung below host p, (hosts, hosts).

        The increase is inf if v cannot be hung there, or is there already.
        """
        a, count, together = self.loads.shape, self.loads.count, self._together
        parent = np.array(self.parent)
        parent[0] = 0
        sends = self.sends
        work, more, fewer = self._work(self.compute), self._work(self.more), self._work(self.fewer)
        change: Floats = np.zeros((count, count))
        for carrier, carried in self._carried:
            if carrier.kind == "link":
                links = self.loads.below.carried[0]
                change += power(links + sends, a) - power(links, a)
                change -= (power(carried, a) - power(self._before, a))[:, None]
                continue
            load = carried + work if together else carried
            powers = power(load, a)
            if carrier.receiver:  # the old parent of v
                left = carried[parent] - self.up + fewer[parent] if together else carried[parent] - self.up
                change += (power(np.maximum(left, 0.0), a) - powers[parent])[:, None]
            if carrier.sender:
                own = (load - self.up)[:, None] + sends
                change += power(own, a) - powers[:, None]
            if carrier.receiver:  # the new parent of v
                joined = carried[None, :] + sends
                if together:
                    joined += more[None, :]
                change += power(joined, a) - powers[None, :]
        if not together:
            change += (power(fewer[parent], a) - power(work[parent], a))[:, None]
            change += (power(more, a) - power(work, a))[None, :]
        change[self.below] = np.inf
        change[np.arange(count), parent] = np.inf
        change[0] = np.inf
        return change

    def value_of_knowing(self, doubt: Floats, startup_s: float) -> Floats:
        """Return the value of measuring the links between two hosts, as the average share of the cost that is saved.

        The result is (hosts, hosts). ``doubt``: standard deviation of the change that a measurement makes to the
        logarithm of the rate between two hosts. The saving is that of the best tree with one host hung elsewhere, if
        the link proves fast enough.
        """
        sends, startup_s = self.sends, self.loads.share * startup_s
        saved = np.zeros_like(sends)
        for deviation, weight in zip(*NORMAL, strict=True):
            self.sends = np.where(sends > 0, startup_s + (sends - startup_s) * exp(-doubt * deviation), 0.0)
            change = self.changes()
            saved += weight * np.maximum(-change, 0.0)
        self.sends = sends
        worth: Floats = (saved + saved.T) / (self.loads.shape * self.cost)
        return worth

    def hang(self, host: int, parent: int) -> None:
        """Hang ``host`` below ``parent``, which is not below ``host``, and update the loads."""
        before, moved = self.parent[host], self.below[host]
        self._children[before].remove(host)
        insort(self._children[parent], host)
        self.parent[host] = parent
        for start, holds in ((before, False), (parent, True)):
            above = start
            while True:
                self.below[above][moved] = holds
                if above == 0:
                    break
                above = self.parent[above]
        for start in (before, parent):
            above = start
            while self._combine(above) and above != 0:
                above = self.parent[above]
        self._add_up()


def descend(tree: LoadedTree, looks: int) -> int:
    """Make the best change until none helps, or until ``looks`` trees have been evaluated.

    Return the number of evaluated trees.
    """
    spent = 0
    while spent < looks:
        change = tree.changes()
        spent += tree.loads.count**2
        for place in np.argsort(change, axis=None)[:3].tolist():
            host, parent = divmod(place, tree.loads.count)
            if not change[host, parent] < -ENOUGH * tree.cost:
                return spent
            before, cost = tree.parent[host], tree.cost
            tree.hang(host, parent)
            if tree.cost < cost:  # the change is computed with the old sizes of results
                break
            tree.hang(host, before)
        else:
            return spent
    return spent


def greedy(loads: TreeLoads) -> list[int]:
    """Return a tree that grows from the root as a list of parents.

    In each step, the cheapest pair of a host outside and a parent inside is joined.
    """
    star = LoadedTree(loads, [0] * loads.count)
    a, below = loads.shape, loads.below
    load = star._work(star.compute * 0.0) if loads.together else np.zeros(loads.count)
    sends = star.sends
    if loads.interface != "independent":
        load = load + sum(below.carried)
    elif loads.beside is not None:  # a link that other trees use counts as slower
        links = below.carried[0]
        sends = power(power(links + sends, a) - power(links, a), 1 / a)
    parent = [0] * loads.count
    inside, outside = [0], list(range(1, loads.count))
    while outside:
        rows = sends[np.ix_(outside, inside)]
        joined, own = power(load[inside][None, :] + rows, a), power(load[outside][:, None] + rows, a)
        after = joined - power(load[inside], a)[None, :] + own
        row, column = divmod(int(after.argmin()), len(inside))
        host, target = outside[row], inside[column]
        parent[host] = target
        load[host] += sends[host, target]
        if loads.interface != "independent":
            load[target] += sends[host, target]
        inside.append(host)
        outside.remove(host)
    return parent


def search_tree(loads: TreeLoads, looks: int, seed: int, starts: Sequence[Sequence[int]] = ()) -> tuple[list[int], int]:
    """Return the best tree that is found with ``looks`` evaluated trees, and the number of evaluated trees.

    The result is the same for the same arguments.
    """
    chance = random.Random(seed)
    best: LoadedTree | None = None
    spent = 0
    for start in (*starts, greedy(loads), [0] * loads.count):
        tree = LoadedTree(loads, start)
        spent += descend(tree, looks - spent)
        if best is None or tree.cost < best.cost * (1 - ENOUGH):
            best = tree
    assert best is not None
    while spent < looks and loads.count > 2:
        tree = LoadedTree(loads, best.parent)
        for _ in range(chance.randint(1, 3)):
            host = chance.randrange(1, loads.count)
            free = np.flatnonzero(~tree.below[host]).tolist()
            tree.hang(host, chance.choice(free))
        spent += descend(tree, looks - spent)
        if tree.cost < best.cost * (1 - ENOUGH):
            best = tree
    return best.parent, spent

"""Several trees at once for one stream: their shapes together, each with an equal share, so that the busiest resource
is least busy.

Partitions of a stream may go over several trees by turns. Then the load of a resource is the sum of what every tree
brings it by its share, and what is minimised is the *a*-norm of these sums, as for one tree (``shapes.search``): a tree
is searched for with what the others keep busy below it. That is the steepest descent on the norm a tree at a time, and
the norm's slope on a resource, (load)^(a-1), is its price in the packing program whose solution is the best mixture of
all (``planning.bound``). Wang et al. (Blink, MLSys 2020) pack spanning trees by multiplicative weights, and choose few
of the many that they get by a small program; here few are found directly.

- X1: trees are begun one after the other, each with those before it below.
- X2: then they are searched for again in turn, from where they are and anew, until a round changes none.
- X3: mixtures are nested: that of twice as many trees begins with the trees of the one before, at half the share.

How often a tree is used is not decided here: partitions go to the tree that asks next, so that trees which meet on a
busy resource share it evenly (``fair_rates``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from thalweg.middleware.arithmetic import power
from thalweg.middleware.planning.problem.loads import Floats
from thalweg.middleware.planning.shapes.search import ENOUGH, Busy, LoadedTree, TreeLoads, descend, greedy, idle

MIXED_SHAPE = 4.0  # of the norm: 2, which suits one tree, spreads the load of several too evenly, 8 is no better
ROUNDS = 3  # of all trees; later ones change next to nothing
FULL = 1e-9  # of a resource's time; what is left of it after rounding


class Mixture:
    """Trees over the same hosts that carry equal shares of a stream; ``spent``: how many trees were looked at."""

    def __init__(self, loads: TreeLoads, trees: Sequence[Sequence[int]], beside: Busy | None = None) -> None:
        self._loads = loads
        self._others = idle(loads.count, loads.interface) if beside is None else beside
        self.trees: list[list[int]] = [list(tree) for tree in trees]
        self.spent = 0

    def grow(self, count: int, looks: int) -> None:
        """Have ``count`` trees, the present ones first, and make all of them better by about ``looks`` looks."""
        share = 1 / count
        trees = [LoadedTree(self._of(share, None), tree) for tree in self.trees]
        total = self._others
        for tree in trees:
            total = total.plus(tree.busy)
        last = self.spent + looks
        for _ in range(count - len(trees)):  # X1: search for a further tree beside the trees before it
            trees.append(self._best(share, total, [], last))
            total = total.plus(trees[-1].busy)
        for _ in range(ROUNDS):  # X2: search for every tree again, until a round changes none
            before = [tree.parent for tree in trees]
            for number, tree in enumerate(trees):
                total = total.less(tree.busy)
                trees[number] = self._best(share, total, [tree.parent], last)
                total = total.plus(trees[number].busy)
            if before == [tree.parent for tree in trees] or self.spent >= last:
                break
        self.trees = [tree.parent for tree in trees]

    def norm(self) -> float:
        """Seconds a partition: the norm of all loads."""
        share, total = 1 / len(self.trees), self._others
        for tree in self.trees[1:]:
            total = total.plus(LoadedTree(self._of(share, None), tree).busy)
        return power(LoadedTree(self._of(share, total), self.trees[0]).cost, 1 / self._loads.shape)

    def _of(self, share: float, beside: Busy | None) -> TreeLoads:
        return replace(self._loads, share=share, beside=beside)

    def _best(self, share: float, beside: Busy, starts: list[list[int]], last: int) -> LoadedTree:
        """The best tree with those below it, from ``starts`` and one that is grown; the first where looks are spent."""
        loads = self._of(share, beside)
        best: LoadedTree | None = None
        for start in (*starts, greedy(loads)):
            tree = LoadedTree(loads, start)
            self.spent += descend(tree, max(last - self.spent, 0))
            if best is None or tree.cost < best.cost * (1 - ENOUGH):
                best = tree
        assert best is not None
        return best


def fair_rates(work: Floats) -> Floats:
    """(trees,) partitions a second over each of some trees, each of which takes all that it can get.

    Trees that meet on a busy resource have it by turns, a partition each: rates are max-min fair (Bertsekas and
    Gallager 1992, section 6.5.2). ``work``: (trees, resources) seconds of each resource that a partition takes.
    """
    rates = np.zeros(len(work))
    left = np.ones(work.shape[1])
    growing = np.ones(len(work), dtype=bool)
    while growing.any():
        used = work[growing].sum(axis=0)
        step = float(np.divide(left, used, out=np.full(len(left), np.inf), where=used > 0).min(initial=np.inf))
        rates[growing] += step
        if step == np.inf:
            return rates
        left = left - step * used
        growing &= ~(work[:, (left <= FULL) & (used > 0)] > 0).any(axis=1)
    return rates

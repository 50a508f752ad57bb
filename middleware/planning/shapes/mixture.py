"""Mixtures: several trees for a stream, with equal shares, searched so that the busiest resource is least busy.

Partitions of a stream may go over several trees in turn. Then the load of a resource is the sum of the loads of the
trees by their shares. The *a*-norm of these sums is minimised, as for one tree (``shapes.search``). A tree is searched
for with the loads of the other trees below. This is the steepest descent on the norm, one tree at a time. The norm's
slope on a resource, (load)^(a-1), is the price of the resource in the packing program, whose solution is the best of
all mixtures (``planning.bound``). Wang et al. (Blink, MLSys 2020) pack spanning trees by multiplicative weights, and
then choose few of many trees by a small program. Here few trees are found directly.

- X1: Trees are begun one after the other, each with the earlier trees below.
- X2: Then every tree is searched for again in turn, from its present form and anew, until a round changes no tree.
- X3: Mixtures are nested. A mixture of twice as many trees begins with the trees of the mixture before, at half the
  share.

The use of each tree is not decided here. Partitions go to the tree that asks next, so trees that meet on a busy
resource share it evenly (``fair_rates``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from thalweg.middleware.arithmetic import power
from thalweg.middleware.planning.problem.loads import Floats
from thalweg.middleware.planning.shapes.search import ENOUGH, Busy, LoadedTree, TreeLoads, descend, greedy, idle

MIXED_SHAPE = 4.0  # shape of the norm: 2 suits one tree and spreads the load of several too evenly, 8 is no better
MIXED_LOOKS = 4  # evaluated trees for each number of trees, as a multiple of those for one tree
ROUNDS = 3  # rounds over all trees; later rounds change next to nothing
FULL = 1e-9  # share of a resource's time that counts as rounding


class Mixture:
    """Trees over the same hosts that carry equal shares of a stream.

    ``spent``: number of trees that were evaluated.
    """

    def __init__(self, loads: TreeLoads, trees: Sequence[Sequence[int]], beside: Busy | None = None) -> None:
        self._loads = loads
        self._others = idle(loads.count, loads.interface) if beside is None else beside
        self.trees: list[list[int]] = [list(tree) for tree in trees]
        self.spent = 0

    def grow(self, count: int, looks: int, *, rounds: int = ROUNDS, anew: bool = True) -> None:
        """Extend the mixture to ``count`` trees, the present trees first, and improve all trees.

        About ``looks`` trees are evaluated. ``rounds``: most rounds over all trees. ``anew``: every tree is also
        searched for from a greedy tree.
        """
        share = 1 / count
        trees = [LoadedTree(self._of(share, None), tree) for tree in self.trees]
        total = self._others
        for tree in trees:
            total = total.plus(tree.busy)
        last = self.spent + looks
        for _ in range(count - len(trees)):  # X1: search for a further tree beside the trees before it
            trees.append(self._best(share, total, [], last))
            total = total.plus(trees[-1].busy)
        for _ in range(rounds):  # X2: search for every tree again, until a round changes none
            before = [tree.parent for tree in trees]
            for number, tree in enumerate(trees):
                total = total.less(tree.busy)
                trees[number] = self._best(share, total, [tree.parent], last, anew=anew)
                total = total.plus(trees[number].busy)
            if before == [tree.parent for tree in trees] or self.spent >= last:
                break
        self.trees = [tree.parent for tree in trees]

    def norm(self) -> float:
        """Return the norm of all loads, in seconds a partition."""
        share, total = 1 / len(self.trees), self._others
        for tree in self.trees[1:]:
            total = total.plus(LoadedTree(self._of(share, None), tree).busy)
        return power(LoadedTree(self._of(share, total), self.trees[0]).cost, 1 / self._loads.shape)

    def _of(self, share: float, beside: Busy | None) -> TreeLoads:
        return replace(self._loads, share=share, beside=beside)

    def _best(self, share: float, beside: Busy, starts: list[list[int]], last: int, *, anew: bool = True) -> LoadedTree:
        """Return the best tree with the loads of the other trees below, from ``starts`` and, ``anew``, a greedy tree.

        Every start is improved until ``last`` trees have been evaluated in all.
        """
        loads = self._of(share, beside)
        best: LoadedTree | None = None
        for start in (*starts, greedy(loads)) if anew else starts:
            tree = LoadedTree(loads, start)
            self.spent += descend(tree, max(last - self.spent, 0))
            if best is None or tree.cost < best.cost * (1 - ENOUGH):
                best = tree
        assert best is not None
        return best


def fair_rates(work: Floats) -> Floats:
    """Return the partitions a second over each of several trees, (trees,), if every tree takes as much as it can get.

    Trees that meet on a busy resource use the resource in turn, for a partition each. So the rates are max-min fair
    (Bertsekas and Gallager 1992, section 6.5.2). ``work``: (trees, resources) seconds of each resource for a partition.
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

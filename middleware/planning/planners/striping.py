"""Planning of a given number of trees for a stream before the run: the shapes and the rates of the trees.

Mixtures of 1, 2, 4, … trees (``shapes.mixture``) are made, each from the one before. Every tree has partitions under
way, which hosts hold, and which have to be put in order again. Rates count only the time of busy resources. If the
number of trees is open (``auto``), a rehearsal decides (``mixtures.choice``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.planning.problem.loads import Floats
from thalweg.middleware.planning.shapes.mixture import MIXED_LOOKS, MIXED_SHAPE, Mixture, fair_rates
from thalweg.middleware.planning.shapes.search import LoadedTree, TreeLoads


class Trees(NamedTuple):
    """Trees as lists of parents, the partitions a second over every tree, and the number of evaluated trees."""

    parents: list[list[int]]
    rates: list[float]
    spent: int


def several(loads: TreeLoads, alone: Sequence[int], count: int, looks: int) -> Trees:
    """Return ``count`` trees. ``alone``: the best tree by itself."""
    loads = replace(loads, shape=max(loads.shape, MIXED_SHAPE))
    mixture = Mixture(loads, [alone])
    best = Trees([list(alone)], rates_of(loads, [alone]), 0)
    number = 1
    while number < count:
        number = min(2 * number, count)
        mixture.grow(number, MIXED_LOOKS * looks)
        trees = Trees(mixture.trees, rates_of(loads, mixture.trees), mixture.spent)
        if plain_sum(trees.rates) < plain_sum(
            best.rates
        ):  # the norm is not the largest load, so a mixture may be slower: repeat the trees before
            again = [tree for _, tree in zip(range(number), itertools.cycle(best.parents), strict=False)]
            trees = Trees(again, rates_of(loads, again), mixture.spent)
        best = trees
    return best._replace(spent=mixture.spent)


def rates_of(loads: TreeLoads, trees: Sequence[Sequence[int]]) -> list[float]:
    """Return the partitions a second over several trees at once, as far as resources allow (``fair_rates``)."""
    work = np.array([_work(LoadedTree(replace(loads, share=1.0, beside=None), tree)) for tree in trees])
    rates: list[float] = fair_rates(work).tolist()
    return rates


def _work(tree: LoadedTree) -> Floats:
    """Return the seconds of every resource for one partition over a tree, (resources,)."""
    carried, work = tree.busy
    if tree.loads.together:
        return carried[0] + work
    return np.concatenate([*(load.ravel() for load in carried), work])

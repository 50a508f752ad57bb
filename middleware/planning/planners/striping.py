"""Several trees for one stream before it runs: how many, of which shapes, and what each will carry.

Of mixtures of one, two, four, … trees (``shapes.mixture``) that is taken beyond which twice as many bring too little:
each tree has partitions of its own under way, which hosts hold, and which are to be in order again. Where a host's one
interface is what is busy, as with ``single`` interfaces, that is mostly after the first.

Where links do not hinder each other ``MOST_CHOSEN`` are taken, or two for each host that sends, if these repay beside
one. Rates count what keeps a resource busy. They do not count that a tree has one partition under way over each edge,
so that a link stands idle while what it would carry next waits for another one, which the more trees meet on a link
happens the less; nor that slow trees get few partitions, so that many trees follow a network that changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.planning.problem.loads import Floats
from thalweg.middleware.planning.shapes.mixture import MIXED_SHAPE, Mixture, fair_rates
from thalweg.middleware.planning.shapes.search import LoadedTree, TreeLoads

MOST_TREES = 64
MOST_CHOSEN = 16  # trees, where nobody says how many: 8 are slower by a fifth or more (puffer_mean10, regions); with 32
# the first partition comes so much later that 180 take as long
REPAYS = 0.1  # of the time between partitions, that twice as many trees must save
MIXED_LOOKS = 4  # times as many as for one tree, at each number of trees


class Trees(NamedTuple):
    """Trees as the parent of every host, partitions a second over each, and how many were looked at."""

    parents: list[list[int]]
    rates: list[float]
    spent: int


def several(loads: TreeLoads, alone: Sequence[int], count: int | Literal["auto"], looks: int) -> Trees:
    """``count`` trees, or as many as repay; ``alone``: the best tree by itself."""
    loads = replace(loads, shape=max(loads.shape, MIXED_SHAPE))
    mixture = Mixture(loads, [alone])
    best = single = Trees([list(alone)], rates_of(loads, [alone]), 0)
    number, most = 1, min(MOST_CHOSEN, 2 * (loads.count - 1)) if count == "auto" else count
    many = count == "auto" and loads.interface == "independent"
    while number < most:
        number = most if many and number > 1 else min(2 * number, most)
        mixture.grow(number, MIXED_LOOKS * looks)
        trees = Trees(mixture.trees, rates_of(loads, mixture.trees), mixture.spent)
        if plain_sum(trees.rates) < plain_sum(
            best.rates
        ):  # the norm is not the largest load: the same trees again lose nothing
            again = [tree for _, tree in zip(range(number), itertools.cycle(best.parents), strict=False)]
            trees = Trees(again, rates_of(loads, again), mixture.spent)
        least = plain_sum((single if many else best).rates) / (1 - REPAYS)
        if count != "auto" or plain_sum(trees.rates) >= least:
            best = trees
        elif not many:
            break
    return best._replace(spent=mixture.spent)


def rates_of(loads: TreeLoads, trees: Sequence[Sequence[int]]) -> list[float]:
    """Partitions a second over each of some trees at once, as far as resources go (``fair_rates``)."""
    work = np.array([_work(LoadedTree(replace(loads, share=1.0, beside=None), tree)) for tree in trees])
    rates: list[float] = fair_rates(work).tolist()
    return rates


def _work(tree: LoadedTree) -> Floats:
    """(resources,) seconds that a partition over a tree takes of each."""
    carried, work = tree.busy
    if tree.loads.together:
        return carried[0] + work
    return np.concatenate([*(load.ravel() for load in carried), work])

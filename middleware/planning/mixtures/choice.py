"""Choice of the trees of a stream: several mixtures of trees are rehearsed, and the quickest is taken.

Candidates are the best tree alone, a star for each host, trees made of stars (``hanging``), and mixtures whose busiest
resource is least busy (``shapes.mixture``), with several numbers of trees. Each is judged by the predicted time until
the last of the stream's partitions is delivered (``rehearsal``). So a tree counts with the time in which it fills, and
a deep tree is of use only for a long stream.

A single measurement says little about the rate of a link in the next minutes, and partitions differ in size. So the
candidates are rehearsed with rates and sizes that differ from the known ones at random. The best few are rehearsed
several times, and the mean time decides. Trees that fit the measured rates too well lose here. So do trees that send
combinations over many links, as a combination is often as large as its largest input. The random numbers are the same
for all candidates, and in every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.arrays import exp
from thalweg.middleware.planning.mixtures.hanging import hung, stars
from thalweg.middleware.planning.mixtures.pipelines import pipeline_of
from thalweg.middleware.planning.mixtures.rehearsal import Rehearsal
from thalweg.middleware.planning.problem.loads import Floats, Interface
from thalweg.middleware.planning.shapes.host_tree import Joining
from thalweg.middleware.planning.shapes.mixture import MIXED_LOOKS, MIXED_SHAPE, Mixture
from thalweg.middleware.planning.shapes.search import TreeLoads

PARTITIONS = 200  # of a stream whose length is unknown
PER_TREE, BESIDES = 4, 8  # rehearsed deliveries for each tree, and besides; later ones come at the same pace
REPAYS = 0.1  # share of the time of a single tree, and of stars, that other trees must save
SPREAD = 0.3  # standard deviation of the logarithm of a link's rate
SIZES = 0.25  # standard deviation of a partition's size, as a share of the mean; Ranganathan et al., section 4
SMALLEST = 0.1  # least size, as a share of the mean
DRAWS = 3  # of the rates of all links and the sizes of all partitions
FINALISTS = 3  # candidates that are rehearsed with every draw
STAR_SHAPE = 8.0  # shape of the norm for trees that are made of stars; compare ``MIXED_SHAPE``
STAR_STEPS = 60  # changes of each such tree
DEEPEST = 4  # edges between a host and the root
NUMBERS: Mapping[Interface, tuple[int, ...]] = {"independent": (8, 16), "single": (2, 4), "duplex": (2, 4)}
MANY_HOSTS = 20  # with so many hosts, one star for each is enough, and otherwise there are two

Parents = list[int]


class Rehearsed(NamedTuple):
    """Prediction for some trees: seconds until the last partition and between partitions, and figures of every tree.

    ``shares``: parts of the partitions. ``first_s``: seconds until the tree's first delivery.
    """

    last_s: float
    period_s: float
    shares: list[float]
    first_s: list[float]


class Choice(NamedTuple):
    """Chosen trees as lists of parents, with their predicted shares. The tree with the earliest delivery is first.

    ``period_s``: predicted seconds between partitions. ``spent``: number of trees that were evaluated for mixtures.
    """

    parents: list[Parents]
    shares: list[float]
    period_s: float
    spent: int


class Chooser:
    """Rehearsals of the trees of one stream.

    ``loads``: loads of one tree that carries the whole stream. ``partitions``: length of the stream. None: unknown.
    """

    def __init__(self, loads: TreeLoads, joining: Joining, startup_s: float, partitions: int | None = None) -> None:
        self._loads, self._joining, self._startup_s = loads, joining, startup_s
        self._partitions = partitions or PARTITIONS
        self._drawn = [self._draw(number) for number in range(DRAWS)]
        self._known: dict[tuple[tuple[tuple[int, ...], ...], int], Rehearsed] = {}  # by trees and draw
        self._spent = 0

    def choose(self, alone: Sequence[int], looks: int) -> Choice:
        """Return the candidate with the least predicted time, if it repays beside a single tree and beside stars.

        ``alone``: the best tree by itself. ``looks``: number of evaluated trees in a search for one tree.
        """
        single, simple = [list(alone)], stars(self._loads.count)
        candidates = [single, simple, *self._made(alone, looks)]
        candidates.sort(key=lambda trees: self.rehearse(trees, 0).last_s)
        quickest = min(candidates[:FINALISTS], key=self.expected_s)
        best = single
        for trees in (simple, quickest):
            if self.expected_s(trees) < (1 - REPAYS) * self.expected_s(best):
                best = trees
        first_s = self.rehearse(best, 0).first_s
        ordered = [best[number] for number in sorted(range(len(best)), key=lambda number: first_s[number])]
        rehearsed = self.rehearse(ordered, 0)  # trees that meet on a link take turns in their order
        return Choice(ordered, rehearsed.shares, rehearsed.period_s, self._spent)

    def expected_s(self, trees: Sequence[Sequence[int]]) -> float:
        """Return the predicted time of the stream's last partition: the mean over the draws, in seconds."""
        return plain_sum([self.rehearse(trees, draw).last_s for draw in range(DRAWS)]) / DRAWS

    def _made(self, alone: Sequence[int], looks: int) -> Iterator[list[Parents]]:
        """Yield the candidates that are neither a single tree nor stars."""
        loads, count = self._loads, self._loads.count
        if count < 3:  # there is no other tree
            return
        size = loads.made([size for sizes in loads.sizes for size in sizes])
        transfer_s, combine_s = loads.transfer(size), loads.compute_s(0, [size, size])
        copies = stars(count) * (1 if count >= MANY_HOSTS else 2)
        for deepest in (DEEPEST - 1, DEEPEST):
            yield hung(copies, transfer_s, combine_s, deepest)
        mixture = Mixture(replace(loads, shape=STAR_SHAPE), copies)
        mixture.grow(len(copies), STAR_STEPS * count**2 * len(copies), rounds=1, anew=False)
        yield mixture.trees
        self._spent += mixture.spent
        mixture = Mixture(replace(loads, shape=max(loads.shape, MIXED_SHAPE)), [alone])
        for number in NUMBERS[loads.interface]:
            mixture.grow(number, MIXED_LOOKS * looks)
            yield mixture.trees
        self._spent += mixture.spent

    def rehearse(self, trees: Sequence[Sequence[int]], draw: int) -> Rehearsed:
        """Return the prediction for some trees with the rates and sizes of a draw."""
        key = tuple([tuple(tree) for tree in trees]), draw
        if key not in self._known:
            self._known[key] = self._rehearse(trees, self._drawn[draw])
        return self._known[key]

    def _rehearse(self, trees: Sequence[Sequence[int]], loads: TreeLoads) -> Rehearsed:
        pipes = [pipeline_of(loads, tree, self._joining) for tree in trees]
        rehearsal = Rehearsal(pipes, loads.count, loads.interface, self._startup_s)
        most = min(self._partitions, PER_TREE * len(trees) + BESIDES)
        times = rehearsal.run(most)
        half = most // 2
        period_s = (times[-1] - times[half - 1]) / (most - half) if half else times[-1]
        last_s = times[-1] + (self._partitions - most) * period_s
        counts = [max(count, 0.5) for count in rehearsal.by_tree]
        return Rehearsed(last_s, period_s, [count / plain_sum(counts) for count in counts], rehearsal.first_s)

    def _draw(self, number: int) -> TreeLoads:
        """Return the loads with rates of links and sizes of partitions that differ at random from the known ones."""
        loads, count = self._loads, self._loads.count
        uniform = np.random.default_rng(number + 1).random((12, count, count + 1))  # their sum is all but normal
        normal = uniform.sum(axis=0) - 6.0
        factors: Floats = exp(SPREAD * normal[:, :count])
        larger = np.maximum(1 + SIZES * normal[:, count], SMALLEST).tolist()
        sizes = [[size * factor for size in own] for own, factor in zip(loads.sizes, larger, strict=True)]
        return replace(loads, sizes=sizes, transfer_s=lambda size: loads.transfer_s(size) * factors, _rows={})

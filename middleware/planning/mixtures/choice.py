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
from thalweg.middleware.planning.shapes.mixture import MIXED_SHAPE, Mixture
from thalweg.middleware.planning.shapes.search import LoadedTree, TreeLoads, descend, idle

PARTITIONS = 200  # of a stream whose length is unknown
PER_TREE = 4  # rehearsed deliveries of a tree; later ones come at the same pace
REPAYS = 0.1  # share of the time of a single tree, and of stars, that other trees must save
SPREAD = 0.3  # standard deviation of the logarithm of a link's rate
SIZES = 0.25  # standard deviation of a partition's size, as a share of the mean; Ranganathan et al., section 4
LEAST = 0.1  # least size, as a share of the mean
DRAWS = 3  # of the rates of all links and the sizes of all partitions
FINALISTS = 3  # candidates that are rehearsed on other rates as well
SHARPEST = 8.0  # shape of the norm for trees that are made of stars; compare ``MIXED_SHAPE``
STEPS = 60  # most changes of a tree that is made of a star
DEEPEST = 4  # edges between a host and the root
NUMBERS: Mapping[Interface, tuple[int, ...]] = {"independent": (8, 16), "single": (2, 4), "duplex": (2, 4)}
MIXED_LOOKS = 4  # evaluated trees for each mixture, as a multiple of those for one tree
MANY_HOSTS = 20  # with so many hosts, one star for each is enough
UNKNOWN_S = 1e9


class Rehearsed(NamedTuple):
    """Prediction for some trees: seconds until the last partition and between partitions, and figures of every tree.

    ``shares``: parts of the partitions. ``first_s``: seconds until the tree's first delivery.
    """

    last_s: float
    period_s: float
    shares: list[float]
    first_s: list[float]


class Choice(NamedTuple):
    """Trees as lists of parents, with the prediction, and the number of rehearsals."""

    parents: list[list[int]]
    rehearsed: Rehearsed
    rehearsals: int


class Chooser:
    """Rehearsals of the trees of one stream.

    ``loads``: loads of one tree that carries the whole stream. ``partitions``: length of the stream. None: unknown.
    """

    def __init__(
        self, loads: TreeLoads, joining: Joining, startup_s: float, partitions: int | None = None, ahead: int = 1
    ) -> None:
        self._loads, self._joining, self._startup_s, self._ahead = loads, joining, startup_s, ahead
        self._partitions = partitions or PARTITIONS
        self._drawn: dict[int, TreeLoads] = {0: loads}
        self.rehearsals = 0

    def choose(self, alone: Sequence[int], looks: int) -> Choice:
        """Return the candidate with the least predicted time, if it repays beside a single tree and beside stars.

        ``alone``: the best tree by itself. ``looks``: number of evaluated trees in a search for one tree.
        """
        candidates = sorted(self.candidates(alone, looks), key=lambda trees: self.rehearse(trees, 1).last_s)
        quickest = min(candidates[:FINALISTS], key=self._expected_s)
        best = [list(alone)]
        for trees in (stars(self._loads.count), quickest):
            if self._expected_s(trees) < (1 - REPAYS) * self._expected_s(best):
                best = trees
        first_s = self.rehearse(best, 1).first_s
        best = [best[number] for number in sorted(range(len(best)), key=lambda number: first_s[number])]
        return Choice(best, self.rehearse(best, 1), self.rehearsals)

    def _expected_s(self, trees: list[list[int]]) -> float:
        return plain_sum([self.rehearse(trees, draw).last_s for draw in range(1, DRAWS + 1)]) / DRAWS

    def candidates(self, alone: Sequence[int], looks: int) -> Iterator[list[list[int]]]:
        """Yield the candidates."""
        loads, count = self._loads, self._loads.count
        yield [list(alone)]
        if count < 3:
            return
        plain = stars(count)
        yield plain
        size = loads.made([size for sizes in loads.sizes for size in sizes])
        transfer_s = loads.transfer(size)
        combine_s = loads.compute_s(0, [size, size])
        copies = plain if count >= MANY_HOSTS else plain + plain
        yield hung(copies, transfer_s, combine_s, DEEPEST - 1)
        yield hung(copies, transfer_s, combine_s, DEEPEST)
        yield self._descended(copies)
        mixture = Mixture(replace(loads, shape=max(loads.shape, MIXED_SHAPE)), [alone])
        for number in NUMBERS[loads.interface]:
            mixture.grow(number, MIXED_LOOKS * looks)
            yield [list(tree) for tree in mixture.trees]

    def _descended(self, trees: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the trees, each improved once for the norm of all loads together."""
        loads = replace(self._loads, shape=SHARPEST, share=1 / len(trees))
        loaded = [LoadedTree(loads, tree) for tree in trees]
        total = idle(loads.count, loads.interface)
        for tree in loaded:
            total = total.plus(tree.busy)
        for number, tree in enumerate(loaded):
            total = total.less(tree.busy)
            better = LoadedTree(replace(loads, beside=total), tree.parent)
            descend(better, STEPS * loads.count**2)
            loaded[number] = better
            total = total.plus(better.busy)
        return [tree.parent for tree in loaded]

    def rehearse(self, trees: Sequence[Sequence[int]], draw: int = 0) -> Rehearsed:
        """Return the prediction for some trees. ``draw``: number of a draw of rates and sizes. 0: the known ones."""
        loads = self._of_draw(draw)
        pipes = [pipeline_of(loads, tree, self._joining) for tree in trees]
        rehearsal = Rehearsal(pipes, loads.count, loads.interface, self._startup_s, self._ahead)
        most = min(self._partitions, PER_TREE * len(trees) + 8)
        times = rehearsal.run(most)
        self.rehearsals += 1
        if len(times) < most:
            return Rehearsed(UNKNOWN_S, UNKNOWN_S, [1 / len(trees)] * len(trees), rehearsal.first_s)
        half = most // 2
        period_s = (times[-1] - times[half - 1]) / (most - half) if half else times[-1]
        last_s = times[-1] + (self._partitions - most) * period_s
        shares = [max(count, 0.5) for count in rehearsal.by_tree]
        return Rehearsed(last_s, period_s, [share / plain_sum(shares) for share in shares], rehearsal.first_s)

    def _of_draw(self, draw: int) -> TreeLoads:
        """Return the loads with the rates and sizes of a draw."""
        if draw not in self._drawn:
            count, measured = self._loads.count, self._loads.transfer_s
            uniform = np.random.default_rng(draw).random((12, count, count + 1))  # their sum is all but normal
            normal = uniform.sum(axis=0) - 6.0
            factors: Floats = exp(SPREAD * normal[:, :count])
            larger = np.maximum(1 + SIZES * normal[:, count], LEAST).tolist()
            sizes = [[size * factor for size in own] for own, factor in zip(self._loads.sizes, larger, strict=True)]
            self._drawn[draw] = replace(
                self._loads, sizes=sizes, transfer_s=lambda size: measured(size) * factors, _rows={}
            )
        return self._drawn[draw]

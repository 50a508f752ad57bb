"""Arrivals of the partitions of a striped stream, by tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from thalweg.experiments.records.log import read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TREE_COLOURS = 10


class Carried(msgspec.Struct, frozen=True):
    """Arrival of partition ``index`` over the tree ``stripe`` at ``t_s`` (emulated).

    Without ``kept`` a different tree was faster.
    """

    t_s: float
    index: int
    stripe: int
    kept: bool


def read_carried(folder: Path) -> dict[str, list[Carried]]:
    """Return the arrivals over trees in their order, by placement. A run over one tree has none."""
    arrivals: defaultdict[str, list[Carried]] = defaultdict(list)
    for row in read_log(folder, "carried"):
        if row.placement is not None and row.index is not None:
            arrivals[row.placement].append(Carried(row.t_s, row.index, row.detail.stripe, row.detail.kept))
    return dict(arrivals)


def carried_figure(carried: Mapping[str, list[Carried]], new_figure: Callable[[float, float], Figure]) -> Figure:
    """Return a figure with a panel for every placement, a line for every tree, and a mark for every arrival.

    A hollow mark is an arrival in vain.
    """
    trees = {name: sorted({arrival.stripe for arrival in own}) for name, own in carried.items()}
    figure = new_figure(7.5, 1.4 + sum(0.9 + 0.3 * len(own) for own in trees.values()))
    heights = [1 + len(own) for own in trees.values()]
    panels = figure.subplots(len(carried), 1, squeeze=False, sharex=True, height_ratios=heights).flat
    for axes, (name, own) in zip(panels, carried.items(), strict=True):
        shares = Counter(arrival.stripe for arrival in own if arrival.kept)
        total = max(1, shares.total())
        for tree in trees[name]:
            tint = f"C{tree % TREE_COLOURS}"
            for useful in (True, False):
                times = [arrival.t_s / 60 for arrival in own if arrival.stripe == tree and arrival.kept is useful]
                face = tint if useful else "none"
                axes.scatter(times, [tree] * len(times), s=18, facecolors=face, edgecolors=tint, linewidths=0.8)
        axes.set_yticks(trees[name], [f"tree {tree}: {shares[tree] / total:.0%}" for tree in trees[name]])
        axes.set(title=f"{name}: over which tree partitions came", ylim=(max(trees[name]) + 0.6, -0.6))
    axes.set(xlabel="emulated time (min); hollow: another tree was faster", xlim=(0, None))
    return figure

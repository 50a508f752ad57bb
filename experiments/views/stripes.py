"""Who carried which partition, where a stream went over several trees at once."""

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
    """Partition ``index`` came over the tree ``stripe`` at ``t_s`` (emulated); not ``kept``: another was faster."""

    t_s: float
    index: int
    stripe: int
    kept: bool


def read_carried(folder: Path) -> dict[str, list[Carried]]:
    """What came over which tree, by placement, in the order in which it came; nothing of runs over one."""
    found: defaultdict[str, list[Carried]] = defaultdict(list)
    for row in read_log(folder, "carried"):
        if row.placement is not None and row.index is not None:
            found[row.placement].append(Carried(row.t_s, row.index, row.detail.stripe, row.detail.kept))
    return dict(found)


def carried_figure(carried: Mapping[str, list[Carried]], new_figure: Callable[[float, float], Figure]) -> Figure:
    """A panel for each placement, a line for each tree, a mark for each partition when it came; hollow: in vain."""
    trees = {name: sorted({each.stripe for each in own}) for name, own in carried.items()}
    figure = new_figure(7.5, 1.4 + sum(0.9 + 0.3 * len(own) for own in trees.values()))
    heights = [1 + len(own) for own in trees.values()]
    panels = figure.subplots(len(carried), 1, squeeze=False, sharex=True, height_ratios=heights).flat
    for axes, (name, own) in zip(panels, carried.items(), strict=True):
        shares = Counter(each.stripe for each in own if each.kept)
        total = max(1, shares.total())
        for tree in trees[name]:
            tint = f"C{tree % TREE_COLOURS}"
            for kept in (True, False):
                times = [each.t_s / 60 for each in own if each.stripe == tree and each.kept is kept]
                face = tint if kept else "none"
                axes.scatter(times, [tree] * len(times), s=18, facecolors=face, edgecolors=tint, linewidths=0.8)
        axes.set_yticks(trees[name], [f"tree {tree}: {shares[tree] / total:.0%}" for tree in trees[name]])
        axes.set(title=f"{name}: over which tree partitions came", ylim=(max(trees[name]) + 0.6, -0.6))
    axes.set(xlabel="emulated time (min); hollow: another tree was faster", xlim=(0, None))
    return figure

"""Picture of Figure 13: the usage of four queries apart and together, with the paper's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.claims import known
from thalweg.experiments.papers.pietzuch2006.reuse.sharing import PLACEMENTS
from thalweg.experiments.papers.pietzuch2006.reuse.study import APART_BYTES, TOGETHER_BYTES, change
from thalweg.experiments.papers.plots import PAPER as MARK
from thalweg.experiments.papers.plots import Palette, Result, bar, named_rows, title
from thalweg.experiments.papers.study import Pooled, spread
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = {False: 100.0, True: 100 * TOGETHER_BYTES / APART_BYTES}


def _thirteen(result: Result, palette: Palette) -> Figure:
    """Draw the usage in percent of the same placement's usage without reuse."""
    from matplotlib.lines import Line2D

    figure = new_figure(8.5, 4.0)
    title(figure, result, "What four queries use, apart and together")
    axes = figure.subplots()
    names: list[str] = []
    for placement in PLACEMENTS:
        saved = known(change(placement), result)
        for reuse in (False, True):
            usage = result.value(placement, "usage", reuse=reuse)
            if usage is None or saved is None:
                continue
            share = saved.map(lambda less: 100 + less) if reuse else Pooled(mean=100.0, deviation=None, by_pool={})
            label = f"{spread(usage, 0)} bytes"
            bar(axes, len(names), share, palette.tint(placement), label, PAPERS[reuse], pale=not reuse)
            names.append(f"{placement}, {'may share' if reuse else 'apart'}")
    named_rows(axes, names)
    axes.set_xlim(0, 150)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("bytes in transit, % of those apart")
    figure.legend(handles=[Line2D([], [], label="the paper's", **MARK)], loc="outside lower left")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-13": _thirteen}

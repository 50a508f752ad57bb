"""A picture of Figure 13: what four queries use apart and together, with what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.pietzuch2006.reuse.sharing import PLACEMENTS
from thalweg.experiments.papers.pietzuch2006.reuse.study import APART_BYTES, TOGETHER_BYTES, change
from thalweg.experiments.papers.plots import BARS, Palette, Result, named_rows, say, title
from thalweg.experiments.papers.plots import PAPER as MARK
from thalweg.experiments.papers.study import spread
from thalweg.experiments.views.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = {False: 100.0, True: 100 * TOGETHER_BYTES / APART_BYTES}


def _thirteen(result: Result, palette: Palette) -> Figure:
    """Usage in percent of that of the same placement without reuse."""
    from matplotlib.lines import Line2D

    figure = new_figure(8.5, 4.0)
    title(figure, result, "What four queries use, apart and together")
    axes = figure.subplots()
    names: list[str] = []
    for placement in PLACEMENTS:
        saved = change(result, placement)
        for reuse, value in ((False, None), (True, saved)):
            usage = result.value(placement, "usage", reuse=reuse)
            if usage is None or saved is None:
                continue
            y, share = len(names), 100.0 if value is None else 100 + value.mean
            axes.barh(y, share, 0.6, color=palette.tint(placement), alpha=0.85 if reuse else 0.4)
            if value is not None and value.deviation is not None:
                axes.errorbar(share, y, xerr=value.deviation, **BARS)
            axes.plot(PAPERS[reuse], y, **MARK)
            right = max(share + ((value and value.deviation) or 0.0), PAPERS[reuse])
            say(axes, f"{spread(usage, 0)} bytes", (right, y), (9, 0), va="center")
            names.append(f"{placement}, {'may share' if reuse else 'apart'}")
    named_rows(axes, names)
    axes.set_xlim(0, 150)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("bytes in transit, % of those apart")
    figure.legend(handles=[Line2D([], [], label="the paper's", **MARK)], loc="outside lower left")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-13": _thirteen}

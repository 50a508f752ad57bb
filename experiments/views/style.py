"""Style of the project's pictures: colours, figures, and ticks at round numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")  # Okabe and Ito
INK = "#333333"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 130,
}


def styled() -> AbstractContextManager[None]:
    """Return a context in which figures have the project's style, independent of the machine's own settings."""
    import matplotlib as mpl

    return mpl.rc_context(dict(mpl.rcParamsDefault) | STYLE)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def round_ticks(axis: Axis) -> None:
    """Put the ticks of a logarithmic axis at 1, 2, 5, 10 …"""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(lambda value, _: shortened(value))
    axis.minorticks_off()


def shortened(value: float) -> str:
    return f"{value:.3g}"

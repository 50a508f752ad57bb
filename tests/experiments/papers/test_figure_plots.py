from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest
from made_up_sweeps import fail, rows, table
from PIL import Image

from thalweg.experiments.papers.aggregation import figure_data
from thalweg.experiments.papers.plots import draw, plot_figures
from thalweg.experiments.papers.ranganathan1998.study import FIGURES
from thalweg.experiments.papers.study import FigureData
from thalweg.experiments.views.style import STYLE
from thalweg.middleware.errors import RunError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINE = "lab.planners:AnOwnPlannerWithALongName"
pytestmark = pytest.mark.spark


def texts(data: FigureData, pool: str = "paper") -> str:
    """Return all texts of a figure."""
    with mpl.rc_context(dict(mpl.rcParamsDefault) | STYLE):
        result = next(result for result in data.results if result.pool == pool)
        figure = draw(result)
        assert figure is not None
        figure.draw_without_rendering()
        return "\n".join(text.get_text() for text in figure.findobj(mpl.text.Text))


@pytest.mark.parametrize(
    ("number", "seen"),
    [
        pytest.param(
            "6",
            ("The median configuration runs global at", "and thalweg at", "bound of all trees"),
            marks=pytest.mark.long,
        ),
        pytest.param("7", ("More hosts to choose from change local's mean speed-up by",), marks=pytest.mark.long),
        pytest.param("8", ("global over one-shot", "thalweg over global"), marks=pytest.mark.long),
        ("stripes", ("On independent links as many trees as repay take", "as many as repay")),
        pytest.param("9", ("global is fastest with a period of", "min, thalweg with"), marks=pytest.mark.long),
        pytest.param("10", ("Mean speed-up of the binary tree:",), marks=pytest.mark.long),
        pytest.param("sensitivity", ("By what traces are made by",), marks=pytest.mark.long),
    ],
)
def test_every_figure_is_drawn(number: str, seen: tuple[str, ...], spark_session: SparkSession, tmp_path: Path) -> None:
    """A researcher's own placement is included. A second pool lacks most results."""
    arms = FIGURES[number].sweep.with_more(MINE).arms()
    results = rows(arms, pools=(1, 2), configurations=4)
    results += rows(arms, pool="some/where else", pools=[1], configurations=2)[: len(arms) + 2]
    data = figure_data(spark_session, table(results), figure=number)
    paths = plot_figures(data, tmp_path)
    assert paths == [tmp_path / "plots" / f"figure-{number}-{pool}.png" for pool in ("paper", "some_where_else")]
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 1000
            assert image.height > 500
    written = texts(data)
    assert [text for text in seen if text not in written] == []
    assert ("AnOwnPlannerWithA…" in written) == (number not in ("sensitivity", "stripes"))
    assert "one pool some/where else" in texts(data, "some/where else")
    assert ("the paper's" in written) == (number in ("6", "9", "sensitivity"))


def test_pools_with_few_results_are_drawn_and_failed_pools_are_not(spark_session: SparkSession, tmp_path: Path) -> None:
    """One pool has download-all alone, and one has failed runs only. A missing folder is an error."""
    arms = FIGURES["6"].sweep.arms()
    made = rows(arms[:1], configurations=2) + [fail(row, "no") for row in rows(arms, pool="real", configurations=1)]
    made += rows(arms[1:], pool="regions", configurations=2)
    data = figure_data(spark_session, table(made))
    assert [path.name for path in plot_figures(data, tmp_path)] == ["figure-6-paper.png", "figure-6-regions.png"]
    with pytest.raises(RunError, match="cannot be written"):
        plot_figures(data, tmp_path / "none")


@pytest.mark.long
def test_the_ablation_is_drawn(spark_session: SparkSession, tmp_path: Path) -> None:
    """With all rows the gap is drawn. With a part of the rows the gap is left out."""
    arms = FIGURES["ablation"].sweep.with_more(MINE).arms()
    made = rows(arms, pools=(1, 2), configurations=3) + rows(arms[:2], pool="regions", configurations=2)
    data = figure_data(spark_session, table(made), figure="ablation")
    (whole, part) = plot_figures(data, tmp_path)
    assert (whole.name, part.name) == ("figure-ablation-paper.png", "figure-ablation-regions.png")
    written = texts(data)
    for text in (
        "thalweg takes 0.3",
        "given tree, periods",
        "cost and shape",
        "links that change",
        "Ablation, 2 pools",
    ):
        assert text in written
    assert "given tree, periods" not in texts(data, "regions")
    data.results[1].rows.clear()
    assert plot_figures(data, tmp_path) == [whole]

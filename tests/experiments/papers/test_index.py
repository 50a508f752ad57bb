from __future__ import annotations

import subprocess
import sys

import pytest

from thalweg.experiments.papers.index import FIGURES, POOLS, figure_names
from thalweg.experiments.papers.study import STUDIES, find_figure, find_study
from thalweg.middleware.errors import UsageError


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_the_figures_of_the_index(study: str) -> None:
    assert list(find_study(study).figures) == list(FIGURES[study])


def test_the_names_of_figures_are_unique() -> None:
    assert len(figure_names()) == sum(map(len, FIGURES.values()))


@pytest.mark.parametrize("study", STUDIES)
def test_the_index_has_the_pools_of_a_study(study: str) -> None:
    assert set(find_study(study).pools) <= set(POOLS)


def test_a_figure_is_found_by_number_and_by_paper() -> None:
    study, figure = find_figure("odp-9")
    assert (study.name, figure.number) == ("cardellini2016.solving", "odp-9")
    assert find_figure("cardellini2016.solving:odp-9") == (study, figure)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("11", r"--figure is 11; there are 6, 7, 8, .*, bimodal-hops$"),
        ("benoit2008:6", r"--figure is benoit2008:6; there are benoit-2, .*, benoit-9$"),
        ("nobody2000:6", "there is no study 'nobody2000'"),
    ],
)
def test_an_unknown_figure_is_refused_with_the_list_of_known_figures(number: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find_figure(number)


def test_the_search_for_a_figure_imports_only_the_study_of_the_figure() -> None:
    code = "import sys; from thalweg.experiments.papers.study import find_figure; find_figure('bimodal-7')"
    code += "; print(*sorted(name for name in sys.modules if name.endswith('.study')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "thalweg.experiments.papers.asaduzzaman2010.heuristics.study" in done.stdout
    assert "benoit2008" not in done.stdout

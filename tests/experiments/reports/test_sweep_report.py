from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from thalweg.experiments.papers.aggregation import save_figures
from thalweg.experiments.papers.ranganathan1998.study import STUDY
from thalweg.experiments.papers.study import FORMAT, FigureData, Verdict
from thalweg.experiments.records import spark
from thalweg.experiments.reports import sweep as report_sweep
from thalweg.experiments.reports.page import Room
from thalweg.experiments.reports.sweep import figures_of, sweep_section


def some_figures() -> FigureData:
    verdict = Verdict(
        figure="6", pool="paper", claim="x", text="it helps", how="by more than <1%>", verdict="not shown",
        detail="1 = 1",
    )  # fmt: skip
    result = STUDY.result(
        figure="6", pool="paper", title="Many", question="Does it help?", pools=1, expected=4, servers=8,
        tree="binary", period_s=600.0, k=0, comparable=True, rows=[], ratios=[], verdicts=[verdict],
    )  # fmt: skip
    failures = {"global: ValueError: bad": 1, "local: ValueError: bad": 2}
    return FigureData(results=[result], runs=8, failed=3, failures=failures)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "sweep.toml").write_text('figure = "6"\n')
    return tmp_path


@pytest.mark.parametrize(
    "there",
    [b"", b"\xff\xfe", b'{"results": 3}', f'{{"format": {FORMAT}, "version": "0.0.0"}}'.encode(), b'{"format": 1}'],
)
def test_figures_json_is_only_a_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, there: bytes) -> None:
    """Damaged, or of another format or version, it is made again from the results."""

    @contextmanager
    def session() -> Iterator[None]:
        yield

    monkeypatch.setattr(spark, "session", session)
    monkeypatch.setattr(report_sweep, "aggregate", lambda spark, folder: made)
    made = some_figures()
    (folder / "results" / "part-00000.parquet").touch()
    (folder / "figures.json").write_bytes(there)
    assert figures_of(folder) is made
    save_figures(folder, made)
    found = figures_of(folder)
    assert found == made
    assert found is not made


def test_how_each_claim_is_decided_is_on_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sweep, "pictures_of", lambda data: {})
    text = sweep_section(folder, some_figures(), Room(1_000_000), "s")
    assert 'it helps<div class="soft">by more than &lt;1%&gt;</div>' in text
    assert '<span class="soft">not shown</span>' in text
    assert "1 run failed: global: ValueError: bad" in text
    assert "2 runs failed: local: ValueError: bad" in text

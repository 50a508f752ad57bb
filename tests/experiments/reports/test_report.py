from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.papers.aggregation import save_figures
from thalweg.experiments.papers.ranganathan1998.study import STUDY
from thalweg.experiments.papers.study import FORMAT, FigureData, Verdict, pooled
from thalweg.experiments.records import comparisons, spark
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.comparisons import COMPARISON, Comparison, Furthest
from thalweg.experiments.records.moves import Move, TreeChange
from thalweg.experiments.records.records import EVENTS, load_run
from thalweg.experiments.reports import run as report_run
from thalweg.experiments.reports import sweep as report_sweep
from thalweg.experiments.reports.page import Room, from_rich, render, templates
from thalweg.experiments.reports.placements import (
    FRAMES,
    Drawing,
    Frame,
    choose,
    drawings,
    frames,
    short_names,
    strip,
    ticks,
)
from thalweg.experiments.reports.report import write_report
from thalweg.experiments.sweeps.simulations import AS_IS, Arm
from thalweg.experiments.views.graph import graph_figure, shown
from thalweg.experiments.views.tables import run_table
from thalweg.experiments.views.timelines import Course, host_colours, timeline
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link
from thalweg.operators import write_image

VOID = {"meta", "img", "input", "br", "link", "hr"}


class Checker(HTMLParser):
    """Parser that notes malformed tags, external resources, and missing texts for blind readers."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.wrong: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"{tag} is not closed" for tag in self.open]
        self.wrong += [f"#{name} leads nowhere" for name in self.targets if name not in self.ids]
        self.wrong += [f"{name} is there twice" for name in set(self.ids) if self.ids.count(name) > 1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        attributes = dict(attrs)
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        if tag == "img" and not (attributes.get("alt") and (attributes["src"] or "").startswith("data:image/")):
            self.wrong.append("an image without a text, or from elsewhere")
        if tag == "svg" and not attributes.get("aria-label"):
            self.wrong.append("a drawing without a label")
        if tag == "th" and attributes.get("scope") not in ("row", "col"):
            self.wrong.append("a head without a scope")
        if tag == "a":
            self.targets.append((attributes["href"] or "").removeprefix("#"))
        if tag in ("link", "iframe", "object", "base") or any(name.startswith("on") for name in attributes):
            self.wrong.append(f"{tag} is not wanted")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"{tag} is closed and was not open")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(path: Path) -> tuple[str, Checker]:
    """Return the page's text and its checker. Fail if the page has an error."""
    text = path.read_text(encoding="utf-8")
    checker = Checker(text)
    assert checker.wrong == []
    assert checker.tags.count("table") == checker.tags.count("caption")
    assert re.findall(r"https?:|@import|url\(", text) == []
    assert path.stat().st_size < 5_000_000
    return text, checker


def no_plots(folder: Path, info: Any) -> list[Path]:
    return []


def move(node: str, source: str, target: str, at_s: float, settled_s: float, outcome: str = "moved") -> Move:
    return Move("global", node, source, target, at_s, settled_s, outcome, "epoch", "", "", settled_s - at_s, 0)


def adapted(new_run: Any, name: str = "a", **options: Any) -> Any:
    run = new_run(name, images=20, **options)
    run.flow("download-all", 24.0, link_rows=16)
    run.adapt("global", 12)
    return run


# --- the page ---------------------------------------------------------------------------------------


def test_the_page_of_a_run_has_all_parts_and_the_run_folder_stays_unchanged(new_run: Any, tmp_path: Path) -> None:
    """The page has the table that the terminal shows, and all plots and pictures."""
    run = adapted(new_run)
    run.prove({("h1", "client"): (2e6, 0.25), ("client", "h1"): (4e6, -0.005), ("h2", "h1"): (1e5, 0.5)})
    run.add(300.0, "h3", "scenario", "global", detail={"scenario": "collapse", "at_s": 30.0, "until_s": 60.0})
    folder = run.write(notes=["rates only"], hosts=["h1", "h2", "client"], started="2026-01-01T00:00:00+00:00")
    (folder / "images" / "global").mkdir(parents=True)
    for index in range(9):
        dtype = np.uint16 if index else np.uint8
        write_image(np.full((40, 60), index * 20, dtype), folder / "images" / "global" / f"{index:03}.png")
    before = sorted(path.name for path in folder.rglob("*"))
    report = write_report([folder, folder], tmp_path / "new" / "r.html")
    assert sorted(path.name for path in folder.rglob("*")) == before
    text, checker = checked(tmp_path / "new" / "r.html")
    assert report.size_bytes == (tmp_path / "new" / "r.html").stat().st_size
    shown = templates().get_template("parts.html").module.sheet(from_rich(run_table(summarize_run(folder))))
    assert shown.split("<tbody>")[1] in text
    page_text = " ".join(checker.text)
    for part in (
        "rates only",
        "links: 2 of 3 proved, worst rate error 25.0% (h1>client)",
        "Configuration",
        "2026-01-01",
    ):
        assert part in page_text
    assert 'class="e3 worst">25.0%<small>2 → 2.5</small>' in text
    assert 'class="slow">50.0%' in text
    assert text.count("data:image/jpeg") == report_run.PICTURES
    assert text.count("data:image/png") == 7  # arrivals, interarrival, links of two, hosts, moves, estimates
    assert checker.tags.count("svg") == 1 + FRAMES + 1
    assert 'class="hit"' in text
    assert "global: who moved, emulated seconds" in page_text
    assert [summary.out for summary in report.runs] == [str(folder)]


def test_several_runs_are_compared(new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_run, "plot_run", no_plots)
    runs = [adapted(new_run, name, seed=seed).write() for seed, name in enumerate("ab", 1)]
    (runs[1] / "comparison.json").write_text(
        '{"rows": [{"placement": "global", "seed": 1, "simulated_s": 9.0, "emulated_s": 10.0, "ratio": 0.9},'
        ' {"placement": "<i>", "seed": 2, "simulated_s": 12.0, "emulated_s": 10.0, "ratio": 1.2},'
        ' {"placement": "local", "seed": 2, "emulated_s": 10.0}], "limit": 0.1}'
    )
    report = write_report(runs, tmp_path / "r.html")
    text, checker = checked(tmp_path / "r.html")
    page_text = "".join(checker.text)
    assert "all 2 runs" in page_text
    assert "It does not hold: 1 of 3 within 10%; furthest: <i>, seed 2, 20.0% apart." in page_text
    assert '<span class="bad">1.200</span>' in text
    assert "These runs differ" not in page_text
    assert (len(report.runs), len(report.comparisons)) == (2, 1)


def told_of_comparison(tmp_path: Path, **changes: Any) -> tuple[str, str]:
    """Return the report's page about a comparison of one row, 15 % apart, and the page's text."""
    row = comparisons.Row(
        "global", 1, 11.5, 10.0, 1.15, emulated_each_s=[10.0, 12.0], spread=0.2, same_start=False, simulated_moves=3,
        emulated_moves=[4, 5],
    )  # fmt: skip
    comparison = Comparison(rows=[row], worst=Furthest("global", 1, 0.15), repeats=2, notes=["the machine was busy"])
    folder = tmp_path / "compared"
    folder.mkdir(exist_ok=True)
    (folder / COMPARISON).write_bytes(msgspec.json.encode(msgspec.structs.replace(comparison, **changes)))
    write_report([folder], tmp_path / "r.html")
    text, checker = checked(tmp_path / "r.html")
    return text, " ".join("".join(checker.text).split())


def test_a_comparison_is_judged_by_the_recorded_limit(tmp_path: Path) -> None:
    text, page_text = told_of_comparison(tmp_path, limit=0.2)
    assert "It holds: 1 of 1 within 20%; furthest: global, seed 1, 15.0% apart." in page_text
    assert '<span class="good">1.150</span>' in text
    assert 'class="wrong"' not in text
    for part in ("20.0%", "differs", "3 / 4, 5", "the machine was busy", "the median of 2 runs"):
        assert part in page_text
    text, page_text = told_of_comparison(tmp_path, limit=0.1)
    assert "It does not hold: 0 of 1 within 10%" in page_text
    assert '<ul class="wrong"><li>global, seed 1: simulated is 1.150 of emulated, beyond 10%</li></ul>' in text


def test_a_comparison_with_failures_does_not_hold_and_lists_the_failures_first(tmp_path: Path) -> None:
    lost = "seed-1/netns-global, global: 4 of 5 images were not delivered"
    text, page_text = told_of_comparison(tmp_path, limit=0.2, failures=[lost])
    assert f'</h2><ul class="wrong"><li>{lost}</li></ul>' in text
    end = "It does not hold: 1 of 1 within 20%; furthest: global, seed 1, 15.0% apart; 1 failure of runs, named above."
    assert end in page_text


def test_text_that_looks_like_html_stays_text(new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts, nodes, placements, notes and versions have names that look like HTML."""
    monkeypatch.setattr(report_run, "plot_run", no_plots)
    bad = '"><b onload=x>&'
    run = new_run("a", images=5)
    run.flow(bad, 12.0, link_rows=16, places={f"n{bad}": f"h{bad}", "sink": f"c{bad}"})
    run.move(bad, f"n{bad}", f"h{bad}", f"t{bad}", 5.0, reason=bad)
    run.prove({(f"h{bad}", f"t{bad}"): (2e6, 0.1)})
    folder = run.write(notes=[bad], versions={bad: bad}, config={bad: bad, "tree": bad}, hosts=[f"h{bad}"], testbed=bad)
    write_report([folder], tmp_path / "r.html")
    _, checker = checked(tmp_path / "r.html")
    assert "b" not in checker.tags
    assert f"n{bad} → t{bad}" in "".join(checker.text)


def test_an_unfinished_run_is_shown_with_the_missing_placement(
    new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_run, "plot_run", no_plots)
    run = new_run(images=5)
    run.flow("one-shot", 12.0, link_rows=16)
    folder = run.write(placements=["one-shot", "global"])
    assert write_report([folder], tmp_path / "r.html").runs[0].placements["global"].lost == 5
    page_text = "".join(checked(tmp_path / "r.html")[1].text)
    assert "global has no records: the run ended before it" in page_text
    assert "5 of 5 images were not delivered" in page_text


def test_existing_plots_are_used_unless_the_records_are_newer_and_a_damaged_plot_is_refused(
    new_run: Any, tmp_path: Path
) -> None:
    run = new_run(images=5)
    run.flow("one-shot", 12.0, link_rows=16)
    folder = run.write()
    info = load_run(folder)
    (folder / "plots").mkdir()
    for name in ("hosts", "arrivals", "links-one-shot"):
        write_image(np.zeros((4, 4), np.uint8), folder / "plots" / f"{name}.png")
    with report_run.drawn_plots(folder, info) as paths:
        assert [path.stem for path in paths] == ["arrivals", "links-one-shot", "hosts"]
        assert {path.parent for path in paths} == {folder / "plots"}
    events_s = (folder / EVENTS).stat().st_mtime
    os.utime(folder / "plots" / "hosts.png", (events_s - 60, events_s - 60))
    with report_run.drawn_plots(folder, info) as paths:
        assert "hosts" in {path.stem for path in paths}
        assert folder / "plots" not in {path.parent for path in paths}
    (folder / "plots" / "hosts.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match=r"hosts\.png is damaged or too large .*; remove it"):
        write_report([folder], tmp_path / "r.html")


def test_pictures_that_do_not_fit_are_left_out(new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.experiments.reports.report.Room", lambda size_bytes=0: Room(min(size_bytes, 1000)))
    monkeypatch.setattr(report_run, "plot_run", no_plots)
    run = new_run(images=5)
    run.flow("one-shot", 12.0, link_rows=16)
    folder = run.write()
    (folder / "images" / "one-shot").mkdir(parents=True)
    write_image(np.zeros((40, 60), np.uint8), folder / "images" / "one-shot" / "000.png")
    assert write_report([folder], tmp_path / "r.html").left_out == 1
    assert "1 pictures were left out" in "".join(checked(tmp_path / "r.html")[1].text)
    room = Room(500)  # a picture takes 200 bytes and its data, as text
    assert [room.take(bytes(size)) for size in (60, 60, 3)] == [True, False, True]


# --- sweeps -----------------------------------------------------------------------------------------


def some_figures() -> FigureData:
    arms = {"download-all": 100.0, "a<b": 20.0}
    rows = [
        STUDY.row(
            label=name, arm=Arm(placement=name, servers=8, tree="binary"), runs=4, interarrival_s=pooled({1: at_s})
        )
        for name, at_s in arms.items()
    ]
    verdicts = [
        Verdict(
            figure="6", pool="paper", claim="x", text=text, how=how, verdict=decided, detail="1 < 2", pools_holding=0,
            pools=1,
        )
        for text, how, decided in (("it <helps>", "", "does not hold"), ("it adds", "by more than <1%>", "not shown"))
    ]  # fmt: skip
    result = STUDY.result(
        figure="6", pool="paper", title="Many", question="Does it help?", pools=1, expected=4, servers=8,
        tree="binary", period_s=600.0, k=0, made=AS_IS, comparable=True, rows=rows, ratios=[], verdicts=verdicts,
        notes=["one pool: no spread"],
    )  # fmt: skip
    return FigureData(results=[result], runs=8, failed=3, failures={"a: ValueError: <bad>": 1, "b: ValueError: bad": 2})


def sweep(folder: Path) -> Path:
    (folder / "results").mkdir(parents=True)
    (folder / "sweep.toml").write_text('figure = "6"\n')
    return folder


def test_the_page_of_a_sweep_has_the_figures_and_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep(tmp_path / "fig6")
    save_figures(folder, some_figures())
    picture = tmp_path / "p.png"
    write_image(np.zeros((4, 4), np.uint8), picture)
    monkeypatch.setattr(report_sweep, "pictures_of", lambda data: {("6", "paper"): picture.read_bytes()})
    report = write_report([folder], tmp_path / "r.html")
    text, checker = checked(tmp_path / "r.html")
    page_text = "".join(checker.text)
    for part in ("a<b", "it <helps>", "does not hold", "1 < 2", "0 of 1", "one pool: no spread"):
        assert part in page_text
    assert "1 run failed: a: ValueError: <bad>" in page_text
    assert "2 runs failed: b: ValueError: bad" in page_text
    assert 'it adds<div class="soft">by more than &lt;1%&gt;</div>' in text
    assert '<span class="soft">not shown</span>' in text
    assert text.count("data:image/png") == 1
    assert report.sweeps[0]["results"][0]["verdicts"][0]["verdict"] == "does not hold"


def test_saved_figures_are_read_and_absent_or_damaged_figures_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep(tmp_path / "s")
    with pytest.raises(UsageError, match="has no results yet; run thalweg sweep"):
        report_sweep.figures_of(folder)
    save_figures(folder, some_figures())
    assert report_sweep.figures_of(folder) == some_figures()
    (folder / "figures.json").write_text('{"results": 3}')
    with pytest.raises(UsageError, match=r"figures\.json is damaged"):
        report_sweep.figures_of(folder)


@pytest.mark.parametrize(
    "there",
    [b"", b"\xff\xfe", b'{"results": 3}', f'{{"format": {FORMAT}, "version": "0.0.0"}}'.encode(), b'{"format": 1}'],
)
def test_figures_json_is_only_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bytes) -> None:
    """A damaged file, a file of a different format or version, and a file older than the results are replaced."""
    folder, figures = sweep(tmp_path / "s"), some_figures()
    monkeypatch.setattr(spark, "session", nullcontext)
    monkeypatch.setattr(report_sweep, "aggregate", lambda spark, folder: figures)
    (folder / "results" / "part-00000.parquet").touch()
    (folder / "figures.json").write_bytes(there)
    assert report_sweep.figures_of(folder) is figures
    save_figures(folder, figures)
    cached = report_sweep.figures_of(folder)
    assert cached == figures
    assert cached is not figures
    later_s = (folder / "figures.json").stat().st_mtime + 60
    os.utime(folder / "results" / "part-00000.parquet", (later_s, later_s))
    assert report_sweep.figures_of(folder) is figures


# --- bad input --------------------------------------------------------------------------------------


def test_an_invalid_folder_is_named_and_nothing_is_written(
    new_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = adapted(new_run).write()
    out = tmp_path / "r.html"
    empty, killed, damaged, torn = (tmp_path / name for name in ("empty", "killed", "damaged", "torn"))
    empty.mkdir()
    (killed / "logs").mkdir(parents=True)
    damaged.mkdir()
    (damaged / "comparison.json").write_text('{"rows": [{"placement": 1}]}')
    torn.mkdir()
    (torn / "run.toml").write_bytes((good / "run.toml").read_bytes())
    (torn / "events.parquet").write_bytes((good / "events.parquet").read_bytes()[:2000])
    for folder, says in (
        (tmp_path / "absent", "does not exist; name folders that"),
        (empty, "is neither a run folder"),
        (killed, "its run was killed before it ended"),
        (damaged, "comparison.json is damaged"),
        (torn, "events.parquet is damaged"),
    ):
        assert invoke(["report", str(good), str(folder), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert folder.name in error
        assert says in error
    assert not out.exists()


def test_an_unwritable_page_is_refused_before_the_folders_are_read(
    new_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out, says in ((tmp_path, "is a folder; name a file"), (tmp_path / "file" / "r.html", "cannot be written")):
        assert invoke(["report", str(tmp_path / "absent"), "--out", str(out)]) == 2
        assert says in capsys.readouterr().err


def test_json_is_the_last_line(
    new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_run, "plot_run", no_plots)
    folder, out = adapted(new_run).write(), tmp_path / "r.html"
    assert invoke(["report", str(folder), "--out", str(out), "--json"]) == 0
    output = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (output["report"], output["sweeps"], output["runs"][0]["run"]) == (str(out), [], "run-a")
    assert invoke(["report", str(folder), "--out", str(out)]) == 0
    assert re.fullmatch(r"report: \S+ \(\S+ KB\): 1 run\n", capsys.readouterr().out)


# --- placements over time ---------------------------------------------------------------------------


def test_every_change_starts_a_frame_with_the_bytes_carried_meanwhile() -> None:
    moves = [move("a", "h1", "h2", 9.0, 10.0), move("b", "h1", "h2", 9.0, 11.0), move("a", "h2", "h1", 49.0, 50.0)]
    moves.append(move("b", "h2", "h3", 60.0, 61.0, "stayed"))
    sent = (5.0, "h1", 10), (11.0, "h2", 5), (40.0, "h2", 6), (99.0, "h1", 7)
    transfers = [(at_s, Link(host, "c"), size_bytes) for at_s, host, size_bytes in sent]
    course = Course("global", {"a": "h1", "b": "h1", "sink": "c"}, moves, 100.0, transfers)
    course_frames = frames(course)
    assert [(frame.at_s, frame.until_s, frame.moved) for frame in course_frames] == [
        (0.0, 11.0, ()), (11.0, 50.0, ("a", "b")), (50.0, 100.0, ("a",)),
    ]  # fmt: skip
    assert [frame.placement["a"] for frame in course_frames] == ["h1", "h2", "h1"]
    assert [frame.placement["b"] for frame in course_frames] == ["h1", "h2", "h2"]
    assert [frame.carried for frame in course_frames] == [{("h1", "c"): 10}, {("h2", "c"): 11}, {("h1", "c"): 7}]
    stays = [(stay.begin_s, stay.until_s, stay.host) for stay in timeline(course).stays if stay.node == "a"]
    assert stays == [(0.0, 9.0, "h1"), (10.0, 49.0, "h2"), (50.0, 100.0, "h1")]


@given(st.integers(1, 60), st.integers(2, 10))
def test_a_few_chosen_frames_include_the_first_the_last_and_every_move(count: int, most: int) -> None:
    all_frames = [Frame(float(i), float(i + 1), {}, (f"n{i}",) if i else ()) for i in range(count)]
    chosen = choose(all_frames, most)
    assert len(chosen) == min(count, most)
    assert (chosen[0].at_s, chosen[-1].at_s) == (0.0, count - 1)
    assert [node for frame in chosen for node in frame.moved] == [f"n{i}" for i in range(1, count)]


def numbers(text: str, names: Sequence[str]) -> list[float]:
    return [float(value) for name in names for value in re.findall(rf' {name}="(-?[\d.]+)"', text)]


@pytest.mark.parametrize("servers", [1, 8, 33, 120])
@pytest.mark.parametrize("everything_at_client", [True, False])
def test_drawings_stay_within_the_frame(servers: int, everything_at_client: bool) -> None:
    hosts = [f"h{i}" for i in range(1, servers + 1)]
    start = {f"source@{host}": host for host in hosts} | {"sink": "client"}
    start |= {f"op{i}": "client" if everything_at_client else hosts[0] for i in range(servers - 1)}
    transfers = [(1.0, Link(host, "client"), 1000) for host in hosts]
    inputs = {
        f"op{i}": [f"source@{hosts[i]}", f"op{i - 1}" if i else f"source@{hosts[-1]}"] for i in range(servers - 1)
    }
    inputs["sink"] = [f"op{servers - 2}" if servers > 1 else "source@h1"]
    course = Course("global", start, [], 10.0, transfers, inputs=inputs)
    (frame,) = frames(course)
    drawing = Drawing(course, [frame], hosts, host_colours([course], hosts))
    text = drawing.svg(frame)
    assert Checker(text).wrong == []
    points = [float(value) for path in re.findall(r' d="([^"]+)"', text) for value in re.findall(r"-?[\d.]+", path)]
    points += numbers(text, ["x", "y", "cx", "cy"])
    assert all(0 <= value <= drawing.side for value in points)
    wide = re.findall(r'<rect[^>]* x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', text)
    assert wide
    assert all(float(x) + float(w) <= drawing.side and float(y) + float(h) <= drawing.side for x, y, w, h in wide)
    bars = strip(course, {})
    assert Checker(bars).wrong == []
    assert all(0 <= value <= 960 for value in numbers(bars, ["x", "x1", "x2"]))


def test_edges_are_drawn_over_the_networks_and_relays_of_the_transfers() -> None:
    by_h2 = Link("h1", "h2", "fast"), Link("h2", "c", "fast")
    transfers = [(1.0, link, 1000) for link in (*by_h2, Link("h3", "c"), Link("h3", "c", "fast"))]
    start = {"s1": "h1", "s3": "h3", "o": "c", "sink": "c"}
    course = Course(
        "one", start, [], 10.0, transfers, inputs={"o": ["s1", "s3"], "sink": ["o"]}, relayed=frozenset({("h1", "c")})
    )
    drawn = drawings(course, ["h1", "h2", "h3"], {})
    assert drawn.count('class="edge other"') == 3 and drawn.count('class="edge"') == 1
    assert re.findall(r"<title>(\w+ → [^:]+): ", drawn) == [link.text for _, link, _ in transfers]
    assert 'class="tree"' not in drawn  # nothing that was sent another way looks as if nothing had been
    assert "Dashed: over fast." in drawn
    ended = shown(course, {("s1", "c"): 9, ("s3", "c"): 8}, {("s1", "c"): ["fast by h2"], ("s3", "c"): ["net", "fast"]})
    assert ended.over == {("s1", "o"): ("fast by h2",), ("s3", "o"): ("net", "fast")}
    labels = [text.get_text() for text in graph_figure(ended, "one", {}).axes[0].texts]
    assert {"9 B\nfast by h2", "8 B\nnet\nfast"} <= {*labels}


def test_dots_have_numbers_and_hosts_have_colours() -> None:
    assert short_names(["op0", "op10"]) == {"op0": "0", "op10": "10"}
    assert short_names(["join", "op1"]) == {"join": "1", "op1": "2"}
    still = Course("one-shot", {"op0": "h1", "sink": "c"}, [], 1.0, [])
    moving = Course("global", {"op0": "h9", "sink": "c"}, [move("op0", "h9", "h2", 0.1, 0.2)], 1.0, [])
    tints = host_colours([still, moving], ["h3"])
    assert list(tints) == ["h2", "h9", "h1", "h3", "c"]
    assert len(set(tints.values())) == 5


@given(st.floats(1e-3, 1e6))
def test_ticks_are_round_few_and_inside(end: float) -> None:
    positions = ticks(end)
    assert positions[0] == 0
    assert positions[-1] <= end * (1 + 1e-6)
    assert 3 <= len(positions) <= 8


def test_an_empty_page_is_well_formed() -> None:
    assert Checker(render("page.html", title="<a>")).wrong == []


def test_every_tree_is_drawn_with_the_edges_of_the_tree() -> None:
    hosts = ("h1", "h2", "h3", "h4")
    sources = {host: f"source@{host}" for host in hosts}
    start = {name: host for host, name in sources.items()} | {"sink": "client"}
    start |= {"op0": "h1", "op1": "h3", "op2": "client"}
    before = (
        ("op0", [sources["h1"], sources["h2"]], "h1"),
        ("op1", [sources["h3"], sources["h4"]], "h3"),
        ("op2", ["op0", "op1"], "client"),
        ("sink", ["op2"], "client"),
    )
    after = (
        before[0],
        ("op1~1", ["op0", sources["h3"]], "h2"),
        ("op2~1", ["op1~1", sources["h4"]], "h4"),
        ("sink", ["op2~1"], "client"),
    )
    changes = [
        TreeChange("thalweg", at_s, at_s - 2.0, 2.0, outcome, "a better plan", "", tree)
        for at_s, outcome, tree in ((40.0, "reshaped", after), (60.0, "stayed", before), (80.0, "reshaped", before))
    ]
    course = Course(
        "thalweg", start, [], 100.0, [], inputs={name: inputs for name, inputs, _ in before}, changes=changes
    )
    course_frames = frames(course)
    assert [(frame.at_s, frame.until_s, frame.changes) for frame in course_frames] == [
        (0.0, 40.0, 0), (40.0, 80.0, 1), (80.0, 100.0, 1),
    ]  # fmt: skip
    assert set(course_frames[1].placement) == {*sources.values(), "op0", "op1~1", "op2~1", "sink"}
    assert course_frames[1].moved == ("op1~1", "op2~1")
    assert course_frames[2].placement == start
    drawing = Drawing(course, course_frames, hosts, {})
    dashed = [drawing.svg(frame).count('class="tree"') for frame in course_frames]
    assert dashed == [4, 5, 4]  # with h2 > h1 and h1 > h2 in the second
    assert drawing.caption(course_frames[1]) == "40.0 to 80.0 s: another tree"
    assert drawing.caption(choose(course_frames, 2)[1]) == "80.0 to 100 s: the tree changed 2 times"
    bars = strip(course, {})
    assert bars.count('class="turn"') == 2
    for text in (bars, drawings(course, hosts, {})):
        assert Checker(text).wrong == []

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from thalweg.experiments.faults.graphs import draw_graph
from thalweg.experiments.records.records import load_run
from thalweg.experiments.views import plots
from thalweg.experiments.views.graph import KEY, graph_figure, places, shown
from thalweg.experiments.views.plots import BUCKETS, RunSeries, colour, plot_run
from thalweg.experiments.views.stripes import carried_figure, read_carried
from thalweg.experiments.views.style import new_figure, styled
from thalweg.experiments.views.timelines import CLIENT_COLOUR, HOST_COLOURS, host_colours, read_courses, timeline
from thalweg.middleware.errors import RunError


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e9)), min_size=1, max_size=50))
def test_thinning_keeps_the_mean_and_bounds_the_points(samples: list[tuple[float, float]]) -> None:
    t_s, (means,) = plots.thinned(samples, 100.0)
    assert 1 <= len(t_s) == len(means) <= BUCKETS
    assert np.all(np.diff(t_s) > 0)
    weights, _ = np.histogram([at_s for at_s, _ in samples], BUCKETS, (0, 100))
    expected = np.mean([value for _, value in samples])
    assert np.average(means, weights=weights[weights > 0]) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_the_series_of_a_run_hold_the_busiest_links_loads_and_arrivals(new_run: Any) -> None:
    """Only the eight busiest links are kept, busiest first, with emulated rates. Arrivals are in order of time."""
    run = new_run(images=3, time_scale=10.0)
    run.placements = ["one-shot"]
    run.deliver("one-shot", [(10.0, 0), (30.0, 2), (20.0, 1)])
    for i in range(12):
        for t in (10.0, 20.0):
            detail = {"asked_bps": 4e6, "backlogged": True}
            run.add(t, f"h{i}", "link", "one-shot", peer="client", value=1e5 * (i + 1), detail=detail)
    run.add(20.0, "h0", "link", "one-shot", peer="h1", value=10.0, detail={"asked_bps": 4e6})
    run.add(5.0, "h1", "host_load", "one-shot", value=0.5, size_bytes=7)
    run.add(6.0, "h1", "host_load", "one-shot", value=0.1, size_bytes=9)
    folder = run.write()
    series = RunSeries(folder, load_run(folder))
    assert series.arrivals_s["one-shot"].tolist() == [10.0, 20.0, 30.0]
    assert list(series.links["one-shot"]) == [(f"h{i}", "client") for i in range(11, 3, -1)]
    t_s, (asked, got) = plots.thinned(series.links["one-shot"][("h11", "client")], 30.0)
    assert t_s == pytest.approx([10.0, 20.0], abs=30 / BUCKETS)
    assert asked.tolist() == [4e5, 4e5]
    assert got == pytest.approx([1.2e5, 1.2e5])
    assert series.load["one-shot"]["h1"] == [(0.5, 7), (0.1, 9)]


def test_a_run_is_drawn_as_arrivals_intervals_links_and_hosts(new_run: Any) -> None:
    run = new_run()
    run.flow("download-all", 24.0)
    run.flow("a/b: c", 14.0)
    folder = run.write()
    paths = plot_run(folder, load_run(folder))
    names = ["arrivals", "interarrival", "links-download-all", "links-a_b__c", "hosts"]
    assert paths == [folder / "plots" / f"{name}.png" for name in names]
    for path in paths:
        with Image.open(path) as image:
            colours = {pixel for _, pixel in image.convert("RGB").getcolors(1 << 24)}
            assert image.width > 800
            assert image.height > 400
        if "download-all" not in path.name:
            assert {(0xD5, 0x5E, 0x00)} & colours or path.name.startswith("links"), path
    assert colour(["x", "y"], "y") == "#D55E00"


def test_the_picture_of_stripes_shows_the_share_of_every_tree(new_run: Any) -> None:
    """Every tree has a line with its share of the kept partitions.

    A partition that came in vain has a hollow dot. A placement with one tree has no picture.
    """
    run = new_run(images=4)
    run.placements = ["thalweg", "one-shot"]
    for name in run.placements:
        run.deliver(name, [(10.0 * i, i) for i in range(4)])
    for index, tree, kept in ((0, 0, True), (1, 3, True), (2, 0, True), (2, 3, False), (3, 0, True)):
        run.add(10.0, "client", "carried", "thalweg", index=index, detail={"stripe": tree, "kept": kept})
    folder = run.write()
    carried = read_carried(folder)
    assert list(carried) == ["thalweg"]
    assert [(item.index, item.stripe) for item in carried["thalweg"] if not item.kept] == [(2, 3)]
    assert folder / "plots" / "stripes.png" in plot_run(folder, load_run(folder))
    with styled():
        (axes,) = carried_figure(carried, new_figure).axes
        assert [item.get_text() for item in axes.get_yticklabels()] == ["tree 0: 75%", "tree 3: 25%"]
        dots = [len(item.get_offsets()) for item in axes.collections]
        assert dots == [3, 0, 1, 1]


def test_the_picture_of_a_graph_names_nodes_hosts_moves_and_bytes(new_run: Any) -> None:
    """The graph has two sinks and fan-out.

    A node has the name of its host, a moved node has both hosts, and an edge has its bytes.
    """
    run = new_run(images=2)
    run.placements = ["a graph"]
    inputs = {"seen": ["cam"], "joint": ["seen", "far"], "alarms": ["joint"], "archive": ["cam", "joint"]}
    at = {"cam": "h1", "far": "h2", "seen": "h1", "joint": "h2", "alarms": "client", "archive": "client"}
    run.add(0.0, "client", "placed", "a graph", detail={"placement": at, "inputs": inputs})
    for node, host, peer in (("seen", "h1", "h2"), ("joint", "h2", "client"), ("cam", "h1", "client")):
        run.add(3.0, host, "transfer", "a graph", peer=peer, node=node, size_bytes=2_500_000)
    run.move("a graph", "joint", "h2", "h3", 20.0, pause=4.0, version=1)
    run.deliver("a graph", [(50.0, 0), (100.0, 1)])
    folder = run.write()
    assert "graph-a_graph.png" in [path.name for path in plot_run(folder, load_run(folder))]
    series = RunSeries(folder, load_run(folder))
    course = series.all_courses["a graph"]
    assert (course.operators, course.client, course.sinks) == (["joint", "seen"], "client", ["alarms", "archive"])
    drawn = shown(course, series.sent["a graph"])
    assert {edge: size for edge, size in drawn.carried.items() if size} == {
        ("seen", "joint"): 2_500_000, ("cam", "archive"): 2_500_000,
        ("joint", "alarms"): 1_250_000, ("joint", "archive"): 1_250_000,
    }  # fmt: skip
    texts = [text.get_text() for text in graph_figure(drawn, "a", host_colours([course])).axes[0].texts]
    sizes = ["2.5 MB", "2.5 MB", "1.2 MB", "1.2 MB"]
    assert sorted(texts) == sorted([*at, "h1", "h1", "h2", "h2 → h3", "client", "client", *sizes, KEY])


@given(st.randoms(use_true_random=False))
def test_graphs_are_drawn_in_layers_and_no_edge_runs_through_a_node(dice: Any) -> None:
    flow = draw_graph(dice, ["h1", "client"], "client")
    at, lines = places({node.name: node.inputs for node in flow.nodes})
    assert set(at) == set(flow.by_name)
    assert set(lines) == set(flow.edges)
    assert {name for name, (x, _) in at.items() if x == max(x for x, _ in at.values())} >= set(flow.sinks)
    around = [(name, x, y) for name, (x, y) in at.items()]
    for i, (_, x, y) in enumerate(around):
        assert all(abs(x - x1) > 0.9 or abs(y - y1) > 0.9 for _, x1, y1 in around[:i])
    for (producer, consumer), line in lines.items():
        assert (line[0], line[-1]) == (at[producer], at[consumer])
        assert np.diff([x for x, _ in line]) == pytest.approx(1.0)
        for x, y in line[1:-1]:
            assert all(abs(x - x1) > 0.9 or abs(y - y1) > 0.9 for _, x1, y1 in around)


def test_the_timeline_of_operators_ends_with_the_last_image_and_marks_the_scenario(new_run: Any) -> None:
    """The picture has the timeline of a report. The host loads and the scenario go on after the last image."""
    run = new_run(images=3)
    run.placements = ["global"]
    run.deliver("global", [(100.0, 0), (200.0, 1), (380.0, 2)])
    run.move("global", "op0", "h1", "h2", 150.0)
    run.add(600.0, "h1", "host_load", "global", value=0.5, size_bytes=7)
    run.add(300.0, "h3", "scenario", "global", detail={"scenario": "collapse", "at_s": 60.0, "until_s": 7260.0})
    folder = run.write()
    info = load_run(folder)
    drawn = timeline(read_courses(folder, info)["global"])
    assert drawn.end_s == 380.0
    assert [(turn.at_s, turn.kind, turn.what) for turn in drawn.turns] == [(60.0, "mark", "collapse of h3")]
    figure = plots._moves(RunSeries(folder, info))
    axes = figure.axes[-1]
    assert axes.get_xlim() == pytest.approx((0, 380 / 60))
    assert [text.get_text() for text in axes.texts if text.get_text() not in ("h1", "h2")] == ["collapse of h3"]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [1.0]


def test_the_label_of_all_images_hides_no_line(new_run: Any) -> None:
    run = new_run(images=24)
    run.placements = ["thalweg"]
    run.deliver("thalweg", [(float(i), i) for i in range(24)])
    folder = run.write()
    info = load_run(folder)
    figure = plots._arrivals(RunSeries(folder, info), info)
    figure.canvas.draw()
    (axes,) = figure.axes
    (label,) = axes.texts
    lowest, _ = axes.transData.inverted().transform(label.get_window_extent().min)[::-1]
    assert lowest > 24
    assert label.get_window_extent().y1 < axes.get_window_extent().y1


@pytest.mark.long
def test_the_picture_of_moves_has_the_colours_of_all_hosts(new_run: Any) -> None:
    """Every host has its colour of the legend. A placement with many moves is drawn too."""
    run = new_run(images=40)
    run.flow("one-shot", 14.0, link_rows=16)
    run.adapt("global", 12)
    run.adapt("random-moves", 150)
    folder = run.write()
    paths = plot_run(folder, load_run(folder))
    assert [path.name for path in paths[-2:]] == ["moves.png", "estimates.png"]
    with Image.open(paths[-2]) as image:
        colours = {"#{:02X}{:02X}{:02X}".format(*pixel) for _, pixel in image.convert("RGB").getcolors(1 << 24)}
    assert {*HOST_COLOURS[:8], CLIENT_COLOUR} <= colours


def test_the_timeline_shows_the_host_of_every_operator_over_time(new_run: Any) -> None:
    """An operator leaves its host at the suspension, and is at the next host from the settlement on."""
    run = new_run(images=2)
    run.placements = ["global"]
    run.add(
        0.0,
        "client",
        "placed",
        "global",
        detail={"placement": {"op0": "h1", "op1": "h1", "source@h1": "h1", "sink": "client"}},
    )
    run.deliver("global", [(50.0, 0), (100.0, 1)])
    run.move("global", "op0", "h1", "h2", 20.0, pause=4.0, version=1)
    run.move("global", "op0", "h2", "h3", 60.0, pause=2.0, version=2, protocol="epoch")
    run.stay("global", "op0", "h3", "h1", 80.0, "no room", version=3)
    run.move("global", "op2", "h4", "h1", 90.0, version=1)
    folder = run.write()
    drawn = timeline(read_courses(folder, load_run(folder))["global"])
    assert drawn.rows == ["op0", "op1", "op2"]  # the others are pinned
    assert [(stay.node, stay.begin_s, stay.until_s, stay.host) for stay in drawn.stays] == [
        ("op0", 0.0, 20.0, "h1"), ("op0", 24.0, 60.0, "h2"), ("op0", 62.0, 100.0, "h3"),
        ("op1", 0.0, 100.0, "h1"),
        ("op2", 0.0, 90.0, "h4"), ("op2", 94.0, 100.0, "h1"),
    ]  # fmt: skip
    assert [(mark.at_s, mark.kind) for mark in drawn.marks if mark.row == 0] == [
        (20.0, "barrier"), (60.0, "epoch"), (80.0, "stayed"),
    ]  # fmt: skip


@given(st.integers(0, 20_000))
def test_sampling_bounds_the_points_and_keeps_equal_spacing(points: int) -> None:
    sampled = [i for i, _ in plots.at_most([(float(i), 0.0) for i in range(points)])]
    assert min(points, plots.POINTS // 2) <= len(sampled) <= plots.POINTS
    assert sampled == [float(i) for i in range(0, points, int(sampled[1]) if len(sampled) > 1 else 1)]


def test_every_figure_has_units_and_every_axis_has_a_label(new_run: Any) -> None:
    run = new_run()
    run.flow("one-shot", 14.0)
    run.adapt("local", 10)
    folder = run.write()
    info = load_run(folder)
    for name, figure in plots._figures(RunSeries(folder, info), info):
        labels = [figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)]
        assert any(unit in " ".join(labels) for unit in ("(min)", "(emulated s", "%", "(MB)", "Mbit/s")), name
        for axes in figure.axes:
            shared = name.startswith("links") or (name == "moves" and axes is not figure.axes[-1])
            if axes.get_visible() and not shared:
                assert axes.get_xlabel(), name


def test_a_run_without_records_has_no_pictures(new_run: Any) -> None:
    run = new_run()
    run.add(0.0, "client", "proof", peer="h1", value=1.0)
    folder = run.write()
    assert plot_run(folder, load_run(folder)) == []


def test_a_single_delivery_is_drawn_and_an_early_stop_draws_nothing(new_run: Any) -> None:
    run = new_run(images=1)
    run.deliver("one-shot", [(10.0, 0)])
    folder = run.write()
    stop = Event()
    stop.set()
    assert plot_run(folder, load_run(folder), stop) == []
    assert [path.name for path in plot_run(folder, load_run(folder))] == ["arrivals.png"]


def test_a_folder_that_cannot_be_written_is_reported(new_run: Any) -> None:
    run = new_run(images=1)
    run.deliver("one-shot", [(10.0, 0)])
    folder: Path = run.write()
    (folder / "plots").write_text("in the way")
    with pytest.raises(RunError, match="plots cannot be written"):
        plot_run(folder, load_run(folder))

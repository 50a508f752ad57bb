"""Picture of a dataflow on its hosts: layers of nodes with the sinks at the right, and every node at its last host.

networkx computes the layers and the places in the layers. An edge that passes a layer has a place there, so no edge
runs through a node. Layers are ordered by the places of neighbours (Sugiyama, Tagawa, Toda, 1981, section 3).
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.emulation.links.units import format_size
from thalweg.experiments.command import clipped
from thalweg.experiments.views.timelines import CLIENT_COLOUR, Course, readable_on, timeline
from thalweg.middleware.dataflow import Edge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT = "#333333", "#8a96a3"
WIDE, HIGH = 0.6, 0.62  # width and height of a node's box, as shares of its layer and row
LAYER_INCH, ROW_INCH, TALLEST_INCH = 2.0, 0.62, 24.0
ONE_LINE = 0.6  # share of the usual height of a row; in lower rows name and host share a line
LABELLED = 60  # most edges with labels; among more, only the width shows the bytes
SWEEPS = 8  # number of sweeps over the layers that order the nodes
KEY = "Arrows: bytes over links; dashed: on one host. Strong rim: the operator moved."

Point = tuple[float, float]


class Shown(msgspec.Struct, frozen=True):
    """Dataflow at its end: the inputs of every node, its hosts in order, and the bytes of every edge.

    ``over``: networks and relays of the bytes, if these are several.
    """

    inputs: dict[str, list[str]]
    hosts: dict[str, list[str]]
    carried: dict[Edge, int] = {}
    over: dict[Edge, tuple[str, ...]] = {}


def shown(
    course: Course, sent: Mapping[tuple[str, str], int], over: Mapping[tuple[str, str], Sequence[str]] = {}
) -> Shown:
    """Return the dataflow of a placement at its end.

    ``sent``: bytes that nodes sent to other hosts. ``over``: networks and relays of these bytes. Bytes for several
    consumers on one host count for every consumer in equal parts.
    """
    inputs = course.changed[-1].inputs if course.changed else course.inputs
    producers: dict[str, list[str]] = {name: [] for names in inputs.values() for name in names if name not in inputs}
    hosts = {name: [course.start[name]] for name in (*producers, *inputs) if name in course.start}
    for stay in timeline(course).stays:
        hosts.setdefault(stay.node, [])
        if hosts[stay.node][-1:] != [stay.host]:
            hosts[stay.node].append(stay.host)
    whole: dict[str, list[str]] = {**producers, **inputs}
    edges = [Edge(producer, name) for name, feeding in whole.items() for producer in feeding]
    carried, by = dict.fromkeys(edges, 0), defaultdict[Edge, dict[str, None]](dict)
    for (node, host), size_bytes in sent.items():
        takers = [edge for edge in edges if edge.producer == node and host in hosts.get(edge.consumer, ())]
        for edge in takers:
            carried[edge] += size_bytes // len(takers)
            by[edge] |= dict.fromkeys(over.get((node, host), ()))
    routes = {edge: tuple(names) for edge, names in by.items() if names}
    return Shown(whole, {name: hosts.get(name, ["?"]) for name in whole}, carried, routes)


def places(inputs: Mapping[str, Sequence[str]]) -> tuple[dict[str, Point], dict[Edge, list[Point]]]:
    """Return the places of nodes and the places that edges pass, counted from the left and the top.

    Layers, and rows, are 1 apart.
    """
    import networkx as nx

    graph = nx.DiGraph((producer, name) for name, producers in inputs.items() for producer in producers)
    layers = [list(layer) for layer in nx.topological_generations(graph.reverse())][::-1]
    layer_of = {name: number for number, layer in enumerate(layers) for name in layer}
    ways: dict[Edge, list[Any]] = {}
    for producer, name in list(graph.edges):
        passed = [(producer, number) for number in range(layer_of[producer] + 1, layer_of[name])]
        ways[Edge(producer, name)] = way = [producer, *passed, name]
        graph.remove_edge(producer, name)
        nx.add_path(graph, way)
        for place in passed:
            if place not in layers[place[1]]:
                layers[place[1]].append(place)
    for sweep in range(SWEEPS):
        ahead = sweep % 2 == 0
        for layer, following in itertools.pairwise(layers if ahead else layers[::-1]):
            _order(layer, following, graph.pred if ahead else graph.succ)
    at = _points(graph, layers)
    return {name: at[name] for name in inputs}, {edge: [at[place] for place in way] for edge, way in ways.items()}


def _points(graph: Any, layers: Sequence[Sequence[Any]]) -> dict[Any, Point]:
    """Return the places of nodes, with layers and rows apart by 1."""
    import networkx as nx

    layout = nx.multipartite_layout(graph, subset_key=dict(enumerate(layers)))
    left, right = min(x for x, _ in layout.values()), max(x for x, _ in layout.values())
    step, tallest = (right - left) / (len(layers) - 1), max(map(len, layers))
    return {name: ((layout[name][0] - left) / step, layout[name][1] / step * tallest / len(layer))
            for layer in layers for name in layer}  # fmt: skip


def _order(layer: list[Any], following: list[Any], near: Mapping[Any, Collection[Any]]) -> None:
    """Order the layer that follows by the mean row of every node's neighbours in ``layer``."""
    row = {name: (number + 0.5) / len(layer) for number, name in enumerate(layer)}
    own = {name: (number + 0.5) / len(following) for number, name in enumerate(following)}
    following.sort(key=lambda name: statistics.fmean([row[neighbour] for neighbour in near[name]] or [own[name]]))


def graph_figure(drawn: Shown, title: str, tints: Mapping[str, str]) -> Figure:
    """Return the figure of a dataflow. ``tints``: the hosts' colours."""
    from matplotlib.figure import Figure

    at, ways = places(drawn.inputs)
    columns = 1 + round(max(x for x, _ in at.values()))
    rows = 2 * max(0.5, *(abs(y) + 0.5 for _, y in at.values()))
    high_inch = min(ROW_INCH * rows, TALLEST_INCH)
    figure = Figure((LAYER_INCH * columns + 0.3, high_inch + 0.75), layout="constrained")
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows / 2 + 0.05, -rows / 2 - 0.05))
    axes.set_title(title, loc="left")
    key = KEY + " Below bytes: what they went over, most over the first." * bool(drawn.over)
    axes.text(0, -2 / 72 / high_inch, key, transform=axes.transAxes, va="top", fontsize=8, color="#666666")
    scale = high_inch / rows / ROW_INCH  # below 1 if rows are lower than usual
    busiest = max(drawn.carried.values(), default=0)
    for edge, way in ways.items():
        local = drawn.hosts[edge.producer][-1] == drawn.hosts[edge.consumer][-1]
        carried, label = drawn.carried.get(edge, 0), ""
        if carried and len(ways) <= LABELLED:
            label = "\n".join([format_size(carried), *drawn.over.get(edge, ())])
        _draw_edge(axes, way, carried, busiest, label, local=local)
    for name, (x, y) in at.items():
        _draw_node(axes, (x, y), name, drawn.hosts[name], tints, scale)
    return figure


def _draw_edge(axes: Axes, way: Sequence[Point], carried: int, busiest: int, label: str, *, local: bool) -> None:
    """Draw a line from box to box, through the edge's places in the layers between."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    points, codes = [(way[0][0] + WIDE / 2, way[0][1])], [Path.MOVETO]
    for (x0, y0), (x1, y1) in itertools.pairwise(way):
        first, last = (x0, y0) == way[0], (x1, y1) == way[-1]
        begin, end = x0 + (WIDE / 2 if first else 0.2), x1 - (WIDE / 2 if last else 0.2)
        if not first:
            points.append((begin, y0))
            codes.append(Path.LINETO)
        points += [((begin + end) / 2, y0), ((begin + end) / 2, y1), (end, y1)]
        codes += [Path.CURVE4] * 3
    carries = carried > 0
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points, codes), arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0,
            color=INK if carries else SOFT, linewidth=0.8 + 1.8 * carried / busiest if carries else 0.9,
            linestyle="--" if local and not carries else "-", zorder=1.5 if carries else 1,
        )
    )  # fmt: skip
    if label:
        (x0, y0), (x1, y1) = way[-2:]
        begin, end = x0 + (WIDE / 2 if len(way) == 2 else 0.2), x1 - WIDE / 2
        axes.text(
            begin + (end - begin) * 0.52, y0 + (y1 - y0) * 0.56, label, fontsize=7, ha="center", va="center",
            color=INK, zorder=2, bbox={"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"},
        )  # fmt: skip


def _draw_node(axes: Axes, at: Point, name: str, hosts: Sequence[str], tints: Mapping[str, str], scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    (x, y), tint, moved = at, tints.get(hosts[-1], CLIENT_COLOUR), len(hosts) > 1
    aspect = LAYER_INCH / (ROW_INCH * scale)
    box = FancyBboxPatch(
        (x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, boxstyle=f"round,pad=0,rounding_size={min(0.06, 0.3 / aspect)}",
        mutation_aspect=aspect, facecolor=tint, zorder=3,
        edgecolor="black" if moved else "#777777", linewidth=2.2 if moved else 0.6,
    )  # fmt: skip
    axes.add_patch(box)
    way = f"{hosts[0]} → {hosts[-1]}" if len(hosts) == 2 else f"{hosts[0]} → … → {hosts[-1]}" if moved else hosts[0]
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": readable_on(tint), "zorder": 4}
    if scale < ONE_LINE:
        axes.text(x, y, clipped(f"{name}  {way}", 22), fontsize=7, **style)
        return
    axes.text(x, y - 0.13, clipped(name, 15), fontsize=9 * scale, fontweight="bold", **style)
    axes.text(x, y + 0.15, clipped(way, 20), fontsize=7.5 * scale, **style)

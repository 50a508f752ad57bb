"""Trees below operators with state: the trees are planned alone, and those operators are at the client."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest

from tests.middleware.planning.test_mixture import HOSTS, INDEPENDENT, make_task
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.view import LinkEstimate, NetworkView, links_between
from thalweg.middleware.planning import OneShot, Period, Plan, Task, Thalweg
from thalweg.middleware.planning.planners.below import Below
from thalweg.middleware.protocol.split_graph import split_graph


def topped(task: Task) -> Task:
    """Return the task with a further operator between tree and sink. Its name is one that planners would choose."""
    flow = task.dataflow
    nodes = [node for node in flow.nodes if node.kind != "sink"]
    root = flow.by_name["sink"].inputs[0]
    above = [Node("op0~x", "operator", (root,), Code("state")), Node("sink", "sink", ("op0~x",), None, "client")]
    hints = task.hints
    more = {"output_bytes": {**hints.output_bytes, "op0~x": hints.output_bytes[root]}}
    return task.but(dataflows=(Dataflow((*nodes, *above)),), hints=msgspec.structs.replace(hints, **more))


def below(
    planner: Thalweg | OneShot, task: Task, stripes: int | Literal["auto"], above: tuple[str, ...] = ("op0~x",)
) -> Plan:
    parts = split_graph(task.dataflow, above, "client")
    return Below(planner, parts, stripes).plan(task, INDEPENDENT)


def test_the_trees_below_an_upper_graph_are_as_good_as_trees_planned_alone() -> None:
    task = make_task()
    plan, alone = below(Thalweg(stripes=4), topped(task), 4), Thalweg(stripes=4).plan(task, INDEPENDENT)
    assert len(plan.beside) == 3
    assert plan.cost_s == pytest.approx(alone.cost_s, rel=0.05)
    for each in (plan, *plan.beside):
        each.dataflow.validate(HOSTS)
        assert each.placement["op0~x"] == "client"
        assert each.placement.keys() == each.dataflow.by_name.keys()
        assert each.hints is not None
        assert "op0~x" not in each.hints.output_bytes


def test_new_names_in_trees_differ_from_the_names_in_the_upper_graph() -> None:
    task = topped(make_task())
    renamed = [
        msgspec.structs.replace(
            node,
            name="op3" if node.name == "op0~x" else "other" if node.name == "op3" else node.name,
            inputs=tuple("op3" if n == "op0~x" else "other" if n == "op3" else n for n in node.inputs),
        )
        for node in task.dataflow.nodes
    ]
    sizes = {**task.hints.output_bytes, "other": 1e5}
    hints = msgspec.structs.replace(task.hints, output_bytes=sizes, reorderable={
        "other" if name == "op3" else name: each for name, each in task.hints.reorderable.items()
    })  # fmt: skip
    plan = below(Thalweg(stripes=2), task.but(dataflows=(Dataflow(tuple(renamed)),), hints=hints), 2, ("op3",))
    for each in (plan, *plan.beside):
        each.dataflow.validate(HOSTS)
        assert each.dataflow.by_name["op3"].code == Code("state")


def test_a_planner_of_a_single_tree_gives_every_stripe_the_same_placement() -> None:
    plan = below(OneShot(), topped(make_task()), 3)
    assert [each.placement for each in plan.beside] == [plan.placement] * 2
    assert [each.share for each in (plan, *plan.beside)] == [1 / 3] * 3


def test_auto_gives_a_single_tree_if_several_trees_save_too_little() -> None:
    """All data from below would have to pass the client's single interface, which is by far the slowest."""
    task = topped(make_task())
    assert below(Thalweg(stripes="auto"), task, "auto").beside
    rates = {link: LinkEstimate(1e4 if "client" in link else 1e7) for link in links_between(HOSTS)}
    narrow = task.but(view=NetworkView(rates))
    parts = split_graph(narrow.dataflow, ["op0~x"], "client")
    plan = Below(Thalweg(stripes="auto"), parts, "auto").plan(narrow, Period())
    assert plan == Thalweg().plan(narrow, Period())
    assert not plan.beside


def test_auto_gives_a_single_tree_if_only_sources_are_below_the_upper_graph() -> None:
    task = topped(make_task())
    everything = below(Thalweg(stripes="auto"), task, "auto", tuple(task.dataflow.operators))
    assert not everything.beside, "only sources would be below"
    assert math.isfinite(everything.cost_s)

"""Replanning while partitions flow, end to end on loopback, with invented estimates of links."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.replanning import Replanner
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree, sinks_at, star_tree
from thalweg.middleware.network.view import Link, LinkEstimate
from thalweg.middleware.planning import Thalweg
from thalweg.middleware.planning.shapes.host_tree import host_tree
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves

HOSTS = ("h1", "h2", "h3")
SOURCES = blocks(HOSTS, sizes=[600])
LARGEST = Code("runtime_codes:Largest")
SOON = GlobalMoves(0.1, gain=0.05, horizon_s=300.0)
PATIENCE = 20_000  # partitions


def made_up(slow: Collection[Link]) -> dict[Link, LinkEstimate]:
    """Return estimates of all links as fast as loopback. The ``slow`` links are a thousand times slower."""
    ends = (*HOSTS, "client")
    return {(a, b): LinkEstimate(2e5 if (a, b) in slow else 2e8) for a in ends for b in ends if a != b}


def topped() -> Dataflow:
    """Return a reorderable combination of all sources below an operator with state."""
    nodes = star_tree(SOURCES, LARGEST).nodes[:-1]
    return Dataflow((*nodes, Node("p", "operator", ("op0",), Code("running")), Node("sink", "sink", ("p",)))).validate()


def take(run: Run, values: list[Any], count: int) -> None:
    for _ in range(count):
        delivered = next(run)
        assert delivered.index == len(values)
        values.append(delivered.value)


def test_a_tree_over_a_slow_link_is_replaced_between_two_partitions(cluster: LocalCluster) -> None:
    flow, values = star_tree(SOURCES, LARGEST), list[Any]()
    with (
        Client(cluster, allow=ALLOW) as client,
        client.run(
            flow,
            {"op0": "h1"},
            adaptation=SOON,
            planning=Planning(planner=Thalweg(), known=made_up([("h1", "client")])),
        ) as run,
    ):
        while run.tree[0] == flow:
            take(run, values, 1)
            assert len(values) < PATIENCE
        tree = host_tree(*run.tree)
        take(run, values, 20)
    assert tree is not None
    assert tree.parent.keys() == set(HOSTS)
    assert tree.parent["h1"] != "client"
    assert_reference(values, flow, len(values))


@pytest.mark.parametrize("flow", [complete_binary_tree(SOURCES, MIX), topped()], ids=["no-order", "some-orders"])
def test_operators_move_but_the_tree_stays_if_an_operator_is_not_reorderable(
    cluster: LocalCluster, flow: Dataflow
) -> None:
    values: list[Any] = []
    began = dict.fromkeys(flow.operators, "h1")
    (top,) = flow.by_name[flow.sinks[0]].inputs
    with (
        Client(cluster, allow=ALLOW) as client,
        client.run(
            flow, began, adaptation=SOON, planning=Planning(planner=Thalweg(), known=made_up([("h1", "client")]))
        ) as run,
    ):
        while run.placement[top] == "h1":
            take(run, values, 1)
            assert len(values) < PATIENCE
        take(run, values, 20)
        assert run.dataflow == sinks_at(flow, "client")
    assert_reference(values, flow, len(values))


@pytest.mark.long
def test_clients_plan_with_thalweg_by_default_and_record_the_estimates_behind_a_plan(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, path, asked = star_tree(SOURCES, LARGEST), tmp_path / "client.jsonl", list[Any]()
    answer = Replanner.answer

    def answered(search: Replanner, plan: e.RequestPlan) -> e.PlanReady:
        planned = answer(search, plan)
        if not planned.needs:  # otherwise the same check asks it again
            asked.append(plan)
        return planned

    monkeypatch.setattr(Replanner, "answer", answered)
    with Client(cluster, allow=ALLOW, records=path, time_scale=600.0) as client, client.run(flow) as run:
        assert run.search is not None
        assert (run.search.planner, run.search.label) == (Thalweg(), "thalweg")
        began = host_tree(*run.tree)
        values: list[Any] = []
        while len(asked) < 2:  # the first is recorded then: after two minutes of a clock that runs 600 times as fast
            take(run, values, 1)
            assert len(values) < PATIENCE
    assert_reference(values, flow, len(values))
    rows = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    plan = next(row for row in rows if row["kind"] == "plan")
    assert plan["detail"]["planner"] == "thalweg"
    assert began is not None
    used = {f"{host}>{parent}" for host, parent in began.parent.items()}
    links = plan["detail"]["links"]
    assert used <= links.keys()
    assert all(rate > 0 and count > 0 and age_s >= 0 for rate, count, _, age_s, _ in (links[link] for link in used))

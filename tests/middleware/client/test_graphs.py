"""Graphs, end to end: several consumers of a node and several sinks, on real host processes on loopback."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from patience import patience
from runtime_codes import ALLOW, MIX

from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.dataflow import Code, Dataflow, left_deep_tree
from thalweg.middleware.errors import DataflowError, PlacementError, UsageError
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.operators.reference import digest, reference_run


def blocks(site: int, **params: Any) -> Code:
    return Code("runtime_codes:Blocks", {"site": site, **params})


def diamonds(*lengths: int) -> Dataflow:
    """Return a graph of two sources and two diamonds. ``all`` gets the first diamond, ``raw`` a source and both."""
    graph = Dataflow()
    sources = [
        graph.source(blocks(i, **({"length": lengths[i]} if lengths else {})), at=f"h{i + 1}", name=f"s{i}")
        for i in range(2)
    ]
    near, far = graph.operator(MIX, *sources), graph.operator(MIX, sources[0])
    joint = graph.operator(MIX, near, far, sources[0])
    graph.sink("all", joint)
    graph.sink("raw", sources[1], graph.operator(MIX, joint, near))
    return graph


def placed(flow: Dataflow, *hosts: str) -> dict[str, str]:
    return {name: hosts[i % len(hosts)] for i, name in enumerate(flow.operators)}


def told(value: Any) -> Any:
    return [digest(each) for each in value] if isinstance(value, tuple) else digest(value)


def assert_references(got: list[Delivered], flow: Dataflow, partitions: int | None) -> None:
    for sink in flow.sinks:
        mine = [each for each in got if each.sink == sink]
        assert [each.index for each in mine] == list(range(len(mine)))
        assert [told(each.value) for each in mine] == [
            told(value) for value in reference_run(flow, partitions, ALLOW, sink=sink)
        ], sink


@pytest.mark.parametrize("where", [("h2",), ("client",), ("h1", "h2", "h3", "client")], ids="-".join)
def test_every_sink_gets_the_results_of_a_single_process(client: Client, where: tuple[str, ...]) -> None:
    flow = diamonds()
    run = client.run(flow, placed(flow, *where), partitions=20)
    flow.sink("later", "s0")  # of no run that has begun
    got = list(run)
    assert {each.sink: len(each.value) for each in got if isinstance(each.value, tuple)} == {"raw": 2}
    assert_references(got, run.dataflow, 20)
    assert run.dataflow.sinks == ("all", "raw")


def test_operators_of_a_graph_move_while_data_flows(client: Client) -> None:
    flow = diamonds()
    run = client.run(flow, placed(flow, "h1"), partitions=600)
    mover = RandomMover(RandomMoves(12), run, client.hosts)
    got = []
    for each in run:
        got.append(each)
        mover.on_delivered()
    assert mover._moves == 0, "as many have moved as were to"
    assert_references(got, flow, 600)


@pytest.mark.parametrize("lengths", [(5, 9), (9, 5), (0, 3), (3, 0)])
def test_a_sink_ends_with_the_sources_below_the_sink(client: Client, lengths: tuple[int, int]) -> None:
    """Sink ``only`` depends on the second source alone. A node goes on after one of its consumers has ended."""
    flow = diamonds(*lengths)
    flow.sink("only", flow.operator(MIX, "s1"))
    got = list(client.run(flow, placed(flow, "h1", "h2", "h3")))
    assert_references(got, flow, None)
    assert len([each for each in got if each.sink == "only"]) == lengths[1]


def test_every_sink_can_be_consumed_separately_by_threads_and_tasks(client: Client) -> None:
    flow = diamonds()
    run = client.run(flow, placed(flow, "h3", "h1"), partitions=30)

    async def all_of(name: str) -> list[Delivered]:
        return [each async for each in run.sink(name)]

    with ThreadPoolExecutor(2) as pool:
        both = pool.submit(lambda: list(run.sink("all"))), pool.submit(asyncio.run, all_of("raw"))
        got = [each for one in both for each in one.result(patience(20))]
    assert_references(got, flow, 30)
    assert list(run) == []


def test_an_invalid_request_on_a_graph_is_refused_with_a_single_line_error(client: Client) -> None:
    flow = diamonds()
    with client.run(flow, placed(flow, "h1")) as run:
        with pytest.raises(UsageError, match=r"there is no sink 'al'; did you mean 'all'"):
            run.sink("al")
        tree = left_deep_tree({"h1": blocks(0), "h2": blocks(1)}, MIX)
        with pytest.raises(DataflowError, match=r"only trees change their shape, and this is a graph: node 's0' has"):
            run.reshape(tree, {"op0": "h1"})
        with pytest.raises(PlacementError, match="node 'raw' is a sink"):
            run.move({"raw": "client"})
    with pytest.raises(PlacementError, match=r"the sink 'raw' is placed on 'h1'; a sink is always at the client"):
        client.run(flow, {**placed(flow, "h1"), "raw": "h1"})
    flow.sink("there", "s0", at="h1")
    with pytest.raises(UsageError, match=r"sink 'there' is pinned to another host than this client 'client'"):
        client.run(flow, placed(flow, "h1"))
    with pytest.raises(DataflowError, match="sink 'there' and source 'there' have the same name; both are nodes"):
        flow.source(MIX, at="h1", name="there")


@pytest.mark.parametrize("name", ["download-all", "one-shot", "global", "local", "thalweg"])
def test_graphs_can_have_computed_placements(client: Client, name: str) -> None:
    flow = diamonds()
    run: Run = client.run(flow, name, partitions=8)
    assert_references(list(run), flow, 8)

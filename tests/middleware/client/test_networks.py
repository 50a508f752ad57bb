"""Runs over two networks, end to end: host processes that listen on two addresses of loopback."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import complete_binary_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import CostModel, Plan, Task
from thalweg.middleware.protocol.adaptation import GlobalMoves

CHEAP = {"net": Network(Tariff(per_gb=0.09)), "fast": Network(Tariff(per_gb=0.02))}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def cluster(records: Path) -> Iterator[LocalCluster]:
    with LocalCluster(2, allow=ALLOW, records=str(records), transport="tcp", networks=["fast"]) as started:
        yield started
        assert started.poll() == {}, "a host ended during the tests"


class ToAndFro:
    """Leaves all where it is, and has the link to the client go over the one network and the other in turn."""

    def __init__(self) -> None:
        self.plans = 0

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        self.plans += 1
        link = Link("h1", "client")
        other = not (link in task.routes and task.routes[link][0].via == "fast")
        routes = {Link(host, "client"): (Link(host, "client", "fast" if other else "net"),) for host in ("h1", "h2")}
        return Plan(task.current, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0), routes=routes)


def test_edges_change_networks_while_data_flows(cluster: LocalCluster, records: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000,)), MIX)
    planner = ToAndFro()
    with Client(cluster, allow=ALLOW, insecure=True) as client:
        assert client.probe([Link("h1", "h2", "fast")])[Link("h1", "h2", "fast")].rate_bps > 0
        with pytest.raises(UsageError, match="no host is joined to a network 'slow'"):
            client.run(tree, "one-shot", networks={"slow": Network()})
        moves = GlobalMoves(period_s=0.05)
        run = client.run(tree, {"op0": "h1"}, adaptation=moves, planner=planner, networks=CHEAP)
        with run:
            values = []
            while planner.plans < 8 and len(values) < 5000:
                values.append(next(run))
    assert planner.plans >= 8
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))
    over: Counter[str] = Counter()
    for host in ("h1", "h2"):
        for row in map(json.loads, (records / f"{host}.jsonl").read_text().splitlines()):
            if row["kind"] == "transfer" and row["peer"] == "client":
                over[(row.get("detail") or {}).get("via", "net")] += 1
    assert over["fast"] > 0 and over["net"] > 0, over


class ToNewcomer:
    """Moves the operator to the host that came last, and has all that goes to and from there take the other network."""

    def __init__(self) -> None:
        self.joins: list[bool] = []

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        there = "h3" in task.hosts
        self.joins.append(task.networks["fast"].joins("h3", "client"))
        placement = {**task.current, "op0": "h3"} if there else task.current
        links = [Link("h1", "h3"), Link("h2", "h3"), Link("h3", "client")] if there else []
        routes = {link: (Link(*link, "fast"),) for link in links}
        return Plan(placement, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0), routes=routes)


def test_a_host_that_comes_later_is_on_all_its_networks(tmp_path: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000,)), MIX)
    planner = ToNewcomer()
    with (
        LocalCluster(2, allow=ALLOW, records=str(tmp_path), transport="tcp", networks=["fast"]) as cluster,
        Client(cluster, allow=ALLOW, insecure=True) as client,
    ):
        moves = GlobalMoves(period_s=0.05)
        run = client.run(tree, {"op0": "h1"}, adaptation=moves, planner=planner, networks=CHEAP)
        with run:
            values = [next(run) for _ in range(3)]
            client.add_host("h3", cluster.start("h3"))
            assert client.probe([Link("h1", "h3", "fast")])[Link("h1", "h3", "fast")].rate_bps > 0
            while run.placement["op0"] != "h3" and len(values) < 5000:
                values.append(next(run))
            values += [next(run) for _ in range(5)]
        assert cluster.poll() == {}
    assert planner.joins[0] is False and planner.joins[-1] is True
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))
    sent = {
        (host, row["peer"], (row.get("detail") or {}).get("via"))
        for host in ("h1", "h2", "h3")
        for row in map(json.loads, (tmp_path / f"{host}.jsonl").read_text().splitlines())
        if row["kind"] == "transfer"
    }
    assert {("h1", "h3", "fast"), ("h2", "h3", "fast"), ("h3", "client", "fast")} <= sent

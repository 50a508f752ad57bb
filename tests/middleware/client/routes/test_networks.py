"""Runs over two networks, and over relays without nodes of the run: host processes on two addresses of loopback."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from run_records import rows_of_run
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.run_options import Networks, Planning
from thalweg.middleware.dataflow import complete_binary_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import CostModel, Plan, Task
from thalweg.middleware.protocol.adaptation import GlobalMoves

Routes = Mapping[Link, tuple[Link, ...]]
CHEAP = {"net": Network(Tariff(per_gb=0.09)), "fast": Network(Tariff(per_gb=0.02))}
OVER = Link("h1", "h3", "fast"), Link("h3", "h2", "fast"), Link("h2", "client", "fast")
OVER_HOPS = {link.hosts for link in OVER}
RENTED = {pair: 1e9 for link in OVER for pair in (link.hosts, link.back.hosts)}
NETWORKS = {"net": Network(TARIFFS["public"]), "fast": Network(TARIFFS["dedicated"], RENTED)}
LARGE = 1_500_000  # bytes, of several chunks


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def cluster(records: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, allow=ALLOW, records=str(records), transport="tcp", networks=["fast"]) as started:
        yield started
        assert started.poll() == {}, "a host ended during the tests"


class Staying:
    """Planner that moves no operator. Its routes are those that ``choose`` makes of the present routes."""

    def __init__(self, choose: Callable[[Routes], Routes]) -> None:
        self.choose, self.plans = choose, 0

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        self.plans += 1
        routes = self.choose(task.routes)
        return Plan(task.current, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0), routes=routes)


def to_and_fro(routes: Routes) -> Routes:
    """Return the links to the client over either network in turn."""
    link = Link("h1", "client")
    via = "net" if link in routes and routes[link][0].via == "fast" else "fast"
    return {Link(host, "client"): (Link(host, "client", via),) for host in ("h1", "h2")}


def over_and_straight(routes: Routes) -> Routes:
    """Return a route to the client that passes two relays, and a direct route, in turn."""
    link = Link("h1", "client")
    return {link: (link,) if len(routes.get(link, ())) > 1 else OVER}


def rows_of(records: Path, *hosts: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of these hosts."""
    for host in hosts:
        for line in (records / f"{host}.jsonl").read_text().splitlines():
            yield host, json.loads(line)


def test_edges_change_networks_while_data_flows(cluster: LocalCluster, records: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000,)), MIX)
    planner = Staying(to_and_fro)
    with Client(cluster, allow=ALLOW, insecure=True) as client:
        assert client.probe([Link("h1", "h2", "fast")])[Link("h1", "h2", "fast")].rate_bps > 0
        with pytest.raises(UsageError, match="no host is joined to a network 'slow'"):
            client.run(tree, "one-shot", networks={"slow": Network()})
        moves = GlobalMoves(period_s=0.05)
        how = {"adaptation": moves, "planning": Planning(planner=planner), "networks": CHEAP, "label": "to and fro"}
        with client.run(tree, {"op0": "h1"}, **how) as run:
            values = []
            while planner.plans < 8 and len(values) < 5000:
                values.append(next(run))
    assert planner.plans >= 8
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))
    over: Counter[str] = Counter()
    for _, row in rows_of_run(records, "to and fro", "h1", "h2"):
        if row["kind"] == "transfer" and row["peer"] == "client":
            over[(row.get("detail") or {}).get("via", "net")] += 1
    assert over["fast"] > 0 and over["net"] > 0, over


class ToNewcomer:
    """Planner that moves the operator to the newest host, with all edges of the operator over the second network."""

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


def test_a_host_that_joins_later_uses_the_second_network_too(tmp_path: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000,)), MIX)
    planner = ToNewcomer()
    with (
        LocalCluster(2, allow=ALLOW, records=str(tmp_path), transport="tcp", networks=["fast"]) as cluster,
        Client(cluster, allow=ALLOW, insecure=True) as client,
    ):
        moves = GlobalMoves(period_s=0.05)
        run = client.run(tree, {"op0": "h1"}, adaptation=moves, planning=Planning(planner=planner), networks=CHEAP)
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
        for host, row in rows_of(tmp_path, "h1", "h2", "h3")
        if row["kind"] == "transfer"
    }
    assert {("h1", "h3", "fast"), ("h2", "h3", "fast"), ("h3", "client", "fast")} <= sent


def test_routes_with_relays_begin_and_end_while_small_and_large_partitions_flow(
    cluster: LocalCluster, records: Path
) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000, LARGE)), MIX)
    planner = Staying(over_and_straight)
    with Client(cluster, allow=ALLOW, insecure=True) as client:
        moves = GlobalMoves(period_s=0.05)
        how = {"adaptation": moves, "planning": Planning(planner=planner), "networks": NETWORKS, "label": "relayed"}
        with client.run(tree, {"op0": "h1"}, **how) as run:
            values = []
            while (planner.plans < 10 or len(values) < 60) and len(values) < 5000:
                values.append(next(run))
    assert planner.plans >= 10
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))
    ways: Counter[Any] = Counter()
    faults: list[Any] = []
    passed: dict[str, set[tuple[int, int]]] = {"h2": set(), "h3": set()}
    for host, row in rows_of_run(records, "relayed", "h1", "h2", "h3"):
        if row["kind"] == "fault" and not row.get("detail") and (host, row["peer"]) in OVER_HOPS:
            faults.append((host, row))
        elif row["kind"] == "transfer" and row["peer"] == "client":
            ways[tuple((row.get("detail") or {}).get("relays", ()))] += 1
        elif row["kind"] == "relayed" and row["detail"]["source"] == "h1":
            assert row["detail"]["target"] == "client"
            assert row["peer"] == {"h3": "h2", "h2": "client"}[host]
            passed[host].add((row["index"], row["size_bytes"]))
    assert ways["h3", "h2"] > 2 and ways[()] > 2, ways
    assert (
        min(map(len, passed.values())) >= ways["h3", "h2"] - 2
    )  # the relays of the last partitions may not be notified
    assert faults == [], "what relays have to pass on is not refused"
    assert max(size for _, size in passed["h2"]) >= LARGE > 256 * 1024 > min(size for _, size in passed["h2"])


@pytest.mark.long
def test_a_run_leaves_a_dead_relay_without_losing_a_partition(tmp_path: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(LARGE,)), MIX)

    def relayed() -> int:
        rows = rows_of(tmp_path, "h1")
        ways = ((row.get("detail") or {}).get("relays") for _, row in rows if row["kind"] == "transfer")
        return sum(way == ["h3", "h2"] for way in ways)

    limits = {"retry_s": 0.1, "retry_max_s": 0.2}
    doomed = LocalCluster(
        3, allow=ALLOW, records=str(tmp_path), transport="tcp", networks=["fast"], limits=limits
    )  # fmt: skip
    with doomed, Client(doomed, allow=ALLOW, insecure=True) as client:
        moves = GlobalMoves(period_s=0.1)
        run = client.run(
            tree,
            {"op0": "h1"},
            adaptation=moves,
            planning=Planning(planner=Staying(lambda _: {Link("h1", "client"): OVER})),
            networks=NETWORKS,
        )
        with run:
            values = [next(run)]
            while relayed() < 3 and len(values) < 5000:
                values.append(next(run))
            doomed.kill("h3")
            values += [next(run) for _ in range(20)]
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))


@pytest.mark.long
def test_a_resumed_run_uses_the_same_networks_again(cluster: LocalCluster, records: Path, tmp_path: Path) -> None:
    """All partitions go over the cheaper network, as the wanted rate is low."""
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000,)), MIX)

    def over() -> Counter[str]:
        rows = [row for _, row in rows_of(records, "h1", "h2") if row["kind"] == "transfer"]
        return Counter((row.get("detail") or {}).get("via", "net") for row in rows)

    values: list[Delivered[object]] = []
    with Client(cluster, allow=ALLOW, insecure=True, journal=tmp_path) as client:
        first = client.run(tree, {"op0": "h1"}, networks=Networks(CHEAP, wanted_hz=0.01, hops=3))
        values += islice(first, 5)
    before = over()
    assert before["fast"] > 0
    moves = GlobalMoves(period_s=1000.0)
    with Client(cluster, allow=ALLOW, insecure=True, journal=tmp_path) as client:
        with client.resume(adaptation=moves) as run:
            values += islice(run, 20)
        assert isinstance(run, Run) and run.search is not None
        task = run.search.task
        assert (run.networks, task.networks.keys(), task.wanted_hz, task.hops) == (CHEAP, CHEAP.keys(), 0.01, 3)
    assert over()["fast"] > before["fast"] + 10
    assert [each.index for each in values[-20:]] == list(range(values[-20].index, values[-20].index + 20))

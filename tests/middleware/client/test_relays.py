"""Runs whose partitions are passed on by a host that holds nothing of them: processes on loopback."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import complete_binary_tree
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import CostModel, Plan, Task
from thalweg.middleware.protocol.adaptation import GlobalMoves

OVER = Link("h1", "h3", "fast"), Link("h3", "h2", "fast"), Link("h2", "client", "fast")
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


class ToAndFro:
    """Leaves all where it is, and has what goes to the client pass two relays, and go straight, in turn."""

    def __init__(self) -> None:
        self.plans = 0

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        self.plans += 1
        link = Link("h1", "client")
        routes = {link: (link,) if len(task.routes.get(link, ())) > 1 else OVER}
        return Plan(task.current, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0), routes=routes)


def test_relays_pass_on_what_is_large_and_what_is_small_and_are_left_and_taken_while_data_flows(
    cluster: LocalCluster, records: Path
) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(20_000, LARGE)), MIX)
    planner = ToAndFro()
    with Client(cluster, allow=ALLOW, insecure=True) as client:
        moves = GlobalMoves(period_s=0.05)
        run = client.run(tree, {"op0": "h1"}, adaptation=moves, planner=planner, networks=NETWORKS)
        with run:
            values = []
            while (planner.plans < 10 or len(values) < 60) and len(values) < 5000:
                values.append(next(run))
    assert planner.plans >= 10
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))
    ways: Counter[Any] = Counter()
    faults: list[Any] = []
    passed: dict[str, set[tuple[int, int]]] = {"h2": set(), "h3": set()}
    for host in ("h1", "h2", "h3"):
        for row in map(json.loads, (records / f"{host}.jsonl").read_text().splitlines()):
            if row["kind"] == "fault" and not row.get("detail"):
                faults.append((host, row))
            elif row["kind"] == "transfer" and row["peer"] == "client":
                ways[tuple((row.get("detail") or {}).get("relays", ()))] += 1
            elif row["kind"] == "relayed" and row["detail"]["source"] == "h1":
                assert row["detail"]["target"] == "client"
                assert row["peer"] == {"h3": "h2", "h2": "client"}[host]
                passed[host].add((row["index"], row["size_bytes"]))
    assert ways["h3", "h2"] > 2 and ways[()] > 2, ways
    assert min(map(len, passed.values())) >= ways["h3", "h2"] - 2  # the last ones' relays may not hear of it
    assert faults == [], "what relays have to pass on is not refused"
    assert max(size for _, size in passed["h2"]) >= LARGE > 256 * 1024 > min(size for _, size in passed["h2"])


class Over:
    """Leaves all where it is, and has what goes to the client pass the relays."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        return Plan(task.current, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0), routes={Link("h1", "client"): OVER})


def test_a_relay_that_dies_is_left_and_nothing_is_lost(tmp_path: Path) -> None:
    tree = complete_binary_tree(blocks(("h1", "h2"), sizes=(LARGE,)), MIX)

    def relayed() -> int:
        rows = map(json.loads, (tmp_path / "h1.jsonl").read_text().splitlines())
        ways = ((row.get("detail") or {}).get("relays") for row in rows if row["kind"] == "transfer")
        return sum(way == ["h3", "h2"] for way in ways)

    limits = {"retry_s": 0.1, "retry_max_s": 0.2}
    doomed = LocalCluster(
        3, allow=ALLOW, records=str(tmp_path), transport="tcp", networks=["fast"], limits=limits
    )  # fmt: skip
    with doomed, Client(doomed, allow=ALLOW, insecure=True) as client:
        moves = GlobalMoves(period_s=0.1)
        run = client.run(tree, {"op0": "h1"}, adaptation=moves, planner=Over(), networks=NETWORKS)
        with run:
            values = [next(run)]
            while relayed() < 3 and len(values) < 5000:
                values.append(next(run))
            doomed.kill("h3")
            values += [next(run) for _ in range(20)]
    assert [each.index for each in values] == list(range(len(values)))
    assert_reference([each.value for each in values], tree, len(values))

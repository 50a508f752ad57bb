"""Queries that join a striped stream and leave it, end to end, on host processes on loopback."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from queried import assert_references, everywhere, first, graph, second, third
from runtime_codes import ALLOW, MIX

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.queries.subscription import Subscription
from thalweg.middleware.client.runs.run import Attached
from thalweg.middleware.client.stripes.striped import StripedRun
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import HostLostError, PlacementError, RunError
from thalweg.middleware.planning import Stripe
from thalweg.middleware.protocol.messages import Failover
from thalweg.operators.reference import digest

HOSTS = ("h1", "h2", "h3")


def take(query: Attached | Subscription, count: int) -> list[Delivered]:
    """Take ``count`` partitions of a query, then detach it. The stream would wait for an unconsumed query."""
    theirs = list(islice(query, count))
    query.detach()
    return theirs


def beside(run: StripedRun, got: list[Delivered], other: Attached | Subscription, count: int) -> list[Delivered]:
    """Do the same while the partitions of the stream are taken too."""
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(take, other, count)
        while not theirs.done():
            got.append(next(run))
    return theirs.result()


def test_nodes_that_the_trees_already_compute_are_not_computed_again(client: Client) -> None:
    flow = first()
    query = first()
    query.sink("more", query.operator(Code("runtime_codes:Mix"), "op2"))
    with everywhere(client, flow) as run:
        got = list(islice(run, 5))
        other = run.attach(query, {"op3": "h2"})
        theirs = beside(run, got, other, 24)
        assert run._base == 0, "no tree was changed"
        other.detach()
        got += islice(run, 20)
    assert_references(theirs, query, other.first_index)
    assert_references(got, flow, 0)


def test_trees_compute_additional_nodes_for_a_query_until_the_query_leaves(client: Client) -> None:
    flow = first()
    with everywhere(client, flow) as run:
        got = list(islice(run, 5))
        other = run.attach(second(), dict.fromkeys(third().operators, "h3"))
        theirs = beside(run, got, other, 40)
        while run._base < 6:
            got.append(next(run))
        got += islice(run, 20)
        assert [tree.lower.dataflow.by_name.keys() for tree in run._trees] == [flow.by_name.keys()] * 3
    assert_references(theirs, second(), other.first_index)
    assert_references(got, flow, 0)


def test_a_stateful_operator_of_a_query_runs_above_the_trees_and_starts_with_the_query(client: Client) -> None:
    flow, query = first(), graph()
    query.sink("seen", query.operator(Code("runtime_codes:Sees"), query.operator(MIX, *reversed(query.sources))))
    with everywhere(client, flow) as run:
        got = list(islice(run, 3))
        other = run.attach(query, dict.fromkeys(query.operators, "h2"))
        theirs = [each for each in beside(run, got, other, 60) if each.sink == "seen"]
    assert len(theirs) > 20
    for calls, each in enumerate(theirs):
        assert each.index == other.first_index + calls
        assert each.value.startswith(f"{calls} calls before [")
    assert_references(got, flow, 0)


def test_equal_queries_share_the_nodes_that_were_added_to_the_trees(client: Client) -> None:
    flow, where = first(), dict.fromkeys(third().operators, "h3")
    with everywhere(client, flow) as run:
        got = list(islice(run, 3))
        with ThreadPoolExecutor(2) as pool:
            one = run.attach(third(), where)
            ones = pool.submit(take, one, 30)
            while one.first_index < 0:
                got.append(next(run))
            two = run.attach(third(), where)
            twos = pool.submit(take, two, 60)
            while not ones.done():
                got.append(next(run))
            assert run._base == 3, "the first of them had the trees changed, not the second"
            assert {"op2", *one.dataflow.sources} <= {*two.shared}
            while not twos.done():
                got.append(next(run))
    assert_references(ones.result(), third(), one.first_index)
    assert_references(twos.result(), third(), two.first_index)
    assert_references(got, flow, 0)


def test_a_query_that_fails_in_a_tree_ends_alone(client: Client) -> None:
    flow = first()
    query = graph(lambda flow, names: flow.operator(Code("runtime_codes:Raises", {"how": "value", "at": 90}), *names))
    with everywhere(client, flow) as run:
        got = list(islice(run, 3))
        other = run.attach(query, dict.fromkeys(query.operators, "h1"))
        theirs: list[Delivered] = []

        def fail() -> None:
            with pytest.raises(RunError, match=r"node 'op2~1' on host 'h1': ValueError at partition \d+: two lines"):
                theirs.extend(other)

        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(fail)
            while not taken.done():
                got.append(next(run))
        taken.result()
        while run._base < 6:
            got.append(next(run))
        got += islice(run, 20)
    assert_references(got, flow, 0)
    # how far the trees had come by then, and whether the query began before it failed, depends on the machine
    assert all(other.first_index <= delivered.index <= 90 for delivered in theirs)


def test_a_host_without_room_for_a_run_ends_the_query_before_the_first_partition() -> None:
    flow, where = first(), dict.fromkeys(third().operators, "h2")
    with LocalCluster(3, allow=ALLOW, limits={"max_runs": 3}) as cluster, Client(cluster, allow=ALLOW) as client:
        trees = tuple(Stripe(flow, dict.fromkeys(flow.operators, host), 0.5) for host in ("h1", "h3"))
        run = client.run(flow, trees[0].placement, stripes=trees)
        assert isinstance(run, StripedRun)
        got = list(islice(run, 3))
        other = run.attach(third(), where)
        with pytest.raises(RunError, match=r"host 'h\d'.*it has \d runs, and takes 3"):
            next(other)
        got += islice(run, 30)
        assert (run._base, run._coming, run._beginning) == (0, [], {})
        run.close()
    assert_references(got, flow, 0)


@pytest.mark.parametrize("failover", [None, Failover(replicas=1)], ids=["for good", "and goes on elsewhere"])
def test_the_loss_of_a_host_ends_a_query_on_the_host_unless_the_run_has_failover(failover: Failover | None) -> None:
    flow, where = first(), dict.fromkeys(third().operators, "h3")
    trees = tuple(Stripe(flow, dict.fromkeys(flow.operators, host), 0.5) for host in HOSTS[:2])
    with LocalCluster(3, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(flow, trees[0].placement, stripes=trees, failover=failover)
        assert isinstance(run, StripedRun)
        got = list(islice(run, 3))
        other, theirs = run.attach(third(), where), list[Delivered]()

        def use() -> None:
            for each in other:
                theirs.append(each)
                if len(theirs) == 60:
                    other.detach()

        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(use)
            while len(theirs) < 10:
                got.append(next(run))
            cluster.kill("h3")
            while not taken.done():
                got.append(next(run))
        if failover is None:
            with pytest.raises(HostLostError, match="host 'h3'"):
                taken.result()
        else:
            taken.result()
            assert len(theirs) == 60
        got += islice(run, 30)
        run.close()
    assert_references(theirs, third(), other.first_index)
    assert_references(got, flow, 0)


def test_a_query_that_leaves_before_the_first_partition_leaves_no_node(client: Client) -> None:
    flow = first()
    with everywhere(client, flow) as run:
        got = list(islice(run, 3))
        for _ in range(4):
            run.attach(third(), dict.fromkeys(third().operators, "h2")).detach()
        got += islice(run, 60)
        while len(run._trees[0].places) > 1 or run._coming:
            got.append(next(run))
        assert len(run._above.dataflow.nodes) == 2
    assert_references(got, flow, 0)


def test_a_second_client_can_subscribe_to_a_striped_stream(cluster: LocalCluster, client: Client) -> None:
    flow = first()
    with Client(cluster, name="bob", allow=ALLOW) as bob, everywhere(client, flow, subscribers=["bob"]) as run:
        got = list(islice(run, 3))
        taken = bob.subscribe(run.ticket, "out")
        theirs = beside(run, got, taken, 20)
        got += islice(run, 10)
    for each in theirs:
        assert digest(each.value) == digest(got[each.index].value)
    assert [each.index for each in theirs] == list(range(taken.first_index, taken.first_index + 20))
    assert_references(got, flow, 0)


def nothing_of_queries(run: StripedRun) -> bool:
    """Return whether the trees and the upper graph are as at the start of the stream."""
    return run._trees[0].places.keys() == {0} and len(run._above.dataflow.nodes) == 2


@pytest.mark.parametrize("seed", range(3))
def test_queries_that_come_and_go_at_random_lose_and_double_no_partition(client: Client, seed: int) -> None:
    """Operators of the trees move meanwhile. Every query gets the results of a single process and leaves no node."""
    dice, flow = Random(seed), first()
    kinds = (third(), second(), graph(lambda flow, names: flow.operator(MIX, names[1], flow.operator(MIX, *names))))
    with everywhere(client, flow) as run, ThreadPoolExecutor(9) as pool:
        stop = threading.Event()

        def consume() -> list[Delivered]:
            taken = [*itertools.takewhile(lambda _: not stop.is_set(), run)]
            run.close()
            return taken

        got = pool.submit(consume)
        try:
            begun = []
            for _ in range(8):
                query = dice.choice(kinds)
                other = run.attach(query, {name: dice.choice(HOSTS) for name in query.operators})
                if dice.random() < 0.2:
                    other.detach()
                    continue
                begun.append((query, other, pool.submit(take, other, dice.randint(1, 30))))
                if dice.random() < 0.5:
                    begun[-1][2].result()
                with contextlib.suppress(PlacementError):  # the tree has been replaced meanwhile
                    run.move({name: dice.choice(HOSTS) for name in flow.operators}, stripe=dice.randrange(3))
            for query, other, theirs in begun:
                assert_references(theirs.result(), query, other.first_index)
            with run._news:  # it is notified of every partition
                assert run._news.wait_for(lambda: nothing_of_queries(run), 30)
        finally:
            stop.set()
        assert_references(got.result(), flow, 0)


def test_a_later_client_resumes_the_stream_without_the_queries(cluster: LocalCluster, tmp_path: Path) -> None:
    flow, hosts = first(), dict(cluster.addresses)

    def another(number: int) -> Client:
        return Client(hosts, listen=f"{hosts['h1']}-queries-{number}", allow=ALLOW, journal=tmp_path / "journal")

    with another(0) as before:
        run = everywhere(before, flow, partitions=400)
        got = list(islice(run, 3))
        where = dict.fromkeys(third().operators, "h3")
        other = run.attach(third(), where)
        theirs = beside(run, got, other, 20)
        late = run.attach(second(), where)
        assert late.first_index > other.first_index
        assert len(run._trees[0].lower.dataflow.nodes) > len(flow.nodes), "it goes on over trees that make more"
        run.commit(got[-1].index)
    assert_references(theirs, third(), other.first_index)
    with another(1) as after:
        again = after.resume(run.id)
        assert isinstance(again, StripedRun)
        assert [tree.by_name.keys() for tree, _ in again.trees] == [flow.by_name.keys()] * 3
        assert again.attached == {}
        got += islice(again, 30)
    assert_references(got, flow, 0)

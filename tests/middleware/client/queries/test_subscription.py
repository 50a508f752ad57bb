"""Subscriptions of other clients to a run, from this process and from others, with keys and without."""

from __future__ import annotations

import asyncio
import json
import logging
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from queried import kept_going
from runtime_codes import ALLOW, MIX

from thalweg import Failover
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.queries.subscription import Subscription, ticket_of
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import HostAbsentError, RunError, UsageError
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.operators.reference import digest, reference_run

EXAMPLE = Path(__file__).parents[4] / "docs/examples/subscriber.py"
WHERE = {"joint": "h3", "op1": "h2"}
OTHER = """
import json, sys
from thalweg import Client
hosts, ticket = json.loads(sys.argv[1])
with Client(hosts, name="bob", insecure=True) as bob:
    for each in bob.subscribe(ticket, "joint"):
        print(each.index, flush=True)
"""


def graph(**params: Any) -> Dataflow:
    flow = Dataflow()
    names = [flow.source(Code("runtime_codes:Blocks", {"site": i, **params}), at=f"h{i + 1}") for i in range(2)]
    joint = flow.operator(MIX, *names, name="joint")
    flow.sink("out", flow.operator(MIX, joint, names[0]))
    return flow


def leaving(subscription: Subscription[Any], count: int) -> list[Delivered[Any]]:
    """Take ``count`` partitions, then leave at once. An unconsumed subscription would hold up the run."""
    got = list(islice(subscription, count))
    subscription.detach()
    return got


@pytest.fixture
def bob(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, name="bob") as bob:
        yield bob
        assert bob.shell.alive


def digests(flow: Dataflow, sink: str, first: int, count: int) -> list[str]:
    return [digest(value) for value in islice(reference_run(flow, None, ALLOW, sink=sink), first, first + count)]


def test_a_subscriber_gets_every_partition_of_a_node_while_operators_move(client: Client, bob: Client) -> None:
    run = client.run(graph(), WHERE, partitions=90, subscribers=["bob"])
    got = list(islice(run, 3))
    joint, out = bob.subscribe(run.ticket, "joint"), bob.subscribe(run, "out")
    mover, where = RandomMover(RandomMoves(4), run, client.hosts), set[str]()
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(lambda: list(joint))
        some = pool.submit(leaving, out, 20)
        for each in run:
            got.append(each)
            where |= set(run.placement.values())
            mover.on_delivered()
        assert [each.index for each in got] == list(range(90))
        assert [each.index for each in theirs.result(patience(20))] == list(range(joint.first_index, 90)), (
            "also what was left"
        )
        assert [each.index for each in some.result()] == list(range(out.first_index, out.first_index + 20))
    assert 3 <= joint.first_index < 70, "it begins where the run's hosts agree, while the application goes on"
    assert {each.sink for each in theirs.result()} == {"joint"}
    flow = graph()
    first = joint.first_index
    assert [digest(each.value) for each in some.result()] == digests(flow, "out", out.first_index, 20)
    flow.sink("joints", "joint")
    assert [digest(each.value) for each in theirs.result()] == digests(flow, "joints", first, 90 - first)
    assert list(joint) == []
    assert "bob" in where


def test_the_slowest_subscriber_sets_the_pace_until_the_permission_is_withdrawn(client: Client, bob: Client) -> None:
    with client.run(graph(), WHERE, subscribers=["bob"]) as run, ThreadPoolExecutor() as pool:
        next(run)
        awaited, indices = bob.subscribe(run, "joint"), list[int]()

        async def some() -> None:
            async with asyncio.timeout(20), asyncio.TaskGroup() as both:
                theirs = both.create_task(take())
                async for _ in run:
                    if theirs.done():
                        return

        async def take() -> None:
            async for each in awaited:
                indices.append(each.index)
                if len(indices) == 5:
                    awaited.close()

        asyncio.run(some())
        assert indices == list(range(awaited.first_index, awaited.first_index + 5))
        held, first = bob.subscribe(run, "joint"), bob.subscribe(run, "source@h1")
        begun = pool.submit(next, first)
        taken = pool.submit(lambda: list(islice(run, 40)))
        indices = list[int]()
        # first may begin later than held, which sets the pace until then
        drained = pool.submit(
            lambda: indices.extend(each.index for each in takewhile(lambda _: not begun.done(), held))
        )
        assert begun.result(patience(20)).index == first.first_index
        assert not taken.done(), "nobody takes from first any more"
        run.move({"op1": "h1"})
        held.detach()
        drained.result(patience(20))
        assert indices == list(range(held.first_index, held.first_index + len(indices)))
        assert not taken.done()
        run.allow("carol")
        assert len(taken.result(patience(20))) == 40
        with pytest.raises(RunError, match="client 'client' no longer allows the subscription"):
            list(first)
        while run.placement["op1"] != "h1":
            next(run)
        run.allow("bob")
        with kept_going(run), bob.subscribe(run, "joint") as again:
            next(again)
        run.allow()
        with pytest.raises(RunError, match="does not let 'bob' subscribe; it has to be among the run's subscribers"):
            next(bob.subscribe(run, "joint"))
        with kept_going(run), run.attach(graph(), subscribers=["bob"]) as other:
            assert other.first_index > 0
            with pytest.raises(RunError, match="does not let 'bob' subscribe to 'out'"):
                next(bob.subscribe(run, "out"))


@pytest.mark.parametrize("ahead", [1, pytest.param(3, marks=pytest.mark.long)])
def test_subscriptions_go_on_through_the_generations_of_a_run(ahead: int) -> None:
    """Hosts are killed one after the other. A later subscriber may use the old ticket or a fresh one."""
    with (
        LocalCluster(5, allow=ALLOW) as cluster,
        Client(cluster, allow=ALLOW, name="alice") as alice,
        Client(cluster, name="bob") as bob,
        ThreadPoolExecutor() as pool,
    ):
        run = alice.run(graph(), WHERE, subscribers=["bob"], failover=Failover(4), ahead=ahead, partitions=200)
        ticket, got = run.ticket, [next(run)]
        early = [bob.subscribe(ticket, node) for node in ("joint", "out", "source@h1")]
        taken = [pool.submit(list, each) for each in early]
        while not all(each._first >= 0 for each in early):
            got.append(next(run))
        before = len(got)
        for victim in ("h3", "h4"):
            run.move({"joint": victim})
            got += until_on(run, {victim})
            cluster.kill(victim)
            got += until_on(run, {*alice.hosts, "alice"} - {victim})
        cluster.kill("h2")  # which has a source, and comes back
        cluster.start("h2")
        got += list(islice(run, 8))
        after = len(got)
        late = [bob.subscribe(each, "joint") for each in (ticket, run.ticket, run)]
        taken += [pool.submit(list, each) for each in late]
        got += list(run)
        assert [each.index for each in got] == list(range(200))
        flow, sinks = graph(), {"joint": "joints", "out": "out", "source@h1": "blocks"}
        flow.sink("joints", "joint")
        flow.sink("blocks", "source@h1")
        for subscription, theirs in zip((*early, *late), taken, strict=True):
            came, first = theirs.result(patience(20)), subscription.first_index
            assert [each.index for each in came] == list(range(first, 200))
            expected = digests(flow, sinks[subscription.node], first, 200 - first)
            assert [digest(each.value) for each in came] == expected
        assert max(each.first_index for each in early) < before + 6 * ahead
        assert min(each.first_index for each in late) >= after


def until_on(run: Run[Any], hosts: set[str]) -> list[Any]:
    """Return the partitions that come until ``joint`` is on one of ``hosts``, at most 100."""
    came = []
    for each in islice(run, 100):
        came.append(each)
        if run.placement["joint"] in hosts:
            return came
    raise AssertionError(run.placement)


def test_the_death_of_a_subscriber_ends_only_the_subscription(cluster: LocalCluster) -> None:
    limits = CoreConfig(liveness_s=2.0, ping_s=0.5)
    with Client(cluster, allow=ALLOW, limits=limits, name="alice") as alice:
        run = alice.run(graph(), WHERE, subscribers=["bob"])
        other = json.dumps([dict(cluster.addresses), run.ticket])
        argv = [sys.executable, "-c", OTHER, other]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process, ThreadPoolExecutor() as pool:
            assert process.stdout is not None
            began = pool.submit(process.stdout.readline)
            indices = [next(run).index]
            while not began.done():
                indices.append(next(run).index)
            process.kill()
            killed_s = time.monotonic()
            while "joint@bob~1" in run.placement:
                indices.append(next(run).index)
            assert time.monotonic() - killed_s < 10
        indices += [next(run).index for _ in range(10)]
        assert indices == list(range(len(indices)))


def test_an_invalid_subscription_is_refused_with_a_single_line_error(
    cluster: LocalCluster, client: Client, bob: Client
) -> None:
    def refused(run: Run[Any] | str, node: str) -> str:
        with pytest.raises(RunError) as said:
            next(bob.subscribe(run, node))
        assert said.value.host == "client"
        return str(said.value)

    with ThreadPoolExecutor() as pool, client.run(graph(), WHERE, subscribers=["bob", "h1"]) as run:
        assert "the run has no node 'jont'; did you mean 'joint'?" in refused(run, "jont")
        with pytest.raises(
            UsageError, match="client 'client' began that run itself, or has the same name as the client that did"
        ):
            client.subscribe(run, "joint")
        with pytest.raises(UsageError, match="'none' is not the ticket of a run; give the text that its client has as"):
            bob.subscribe("none", "joint")
        for name in ("", "x" * 129):
            with pytest.raises(UsageError, match="a node's name has 1 to 128 characters, and '"):
                bob.subscribe(run, name)
        with pytest.raises(UsageError, match="radius_s is a number of seconds, not 'far'"):
            run.attach(graph(), radius_s="far")
        with pytest.raises(UsageError, match="subscribers are a collection of names of clients, not 'bob'"):
            client.run(graph(), WHERE, subscribers="bob")
        with Client(cluster, name="small", limits=CoreConfig(max_partition_bytes=1000)) as small:
            run.allow("bob", "small")
            with pytest.raises(RunError, match="takes partitions of 1000 bytes at most, and the run may have some of"):
                next(small.subscribe(run, "joint"))
        stays = bob.subscribe(run, "joint")
        pool.submit(list, run)  # until it is left
        assert next(stays).index == stays.first_index
        with pytest.raises(UsageError, match="there is no sink 'out'"):
            stays.sink("out")
    with pytest.raises(RunError, match=r"subscription to 'joint' of run .*: client 'client' has ended the run"):
        list(stays)
    assert "the run is over, or was never one of client 'client'" in refused(run, "joint")
    gone = Client(cluster, name="gone")
    gone.close()
    with pytest.raises(HostAbsentError, match="run r cannot be subscribed to, as its client is not there: host 'gone'"):
        bob.subscribe(ticket_of("r", gone.shell.me), "joint")
    fails = graph()
    fails.sink("also", fails.operator(Code("runtime_codes:Raises", {"how": "value", "at": 60}), "joint", name="fails"))
    with client.run(fails, WHERE | {"fails": "h1"}, subscribers=["bob"]) as run, ThreadPoolExecutor() as pool:
        takes = bob.subscribe(run, "joint")
        for failed in [pool.submit(list, each) for each in (run, takes)]:
            with pytest.raises(RunError, match="node 'fails' on host 'h1': ValueError"):
                failed.result(patience(20))


def test_a_subscriber_is_identified_by_the_key_that_the_client_proved() -> None:
    with (
        LocalCluster(2, allow=ALLOW, transport="curve") as cluster,
        Client(cluster, allow=ALLOW, name="alice") as alice,
    ):
        clients = [Client(cluster, name=name) for name in ("bob", "mallory")]
        bob, mallory = clients
        with bob, mallory, alice.run(graph(), {"joint": "h2", "op1": "h1"}, subscribers=["bob"]) as run:
            with pytest.raises(RunError, match="does not let 'mallory' subscribe"):
                next(mallory.subscribe(run.ticket, "joint"))
            with kept_going(run), bob.subscribe(run.ticket, "joint") as joint:
                indices = [each.index for each in islice(joint, 5)]
            assert indices == list(range(joint.first_index, joint.first_index + 5))


def test_the_example_reports_the_partitions_that_the_subscribers_got() -> None:
    told = runpy.run_path(str(EXAMPLE))["main"]()
    first, last = told["watcher"]
    assert (last - first, told["digests_equal"]) == (9, True)
    assert told["operator"] >= last


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_end_of_a_subscribers_process_does_not_hold_up_the_run(transport: Any) -> None:
    """Closed connections are evidence enough: no host waits until the subscriber was silent for ``liveness_s``."""
    with (
        LocalCluster(2, allow=ALLOW, transport=transport) as cluster,
        Client(cluster, allow=ALLOW, name="alice", insecure=True) as alice,
        alice.run(graph(), {"joint": "h2", "op1": "h1"}, subscribers=["bob"]) as run,
        ThreadPoolExecutor() as pool,
    ):
        argv = [sys.executable, "-c", OTHER, json.dumps([dict(cluster.addresses), run.ticket])]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            began = pool.submit(process.stdout.readline)
            indices = [next(run).index]
            while not began.done():
                indices.append(next(run).index)
            process.kill()
            last_s, longest_s = time.monotonic(), 0.0
            while "joint@bob~1" in run.placement:
                indices.append(next(run).index)
                last_s, longest_s = time.monotonic(), max(longest_s, time.monotonic() - last_s)
            indices += [next(run).index for _ in range(20)]
            assert longest_s < min(patience(2.0), 14.0)
        assert indices == list(range(len(indices)))


def test_a_subscriber_that_takes_nothing_is_dismissed_and_the_run_goes_on() -> None:
    with (
        LocalCluster(2, allow=ALLOW, limits={"guest_s": 1.0}) as cluster,
        Client(cluster, allow=ALLOW, name="alice") as alice,
        Client(cluster, name="bob") as bob,
        alice.run(graph(), {"joint": "h2", "op1": "h1"}, subscribers=["bob"]) as run,
        ThreadPoolExecutor() as pool,
    ):
        slow = bob.subscribe(run, "joint")
        taken = pool.submit(lambda: [next(run).index for _ in range(60)])
        got = [next(slow).index]  # and no more
        assert taken.result(patience(10)) == list(range(60))
        with pytest.raises(RunError, match=r"subscription to 'joint' .* it takes 'joint' too slowly: the others have"):
            got += [each.index for each in slow]
        assert len(got) <= 3, "what it had got by then"


def noticing(emit: Callable[[logging.LogRecord], None], noticed: threading.Event, text: str) -> Any:
    """Return ``emit`` of a log handler, which also sets an event with each line that has the text."""

    def emit_and_notice(record: logging.LogRecord) -> None:
        emit(record)
        if text in record.getMessage():
            noticed.set()

    return emit_and_notice


def taken(subscription: Subscription[Any], count: int, noticed: threading.Event) -> list[Delivered[Any]]:
    """Return the next partitions of a subscription. The first one sets an event."""
    partitions = []
    for partition in islice(subscription, count):
        noticed.set()
        partitions.append(partition)
    return partitions


def test_the_log_of_a_waiting_subscriber_asks_whether_the_client_of_the_run_consumes(
    client: Client, bob: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thalweg.middleware.client.flow.stream.WAITS_S", 0.3)
    with ThreadPoolExecutor() as pool, client.run(graph(), WHERE, subscribers=["bob"]) as run:
        assert [next(run).index for _ in range(3)] == [0, 1, 2]
        emit = caplog.handler.emit
        while True:
            noticed = threading.Event()
            monkeypatch.setattr(caplog.handler, "emit", noticing(emit, noticed, "has waited"))
            joint = bob.subscribe(run, "joint")
            theirs = pool.submit(taken, joint, 30, noticed)
            assert noticed.wait(patience(10))
            if "has waited" in caplog.text:
                break
            joint.close()  # its first partition was on its way already, so it had nothing to ask
        what = f"the subscription to 'joint' of run {run.id} has waited for a partition for 0.3 s"
        assert (
            f"{what}: no partition comes before client 'client', which began the run, takes partitions from it"
            in caplog.text
        )
        with kept_going(run):
            theirs.result(patience(20))
            joint.close()

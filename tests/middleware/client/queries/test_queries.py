"""Queries that join a run and leave it while data flows, end to end, on host processes on loopback."""

from __future__ import annotations

import asyncio
import runpy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from queried import assert_references, first, graph, second, third
from runtime_codes import ALLOW, MIX

from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.runs.run import Attached
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import DataflowError, HostLostError, PlacementError, RunError, UsageError
from thalweg.middleware.planning.registry import RandomMoves

EXAMPLE = Path(__file__).parents[4] / "docs/examples/two_queries.py"
FAILS = Code("runtime_codes:Raises", {"how": "value"})


def test_two_queries_share_equal_nodes_and_leave_without_a_gap(client: Client) -> None:
    run = client.run(first(), {"op0": "h3", "op1": "h2", "op2": "h1"})
    got = list(islice(run, 3))
    other: Attached = run.attach(second())
    mover = RandomMover(RandomMoves(4), run, client.hosts)

    async def take(count: int) -> list[Delivered]:
        theirs = [await anext(other) for _ in range(count)]
        other.detach()
        return theirs

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(asyncio.run, take(40))
        while not theirs.done() or mover._moves > 0:
            got.append(next(run))
            mover.on_delivered()
    assert 3 <= other.first_index <= 9  # what the graph holds beyond what was taken
    assert other.shared == ("source@h1", "source@h2", "op0", "op1")
    assert {name for name in other.dataflow.by_name if other.names[name] != name} == {"op2", "out", "raw"}
    assert_references(theirs.result(), other.dataflow, other.first_index)
    assert list(other) == [], "it has left"
    got += islice(run, 20)
    assert_references(got, run.dataflow, 0)
    again = run.attach(second(), {"op2": "h2"})
    run.close()  # the others go on
    assert_references([next(again) for _ in range(12)], again.dataflow, again.first_index)
    assert set(run.dataflow.sinks) >= {again.names["out"], again.names["raw"]}
    again.move({"op1": "h1"})
    more = [next(again) for _ in range(12)]
    assert more[-1].index > more[0].index
    again.close()


def test_an_operator_that_is_too_far_away_is_not_shared(client: Client) -> None:
    with client.run(first(), {"op0": "h3", "op1": "h2", "op2": "h1"}) as run:
        got = list(islice(run, 2))
        with pytest.raises(UsageError, match=r"radius_s is -1; it must be finite and at least 0 \(None shares"):
            run.attach(second(), radius_s=-1)
        for radius_s, shares in ((60.0, {"op0", "op1"}), (0.0, set())):
            other: Attached = run.attach(second(), "cost-space-once", radius_s=radius_s)

            def take(query: Attached = other) -> list[Delivered]:
                theirs = [next(query) for _ in range(5)]
                query.detach()
                return theirs

            with ThreadPoolExecutor(1) as pool:
                theirs = pool.submit(take)
                while not theirs.done():
                    got.append(next(run))
            assert_references(theirs.result(), other.dataflow, other.first_index)
            assert {"op0", "op1"} & {*other.shared} == shares
            assert ({*other.apart} >= {"op0", "op1"}) == (not shares)  # op2, too, while the query before is leaving
            assert all(0 < far_s < 1 for far_s in other.apart.values())
            assert {"source@h1", "source@h2"} <= {*other.shared}
        assert_references(got, run.dataflow, 0)


def test_a_query_that_fails_ends_alone(client: Client) -> None:
    with client.run(first(), {"op0": "h3", "op1": "h2", "op2": "h1"}) as run:
        got = [next(run)]
        fails = graph(lambda flow, names: flow.operator(FAILS, names[-1]))
        absent = graph(lambda flow, names: flow.operator(Code("runtime_codes:Nothing_there"), names[-1]))
        for query, why in (
            (fails, r"node 'op2~\d' on host 'h2': ValueError at partition"),
            (absent, "the query cannot begin: host 'h2'"),
        ):
            other = run.attach(query, {"op2": "h2"})
            with ThreadPoolExecutor(1) as pool:
                ended = pool.submit(lambda query=other: list(query))
                while not ended.done():
                    got.append(next(run))
            with pytest.raises(RunError, match=why):
                ended.result()
        got += islice(run, 10)
        assert run.dataflow.sinks == ("out",)
        assert_references(got, run.dataflow, 0)
    with client.run(fails, {"op0": "h3", "op1": "h2", "op2": "h1"}) as run:
        with pytest.raises(RunError, match="node 'op2' on host 'h1': ValueError"):
            list(run)
        with pytest.raises(RunError, match="node 'op2' on host 'h1': ValueError"):
            run.attach(third())


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "about to begin"])
def test_a_lost_host_ends_only_the_queries_that_use_the_host(begun: bool) -> None:
    with LocalCluster(3, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(first(), {"op0": "h2", "op1": "h1", "op2": "h1"})
        got = [next(run)]
        other = run.attach(third(), {"op2": "h3"})
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(lambda: list(other))
            for _ in range(12 * begun):
                got.append(next(run))
            assert not begun or other.first_index < 12
            cluster.kill("h3")
            while not ended.done():
                got.append(next(run))
        with pytest.raises(RunError, match="host 'h3'") as said:
            ended.result()
        assert begun is False or isinstance(said.value, HostLostError)
        got += islice(run, 10)
        assert_references(got, run.dataflow, 0)


def test_the_end_of_a_query_does_not_end_the_run(client: Client) -> None:
    """The query's own source and the run's own source end at different times."""
    run = client.run(graph(length=30), {"op0": "h3", "op1": "h2"})
    shorter = Dataflow()
    source = shorter.source(Code("runtime_codes:Blocks", {"site": 7, "length": 12}), at="h3", name="mine")
    shared = shorter.source(Code("runtime_codes:Blocks", {"site": 0, "length": 30}), at="h1", name="theirs")
    shorter.sink("both", source, shared)
    got = [next(run)]
    other = run.attach(shorter, {})
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lambda: list(other))
        got += run
        theirs = taken.result()
    assert len(got) == 30
    assert theirs[-1].index == 11
    assert_references(theirs, shorter, other.first_index)


def test_an_unconsumed_query_can_leave_during_a_move_that_the_query_holds_up(client: Client) -> None:
    with client.run(first(), {"op0": "h3", "op1": "h2", "op2": "h1"}) as run, ThreadPoolExecutor(1) as pool:
        got = [next(run)]
        other = run.attach(third(), {"op2": "h3"})
        taken = pool.submit(lambda: list(islice(run, 30)))
        assert other.first_index < 30
        run.move({"op0": "h1"})
        assert not taken.done(), "a sink that nobody takes from holds up the others"
        other.detach()
        got += taken.result(patience(20))
        while run.placement["op0"] != "h1":
            got.append(next(run))
        assert_references(got, run.dataflow, 0)


def test_values_pushed_to_a_query_start_with_the_first_partition_of_the_query(client: Client) -> None:
    with client.run(graph(), {"op0": "h3", "op1": "h2"}) as run:
        for _ in range(3):
            next(run)
        feed = client.push(iter([b"a", b"b", b"c"]), name="marks")
        flow = Dataflow()
        marks = flow.source(feed.code, at=client.name, name="marks")
        flow.sink("marked", flow.source(Code("runtime_codes:Blocks", {"site": 0}), at="h1", name="theirs"), marks)
        other = run.attach(flow, {})
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(lambda: [(each.index, each.value[1]) for each in other])
            while not taken.done():
                next(run)
        begins = other.first_index
        assert begins >= 3
        assert taken.result() == [(begins, b"a"), (begins + 1, b"b"), (begins + 2, b"c")]


def test_runs_with_a_computed_placement_go_on_while_a_query_joins_and_leaves(client: Client) -> None:
    for placement in ("global", "local", "thalweg"):
        with client.run(first(), placement) as run:
            other = run.attach(third(), "download-all")

            def take(other: Attached = other) -> int:
                count = sum(1 for _ in islice(other, 6))
                other.detach()
                return count

            with ThreadPoolExecutor(1) as pool:
                taken = pool.submit(take)
                got = [next(run)]
                while not taken.done():
                    got.append(next(run))
            assert taken.result() == 6
            assert_references([*got, *islice(run, 2)], run.dataflow, 0)


def test_an_invalid_query_is_refused_with_a_single_line_error(client: Client) -> None:
    with client.run(graph(), {"op0": "h3", "op1": "h2"}) as run:
        alone = Dataflow()
        alone.sink("t", alone.source(Code("runtime_codes:Blocks", {"site": 5}), at="h1"))
        with pytest.raises(DataflowError, match="the query has nothing in common with the run"):
            run.attach(alone)
        named = graph()
        named.sink("t", named.operator(MIX, named.source(MIX, at="h1", name="source@h9")))
        with pytest.raises(UsageError, match="'thalweg' moves operators while a run goes on"):
            run.attach(second(), "thalweg")
        with pytest.raises(UsageError, match="'global' moves operators while a run goes on"):
            run.attach(graph(), "global")  # which has nothing to be placed
        with pytest.raises(UsageError, match="globle"):
            run.attach(graph(), "globle")
        with pytest.raises(PlacementError, match="the placement leaves out operator 'op2'; name its host"):
            run.attach(second(), {})
        with pytest.raises(PlacementError, match="operator 'op2' is placed on unknown host 'h9'"):
            run.attach(second(), {"op2": "h9"})
        away = graph()
        away.sink("t", "op1", at="h1")
        with pytest.raises(UsageError, match="sink 't' is pinned to another host than this client"):
            run.attach(away)
        with run.attach(graph()) as other:
            with pytest.raises(UsageError, match="there is no sink 'in'"):
                other.sink("in")
            with pytest.raises(DataflowError, match="an attached query keeps its shape"):
                other.reshape(graph(), {})
            assert next(run).index == 0
            assert next(other).index == other.first_index
    with pytest.raises(RunError, match="is over"):
        run.attach(second(), {"op2": "h1"})


@pytest.mark.parametrize("where", ["processes", pytest.param("netns", marks=[pytest.mark.netns, pytest.mark.long])])
def test_the_example_reports_how_many_bytes_sharing_saves(where: str) -> None:
    told = runpy.run_path(str(EXAMPLE))["main"](where)
    assert told["shared"] == ("source@h1", "source@h2", "source@h3", "pair", "all") or where == "netns"
    assert (told["delivered"], told["gaps"], told["digests_equal"]) == ([40, 20], 0, True)
    assert told["bytes_apart"] == 60 * 3 * 16_428
    assert told["bytes_apart"] - told["bytes_together"] > 19 * 2 * 16_384


@pytest.mark.long
def test_the_log_names_the_unconsumed_stream_that_holds_up_a_consumer(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has one line, and the consumer goes on as soon as that stream is consumed."""
    monkeypatch.setattr("thalweg.middleware.client.flow.stream.WAITS_S", 0.3)

    def of_waiting() -> list[str]:
        """Return the lines about waiting streams. Other clients of this process may log other lines."""
        return [line.getMessage() for line in caplog.records if vars(line).get("event") == "stream-waits"]

    def said(waiting: Future[Any], who: str, why: str) -> None:
        until_s = time.monotonic() + patience(10)
        while not (lines := of_waiting()) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert not waiting.done()
        (line,) = lines
        assert line.startswith(f"{who} has waited for a partition for 0.3 s: partition ")
        assert line.endswith(
            f"{why} is not taken; take partitions there as well, in another thread or task, or close that stream"
        )
        caplog.clear()

    async def take(stream: Any, count: int) -> None:
        for _ in range(count):
            await anext(stream)

    with ThreadPoolExecutor() as pool, client.run(first(), {"op0": "h3", "op1": "h2", "op2": "h1"}) as run:
        assert [next(run).index for _ in range(3)] == [0, 1, 2]
        other = run.attach(second())
        theirs = pool.submit(lambda: list(islice(other, 30)))
        said(theirs, f"query 1 of run {run.id}", f"of sink 'out' of the run {run.id}")
        while not theirs.done():
            next(run)
        ours = pool.submit(asyncio.run, take(run, 30))
        said(ours, f"the run {run.id}", f"of query 1 of run {run.id}")
        while not ours.done():
            next(other)
        other.close()

"""Operators with state, and several sinks, above the trees of a stream, on real host processes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from runtime_codes import ALLOW, MIX, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.stripes.striped import StripedRun
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import DataflowError, PlacementError, RunError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.planning import Stripe
from thalweg.middleware.protocol import messages as m
from thalweg.operators import digest, reference_run

HOSTS = ("h1", "h2", "h3")
RUNNING = Code("running")
LARGEST = Code("runtime_codes:Largest")


def graph(root: Code = MIX, top: Code = RUNNING, **params: object) -> Dataflow:
    """Return a graph of three sources that ``a`` and ``b`` combine. Above are ``r``, with state, and a second sink.

    ``params`` are parameters of the sources.
    """
    flow = Dataflow()
    seen = [flow.source(code, at=host) for host, code in blocks(HOSTS, **params).items()]
    a = flow.operator(root, *seen[:2], name="a")
    b = flow.operator(root, a, seen[2], name="b")
    flow.sink("out", flow.operator(top, b, name="r"))
    flow.sink("raw", a, b)
    return flow


def trees(flow: Dataflow, **above: str) -> tuple[Stripe, ...]:
    """Return a tree for each host, with all of its operators on that host."""
    return tuple(Stripe(flow, {"a": host, "b": host, **above}, 1 / 3) for host in HOSTS)


def told(value: object) -> object:
    return tuple(map(digest, value)) if type(value) is tuple else digest(value)


def assert_reference(got: Iterable[Delivered[object]], flow: Dataflow, partitions: int | None, first: int = 0) -> None:
    """Compare the partitions of every sink with those of a single process."""
    by_sink = defaultdict(list)
    for each in got:
        by_sink[each.sink].append((each.index, told(each.value)))
    for sink in flow.sinks:
        expected = [told(value) for value in reference_run(flow, partitions, (*DEFAULT_ALLOW, *ALLOW), sink=sink)]
        assert by_sink[sink] == [*enumerate(expected)][first:]


@pytest.mark.parametrize("at", ["client", "h2"])
def test_every_sink_gets_the_bytes_of_a_single_process_in_order(client: Client, at: str) -> None:
    flow = graph()
    over = trees(flow, **({} if at == "client" else {"r": at}))
    with client.run(flow, over[0].placement, stripes=over, partitions=60) as run:
        assert isinstance(run, StripedRun)
        assert run.dataflow.by_name.keys() == flow.by_name.keys()
        assert [where["b"] for _, where in run.trees] == [*HOSTS]
        assert {where["r"] for _, where in run.trees} == {run.placement["r"]} == {at}
        got = [*run]
    assert_reference(got, run.dataflow, 60)


@pytest.mark.parametrize("placement", ["thalweg", "one-shot"])
def test_a_planner_plans_the_trees_and_leaves_the_upper_graph_at_the_client(client: Client, placement: str) -> None:
    flow = graph()
    with client.run(flow, placement, stripes=3, partitions=20) as run:
        got = [*run]
    assert isinstance(run, StripedRun)
    assert len(run.trees) == 3
    assert run.placement["r"] == "client"
    assert_reference(got, flow, 20)


def test_a_planner_chooses_the_shapes_of_trees_below_an_operator_with_state(client: Client) -> None:
    """The names that the planner invents are none of the names in the upper graph."""
    flow = Dataflow()
    about = {"sites": 3, "seed": 1, "mean_bytes": 2000.0}
    seen = [flow.source(Code("scenes", {**about, "site": site}), at=host) for site, host in enumerate(HOSTS)]
    joint = flow.operator(Code("composite", {"fit": "nested"}), *seen, name="all")
    flow.sink("t", flow.operator(RUNNING, joint, name="op0"))
    with client.run(flow, "thalweg", stripes=4, partitions=20) as run:
        got = [*run]
    assert isinstance(run, StripedRun)
    assert len(run.trees) == 4
    assert all(len(tree.operators) == 3 for tree, _ in run.trees), "pairs, and what is above"
    assert_reference(got, flow, 20)


def test_a_stream_of_stateful_operators_goes_over_trees_of_sources_alone(client: Client) -> None:
    flow = complete_binary_tree(blocks(), Code("runtime_codes:Sees"))
    with client.run(flow, {"op0": "h1"}, stripes=2, partitions=30) as run:
        got = [*run]
    assert (run.placement["op0"], run.placement["op1"]) == ("h1", "client")
    assert_reference(got, flow, 30)


def test_a_tree_and_the_upper_graph_move_while_the_other_trees_go_on(client: Client) -> None:
    flow = graph()
    over = trees(flow)
    with client.run(flow, over[0].placement, stripes=over, partitions=4000) as run:
        got = [next(run) for _ in range(20)]
        assert isinstance(run, StripedRun)
        run.move({"r": "h3", "a": "h1"}, stripe=1)
        for each in run:
            got.append(each)
            if run.placement["r"] == "h3" and run.trees[1][1]["a"] == "h1":
                break
        else:
            pytest.fail("nothing has moved")
        got += itertools.islice(run, 20)
        assert (run.trees[0][1]["b"], run.trees[1][1]["b"]) == ("h1", "h2")
        for wrong in ({"r": "h9"}, {"nobody": "h1"}, {"out": "h1"}, {"a": "h9", "r": "h1"}, {"r": "h9", "a": "h2"}):
            with pytest.raises(PlacementError):
                run.move(wrong, stripe=1)
        assert (run.placement["r"], run.trees[1][1]["a"]) == ("h3", "h1")
    least = min(sum(each.sink == sink for each in got) for sink in flow.sinks)
    assert least >= 20
    assert_reference([each for each in got if each.index < least], flow, least)


def test_a_single_tree_is_reshaped_below_an_unchanged_upper_graph(client: Client) -> None:
    def tree(*pairs: tuple[str, str, str], top: Code = RUNNING) -> Dataflow:
        flow = Dataflow()
        for host, code in blocks().items():
            flow.source(code, at=host, name=host)
        for name, *inputs in pairs:
            flow.operator(LARGEST, *inputs, name=name)
        flow.sink("out", flow.operator(top, pairs[-1][0], name="r"))
        return flow

    flow, other = tree(("a", "h1", "h2"), ("b", "a", "h3")), tree(("x", "h2", "h3"), ("y", "x", "h1"))
    with client.run(flow, {"a": "h1", "b": "h1"}, stripes=2, partitions=4000) as run:
        got = [next(run) for _ in range(10)]
        assert isinstance(run, StripedRun)
        run.reshape(other, {"x": "h2", "y": "h3"}, stripe=1)
        for each in run:
            got.append(each)
            if len(run.trees[1][0].by_name.keys() & {"a", "b"}) < 2:
                break
        else:
            pytest.fail("no other tree came")
        got += itertools.islice(run, 20)
        assert run.trees[0][0].by_name.keys() == flow.by_name.keys()
        (root,) = run.trees[1][0].by_name["r"].inputs
        assert {*run.trees[1][0].by_name[root].inputs} > {"h1"}
        with pytest.raises(DataflowError, match="the upper graph, above the trees of a stream, stays as it is"):
            run.reshape(tree(("a", "h1", "h2"), ("b", "a", "h3"), top=MIX), {"a": "h1", "b": "h1"})
    assert_reference(got, flow, len(got))


def test_a_sink_ends_with_the_shortest_source_below_the_sink(client: Client) -> None:
    flow = Dataflow()
    first, second = (
        flow.source(Code(code.use, {**code.params, "length": length}), at=host)
        for (host, code), length in zip(blocks(("h1", "h2")).items(), (7, 12), strict=True)
    )
    flow.sink("both", flow.operator(Code("runtime_codes:Sees"), first, second))
    flow.sink("one", second)
    with client.run(flow, {}, stripes=2) as run:
        got = [*run]
    assert_reference(got, flow, None)
    assert [sum(each.sink == sink for each in got) for sink in ("both", "one")] == [7, 12]


@pytest.mark.parametrize("below", [True, False])
def test_a_strict_stream_reports_that_sources_do_not_end_together(client: Client, below: bool) -> None:
    codes = {host: Code(code.use, {**code.params, "length": 9 + i}) for i, (host, code) in enumerate(blocks().items())}
    flow = Dataflow()
    seen = [flow.source(code, at=host) for host, code in codes.items()]
    flow.sink("t", flow.operator(RUNNING, *([flow.operator(MIX, *seen)] if below else seen)))
    run = client.run(flow, {"op0": "h1"} if below else {}, stripes=3, strict=True)
    with run:
        got = [next(run).index for _ in range(9)]
        with pytest.raises(RunError, match="do not end together: partition 9 is missing from"):
            next(run)
    assert got == list(range(9))


def test_indices_without_a_value_are_counted_and_record_batches_arrive_unchanged(client: Client) -> None:
    flow = Dataflow()
    flow.source(Code("runtime_codes:Gives", {"kind": "batch", "every": 3}), at="h1", name="s")
    flow.sink("t", flow.operator(Code("runtime_codes:Sees"), "s", name="r"))
    flow.sink("u", "s")
    with client.run(flow, {}, stripes=2, partitions=9) as run:
        got = [*run]
    for sink in flow.sinks:
        assert [each.index for each in got if each.sink == sink] == [0, 3, 6]
    assert run.skipped == 12
    assert [each.value.column("n").to_pylist() for each in got if each.sink == "u"] == [[0], [3], [6]]
    assert [each.value[:7] for each in got if each.sink == "t"] == ["0 calls", "1 calls", "2 calls"]


def test_failing_code_in_the_upper_graph_is_named(client: Client) -> None:
    flow = Dataflow()
    kept = flow.operator(RUNNING, flow.source(blocks()["h1"], at="h1"), name="kept")
    flow.sink("t", flow.operator(Code("runtime_codes:Raises", {"how": "value", "at": 7}), kept, name="bad"))
    run = client.run(flow, {}, stripes=2, partitions=30)
    with run, pytest.raises(RunError, match="at partition 7") as caught:
        list(run)
    assert (caught.value.node, caught.value.host, caught.value.index) == ("bad", "client", 7)


def upto(run: Iterator[Delivered[object]], sinks: Iterable[str], index: int) -> list[Delivered[object]]:
    """Return the partitions that come until every sink has delivered ``index``."""
    got, left = list[Delivered[object]](), {*sinks}
    while left:
        got.append(next(run))
        left -= {got[-1].sink} if got[-1].index == index else set()
    return got


@pytest.mark.parametrize("top", [RUNNING, MIX], ids=["state", "no-state"])
def test_a_later_client_resumes_a_stream_with_an_upper_graph(cluster: LocalCluster, tmp_path: Path, top: Code) -> None:
    """The state above the trees is computed again. Committed partitions are not delivered again."""
    hosts, folder, flow = dict(cluster.addresses), tmp_path / "journal", graph(top=top)

    def another(number: int) -> Client:
        where = f"{hosts['h1']}-above-{top.use.partition(':')[0]}-{number}"
        return Client(hosts, listen=where, allow=ALLOW, journal=folder)

    over = trees(flow, r="h2")
    with another(0) as first:
        run = first.run(flow, over[0].placement, stripes=over, partitions=60)
        got = upto(run, flow.sinks, 15)
        for sink in flow.sinks:
            run.commit(15, sink)
        got += upto(run, flow.sinks, 25)
        run.commit(18, "raw")
    with another(1) as second:
        again = second.resume(run.id)
        assert isinstance(again, StripedRun)
        assert again.first_index == 16
        later = upto(again, flow.sinks, 24)
        again.commit(24, "out")
        again.commit(24, "raw")
        later += upto(again, flow.sinks, 28)
        again.commit(26, "out")
    with another(2) as third:
        last = [*third.resume()]
    firsts = {sink: min(each.index for each in later if each.sink == sink) for sink in flow.sinks}
    assert firsts == {"out": 16, "raw": 19}
    got = [each for each in got if each.index < firsts[each.sink]]
    done = {"out": 26, "raw": 24}
    got += [each for each in later if each.index <= done[each.sink]]
    assert_reference([*got, *last], flow, 60)


def test_a_stream_survives_the_loss_of_the_host_of_the_upper_graph() -> None:
    flow = graph()
    names = (*HOSTS, "h4")
    over = tuple(Stripe(flow, {"a": host, "b": host, "r": "h4"}, 1 / 2) for host in ("h4", "h1"))
    with LocalCluster(names, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(flow, over[0].placement, stripes=over, partitions=300, failover=m.Failover(every=4, wait_s=20))
        got = [next(run) for _ in range(60)]
        cluster._processes["h4"].kill()
        got += run
    assert run.placement["r"] != "h4"
    assert_reference(got, flow, 300)


def test_an_invalid_upper_graph_is_refused_with_a_single_line_error(client: Client) -> None:
    flow = graph()
    over = trees(flow)
    elsewhere = msgspec.structs.replace(over[1], placement={**over[1].placement, "r": "h2"})
    other = msgspec.structs.replace(over[1], dataflow=graph(top=Code("runtime_codes:Sees")))
    for wrong in (elsewhere, other):
        with pytest.raises(DataflowError, match="have the same upper graph, above their trees"):
            client.run(flow, over[0].placement, stripes=(over[0], wrong))
    below = msgspec.structs.replace(over[1], dataflow=graph(root=Code("runtime_codes:Sees")))
    with pytest.raises(DataflowError, match="operator 'a' has state, and is not in the upper graph"):
        client.run(flow, over[0].placement, stripes=(over[0], below))
    unknown = graph(top=Code("nowhere"))
    with pytest.raises(UsageError, match="this client cannot find out whether operator 'r' has state"):
        client.run(unknown, over[0].placement, stripes=2)
    with pytest.raises(PlacementError, match="leaves out operator 'b'"):
        client.run(flow, {"a": "h1"}, stripes=2)

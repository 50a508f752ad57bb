"""Striped streams on host processes: the bytes of a single process, in order, whatever moves or is lost."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import pytest
from flows import chain
from queried import everywhere
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.failover.journal import JournaledRun, ResumableStream
from thalweg.middleware.client.resuming import ResumedStream, ResumingClient, go_on_over
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.client.stripes.striped import StripedRun
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import DataflowError, PlacementError, RunError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.planning import CostModel, Hints, Plan, Stripe, Task
from thalweg.middleware.planning.planners.stars import Stars
from thalweg.middleware.planning.problem.depth import VARYING

HOSTS = ("h1", "h2", "h3")
FLOW = complete_binary_tree(blocks(), MIX)


def at(host: str, flow: Dataflow = FLOW, share: float = 1 / 3) -> Stripe:
    """Return a stripe with all operators on one host."""
    return Stripe(flow, dict.fromkeys(flow.operators, host), share)


def test_a_striped_stream_gives_the_bytes_of_a_single_process_in_order(client: Client) -> None:
    with everywhere(client, FLOW, partitions=60) as run:
        got = list(run)
    assert [each.index for each in got] == list(range(60))
    assert_reference([each.value for each in got], FLOW, 60)


@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_stream_over_four_copies_of_a_tree_is_complete_with_every_window(client: Client, window: int) -> None:
    with client.run(FLOW, at("h2").placement, stripes=4, window=window, partitions=30) as run:
        got = list(run)
    assert isinstance(run, StripedRun)
    assert len(run.trees) == 4
    assert_reference([each.value for each in got], FLOW, 30)


@pytest.mark.parametrize(("stripes", "hosts"), [(1, ["client", *HOSTS]), (2, ["client", "h1"])])
def test_stars_has_a_tree_for_every_host_without_a_request(client: Client, stripes: int, hosts: list[str]) -> None:
    with client.run(FLOW, "stars", stripes=stripes, partitions=30) as run:
        got = list(run)
    assert isinstance(run, StripedRun)
    assert [{where[name] for name in FLOW.operators} for _, where in run.trees] == [{host} for host in hosts]
    assert_reference([each.value for each in got], FLOW, 30)


def test_a_planner_knows_the_length_of_the_stream(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def plan(self: Stars, task: Task, model: CostModel) -> Plan:
        told.append(task.partitions)
        return planned(self, task, model)

    planned = Stars.plan
    monkeypatch.setattr(Stars, "plan", plan)
    with client.run(FLOW, "stars", partitions=7) as run:
        assert len(list(run)) == 7
    client.plan(FLOW, "stars", partitions=8)
    client.plan(FLOW, "stars")
    assert told == [7, 8, None]
    with pytest.raises(UsageError, match="partitions must be at least 1, not 0"):
        client.plan(FLOW, "stars", partitions=0)


def test_a_striped_stream_ends_with_the_sources(client: Client) -> None:
    flow = complete_binary_tree(blocks(length=23), MIX)
    with client.run(flow, at("h1").placement, stripes=3) as run:
        assert_reference([each.value for each in run], flow, None)


def test_a_strict_striped_stream_reports_that_sources_do_not_end_together(client: Client) -> None:
    codes = {host: Code(code.use, {**code.params, "length": 9 + i}) for i, (host, code) in enumerate(blocks().items())}
    flow = complete_binary_tree(codes, MIX)
    with client.run(flow, at("h2", flow).placement, stripes=3, strict=True) as run:
        got = [next(run).index for _ in range(9)]
        with pytest.raises(RunError, match="do not end together: partition 9 is missing from some"):
            next(run)
    assert got == list(range(9))


def test_a_striped_stream_begins_with_the_requested_partition(client: Client) -> None:
    with client.run(FLOW, at("h3").placement, stripes=2, start=5, partitions=10) as run:
        assert [each.index for each in run] == list(range(5, 15))


def test_a_single_tree_moves_while_the_other_trees_go_on(client: Client) -> None:
    with everywhere(client, FLOW, partitions=3000) as run:
        got = [next(run) for _ in range(10)]
        run.move(dict.fromkeys(FLOW.operators, "h2"), stripe=0)
        for each in run:
            got.append(each)
            if {run.trees[0][1][name] for name in FLOW.operators} == {"h2"}:
                break
        else:
            pytest.fail("nothing has moved")
        assert {run.trees[2][1][name] for name in FLOW.operators} == {"h3"}
        got += itertools.islice(run, 20)
    assert_reference([each.value for each in got], FLOW, len(got))


def test_a_planner_plans_the_requested_number_of_trees(client: Client) -> None:
    pictures = {host: Code("runtime_codes:Pictures", {"site": i, "sizes": [[8, 8]]}) for i, host in enumerate(HOSTS)}
    flow = complete_binary_tree(pictures, Code("composite"))
    with client.run(flow, "thalweg", stripes=3, partitions=40) as run:
        got = [each.index for each in run]
    assert isinstance(run, StripedRun)
    assert len(run.trees) == 3
    assert got == list(range(40))


def test_a_striped_stream_goes_on_after_the_loss_of_a_host_without_a_source() -> None:
    flow = complete_binary_tree(blocks(("h1", "h2")), MIX)
    trees = tuple(at(host, flow, 0.5) for host in ("h3", "h1"))
    with (
        LocalCluster(HOSTS, allow=ALLOW) as cluster,
        Client(cluster, allow=ALLOW) as client,
        client.run(flow, trees[0].placement, stripes=trees, partitions=400) as run,
    ):
        got = [next(run) for _ in range(10)]
        cluster._processes["h3"].kill()
        got += run
    assert_reference([each.value for each in got], flow, 400)


def test_failing_code_ends_a_striped_stream_with_the_index_of_the_stream(client: Client) -> None:
    flow = complete_binary_tree(blocks(), Code("runtime_codes:Raises", {"how": "value", "at": 7}))
    run = client.run(flow, at("h1").placement, stripes=3, partitions=30)
    with run, pytest.raises(RunError, match=r"at partition ([789]|1\d):"):  # whichever tree is first
        list(run)


def test_an_invalid_striped_stream_is_refused_with_a_single_line_error(client: Client) -> None:
    where = at("h1").placement
    with pytest.raises(UsageError, match="stripes is 0; give 1 to 64 trees"):
        client.run(FLOW, where, stripes=0)
    with pytest.raises(UsageError, match="window is 0; give how many"):
        client.run(FLOW, where, stripes=2, window=0)
    with pytest.raises(UsageError, match="plans one tree, and does not choose a number of trees"):
        client.run(FLOW, "one-shot", stripes="auto")
    other = complete_binary_tree(blocks(("h1", "h2")), MIX)
    with pytest.raises(DataflowError, match="the same sources and the same sink"):
        client.run(FLOW, where, stripes=(at("h1"), at("h2", other)))
    for share in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="the share of a stripe is"):
            client.run(FLOW, where, stripes=(at("h1"), at("h2", share=share)))
    feed = client.push(iter([1, 2]))
    fed = complete_binary_tree({client.name: feed.code, "h1": blocks()["h1"]}, MIX)
    with pytest.raises(UsageError, match="gives each partition once"):
        client.run(fed, dict.fromkeys(fed.operators, "h1"), stripes=2)
    with everywhere(client, FLOW, partitions=3) as run:
        with pytest.raises(UsageError, match="share all equal nodes; leave radius_s out"):
            run.attach(FLOW, radius_s=1.0)
        with pytest.raises(UsageError, match="there is no stripe 3"):
            run.move({}, stripe=3)
        with pytest.raises(PlacementError):
            run.move({"nobody": "h1"}, stripe=1)


def test_an_automatic_ahead_is_small_if_delays_are_short_beside_operators(client: Client) -> None:
    """A single tree works ahead, as rates vary. Of several trees, each has one partition under way over an edge."""
    where = at("h2").placement  # how long this machine's own hosts take to answer depends on what else it does
    slow = Hints(dict.fromkeys([node.name for node in FLOW.nodes], 1000), dict.fromkeys(FLOW.operators, 10.0))
    with client.run(FLOW, where, ahead="auto", planning=Planning(hints=slow), partitions=10) as run:
        assert_reference([each.value for each in run], FLOW, 10)
        assert run.ahead == VARYING
    with client.run(FLOW, where, stripes=3, ahead="auto", planning=Planning(hints=slow), partitions=10) as run:
        assert_reference([each.value for each in run], FLOW, 10)
        assert run.ahead == 1


def test_a_later_client_resumes_a_striped_stream_from_the_journal(cluster: LocalCluster, tmp_path: Path) -> None:
    hosts, folder = dict(cluster.addresses), tmp_path / "journal"
    trees = tuple(at(host) for host in HOSTS)

    def another(number: int) -> Client:
        return Client(hosts, listen=f"{hosts['h1']}-journal-{number}", allow=ALLOW, journal=folder)

    with another(0) as first:
        run = first.run(FLOW, trees[0].placement, stripes=trees, partitions=90, window=10, ahead=2)
        got = [next(run) for _ in range(20)]
        run.commit(got[-1].index)
        got += [next(run) for _ in range(5)]  # without a commit
    with another(1) as second:
        again = second.resume(run.id)
        assert isinstance(again, StripedRun)
        assert [tree for tree, _ in again.trees] == [FLOW] * 3
        later = [next(again) for _ in range(30)]
        again.commit(later[-1].index)
        with pytest.raises(UsageError, match="over: no partition of it is left"):
            second.resume(run.id)
    with another(2) as third:
        last = [*third.resume()]
        with pytest.raises(UsageError, match="has no run to resume: begin one"):
            third.resume()
    got = [*got[:20], *later, *last]
    assert [each.index for each in got] == list(range(90))
    assert_reference([each.value for each in got], FLOW, 90)


def test_a_resumed_stream_goes_over_the_trees_with_present_hosts() -> None:
    stream = ResumableStream("client", (at("h1"), at("h3")), 5, 90)
    (sink,) = FLOW.sinks
    here = ("h1", "h2", "h3", "client")
    placed = tuple(Stripe(FLOW, {**at(host).placement, sink: "client"}, 0.5) for host in ("h1", "h3"))
    found = JournaledRun(msgspec.structs.replace(stream, trees=placed), {sink: 41})
    allow = (*DEFAULT_ALLOW, *ALLOW)
    there, gone = ResumingClient("client", here, allow), ResumingClient("client", ("h1", "h2", "client"), allow)
    assert go_on_over("r", found, None, there) == ResumedStream(placed, 42, {})
    assert go_on_over("r", found, 7, gone) == ResumedStream(placed[:1], 7, {})
    none = ResumingClient("client", ("h2", "client"), allow)
    assert go_on_over("r", found, 7, none) == ResumedStream(placed, 7, {}), "its loss will be said by the run"
    with pytest.raises(UsageError, match="run r belongs to client 'client', and this client is 'other'"):
        go_on_over("r", found, None, ResumingClient("other", here, allow))
    with pytest.raises(UsageError, match="run r is over"):
        go_on_over("r", JournaledRun(stream, {sink: 89}), None, there)


def test_a_resumed_stream_with_upper_state_restarts_but_skips_committed_partitions() -> None:
    flow = chain(Code("some"), Code("running"), client="client")
    placed = tuple(Stripe(flow, {"s": "h1", "o": "h2", "t": "client"}, 0.5) for _ in range(2))
    found = JournaledRun(ResumableStream("client", placed, 5, 90), {"t": 41})
    here = ResumingClient("client", ("h1", "h2", "client"), DEFAULT_ALLOW)
    assert go_on_over("r", found, None, here) == ResumedStream(placed, 5, {"t": 41})

"""Runs with failover: where nodes restart, and what the application gets."""

from __future__ import annotations

import contextlib
import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from playbook import ANY, got
from run_ids import R, run_of

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, Fault, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.generated_plans import code_of, draw_trial, drawn_plan
from thalweg.experiments.faults.trials import run_trial
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.core.failover.recovery import Recovery, restart
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import DataflowError, RunError, UsageError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.messages import Failover, Start
from thalweg.middleware.protocol.run_id import RunId


def chain() -> Dataflow:
    flow = Dataflow()
    seen = flow.source(Code("scenes"), at="h1", name="s")
    below = flow.operator(Code("running"), seen, name="below")
    above = flow.operator(Code("running"), flow.operator(Code("plain"), below, name="plain"), name="above")
    flow.sink("t", above)
    flow.sink("u", below)
    return flow


@pytest.mark.parametrize(
    ("known", "there", "starts"),
    [
        ({}, "h1 h2", {"above": (0, ""), "plain": (0, ""), "below": (0, ""), "s": (0, "")}),
        (
            {"above": {4: {"h2"}, 8: {"h3"}, 12: {"h2"}}, "below": {4: {"h1"}, 8: {"h2"}}},
            "h1 h2 h3",
            {"above": (8, "h3"), "plain": (8, ""), "below": (8, "h2"), "s": (8, "")},
        ),
        (
            {"above": {4: {"h2"}, 8: {"h3"}, 12: {"h2"}}, "below": {4: {"h1"}, 8: {"h2"}}},
            "h1 h2",
            {"above": (4, "h2"), "plain": (4, ""), "below": (4, "h1"), "s": (4, "")},
        ),
    ],
)
def test_every_node_restarts_where_all_consumers_can_continue(
    known: dict[str, dict[int, set[str]]], there: str, starts: dict[str, tuple[int, str]]
) -> None:
    flow = chain()
    result = restart(flow, {"t": 10, "u": LAST}, {}, known, [Code("plain")], there.split())
    assert result == {
        "t": Start("t", 10),
        "u": Start("u", LAST),
        **{name: Start(name, *start) for name, start in starts.items()},
    }


@pytest.mark.parametrize(
    ("seed", "graph"),
    [
        (10160, False),
        (4837, False),
        (132, False),
        (570, True),
        (800, True),
        (40852, False),
        (2197, True),
        (7016, True),
        (600290, False),
        (600680, False),
        (600087, True),
        (2010697, True),
    ],
)
def test_fault_plans_that_once_found_a_defect_deliver_now(seed: int, graph: bool) -> None:
    plan = drawn_plan(seed, graph=graph)
    result, _ = run_trial(plan)
    outcome = "ended" if seed == 570 else "delivered"  # the client's messages do not get to a source for 75 s
    assert (plan.lasting, result.outcome) == (True, outcome), result


@pytest.mark.parametrize("seed", [47, 92, *(pytest.param(seed, marks=pytest.mark.long) for seed in (133, 2116))])
def test_subscriptions_of_fault_plans_continue_across_generations(seed: int) -> None:
    """One subscription began during a restart, one left after it, one was lost, and one was a node's last consumer."""
    result, _ = run_trial(drawn_plan(seed, graph=True, lasting=True))
    assert (result.outcome, result.queries["subscribed"] > 0, result.recoveries > 0) == ("delivered", True, True), (
        result
    )


def test_a_restarted_source_releases_an_ended_consumer_even_with_a_single_sink() -> None:
    result, _ = run_trial(drawn_plan(70002735, graph=True, lasting=True))
    assert result.outcome == "delivered", result


@pytest.mark.parametrize("seed", [1, 3, 8, 15, 27])
@pytest.mark.parametrize("back_s", [None, 1.0])
def test_a_run_continues_without_a_lost_host_and_delivers_every_partition_once(seed: int, back_s: float | None) -> None:
    trial = draw_trial(seed)
    sources = {node.pinned for node in trial.dataflow.nodes if node.kind == "source"}
    hosts = [host for host in trial.hosts if host != "client" and (back_s or host not in sources)]
    faults: list[Fault] = [Crash(host, 3.0 + 4 * number, back_s) for number, host in enumerate(hosts[:2])]
    result, _ = run_trial(FaultPlan(seed, tuple(faults), lasting=True))
    assert (result.outcome, result.duplicate, result.out_of_order) == ("delivered", 0, 0), result


def test_a_source_moves_to_the_stand_in_and_back_to_the_returned_host() -> None:
    trial = draw_trial(1)
    (lost,) = {node.pinned for node in trial.dataflow.nodes if node.kind == "source"} - {"client"}
    (stand_in,) = set(trial.hosts) - {"client", lost}
    nodes = [replace(node, stand_ins=(stand_in,)) if node.pinned == lost else node for node in trial.dataflow.nodes]
    got: list[int] = []
    world = FaultyWorld(
        trial.hosts,
        trial.links,
        partial(code_of, trial),
        FaultPlan(1, (Crash(lost, 3.0, 2.0), Crash(stand_in, 7.0))),
        WorldConfig(interface=trial.interface, core=LIMITS, validate=True),
    )
    world.failover, world.on_delivered = Failover(every=4), lambda partition, now: got.append(partition.index)
    world.run(Dataflow(tuple(nodes)), trial.placement, trial.partitions)
    assert (world.failed, got) == (None, list(range(trial.partitions)))
    assert {world.placement[node.name] for node in nodes if node.stand_ins} == {lost}


@pytest.mark.parametrize("at", [("h1", "h9"), ("h1", "h1"), ()])
def test_a_stand_in_must_be_a_different_existing_host(at: tuple[str, ...]) -> None:
    flow = Dataflow()
    flow.sink("t", flow.source(Code("scenes"), at=at, name="s"))
    with pytest.raises(DataflowError, match=r"source 's' (is pinned to unknown host|has stand-ins|is not pinned)"):
        flow.validate({"h1", "h2"})


@pytest.mark.parametrize("replay", [0, 32])
def test_pushed_values_survive_a_lost_host_only_with_a_replay_log(replay: int) -> None:
    with LocalCluster(3) as cluster, Client(cluster) as client:
        values = (np.full((4, 4, 3), index, np.uint8) for index in range(40))
        flow = Dataflow()
        source = flow.source(client.push(values, replay=replay).code, at="client")
        flow.sink("t", flow.operator(Code("running"), source, name="o"))
        got: list[int] = []
        ends = contextlib.nullcontext() if replay else pytest.raises(RunError, match="has been taken")
        with ends:
            for partition in client.run(flow, {"o": "h2"}, failover=Failover(every=4)):
                got.append(partition.index)
                if partition.index == 20:
                    cluster.kill("h2")
        assert got == list(range(40 if replay else len(got)))


@pytest.mark.parametrize("use", ["composite", "running"])
def test_a_killed_process_costs_the_application_nothing(use: str) -> None:
    scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 2, "seed": 1, "mean_bytes": 20000}) for i in range(2)}
    flow = complete_binary_tree(scenes, Code(use))

    def took(fails: bool) -> Any:
        digest, indices = hashlib.sha256(), []
        with LocalCluster(4) as cluster, Client(cluster) as client:
            if fails:
                with pytest.raises(UsageError, match="5 replicas of each state need as many other hosts"):
                    client.run(flow, {"op0": "h3"}, failover=Failover(replicas=5))
            for partition in client.run(flow, {"op0": "h3"}, partitions=60, failover=Failover(every=4)):
                indices.append(partition.index)
                digest.update(partition.value)
                if fails and partition.index == 21:
                    cluster.kill("h3")
        return indices, digest.hexdigest()

    assert took(True) == took(False)


def lasting(install: Any, number: int, *starts: Start) -> m.Install:
    """Return the run's install message for generation ``number``."""
    named = replace(install, run=RunId(install.run.stream, generation=number))
    return replace(replace(named, failover=Failover()), starts=starts)


@pytest.mark.parametrize("drains", [True, False])
def test_a_full_or_draining_host_joins_the_next_generation(make_book: Any, make_install: Any, drains: bool) -> None:
    book, starts = make_book("h1", CoreConfig(max_runs=1)), [Start(name, 0) for name in "sot"]
    book << got("client", lasting(make_install(), 0)) >> ANY
    if drains:
        book << e.DrainRequested() >> ANY
    book << got("client", lasting(make_install(), 1, *starts)) >> ANY
    assert book.sent("client") == [m.Installed(run_of("r~1"), "h1")]
    book << got("client", make_install(run=run_of("other"))) >> ANY
    assert book.sent("client")[0].error


def test_a_detached_query_requests_and_restores_no_state(make_book: Any) -> None:
    flow = chain()
    where = dict.fromkeys(flow.by_name, "h1") | {"t": "client", "u": "client", "above": "h2", "plain": "h2"}
    peers = tuple([m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2") for host in ("client", "h1", "h2")])
    install = m.Install(R, flow, tuple([m.Location(name, host, 1) for name, host in where.items()]), peers, "client")
    starts = [Start(name, 4, "h1" if name in ("above", "below") else "") for name in flow.by_name]
    state = m.Checkpoint(run_of("r~1"), "above", 1, 4, 1, 2, "", b"xy")
    for host, word in (("h1", m.StateRequest(run_of("r~1"), "above")), ("h2", state)):
        book = make_book(host)
        book << got("client", lasting(install, 1, *starts)) >> ANY
        book << got("client", m.Detach(run_of("r~1"), 1, ("above", "plain", "t"))) >> ANY
        book << got("h2" if host == "h1" else "h1", word) >> []


@pytest.mark.parametrize("trace", ["", "File 'mine.py', line 1"])
def test_a_damaged_replica_is_not_requested_again(make_book: Any, make_install: Any, trace: str) -> None:
    install = lasting(make_install(others=("h3",)), 1, Start("s", 4), Start("o", 4, "h3"), Start("t", 4))
    host, client = make_book("h2"), make_book("client")
    host << got("client", install) >> ANY
    state = m.Checkpoint(run_of("r~1"), "o", 1, 4, 1, 2, "")
    host << got("h3", replace(state, inline=b"longer than that")) >> []
    host << got("h3", replace(state, inline=b"xy")) >> [e.RestoreState(run_of("r~1"), "o", 1, b"xy", "", 1)]
    host << e.StateRestored(run_of("r~1"), "o", 1, "not its digest", m.Cause(None, "Odd", trace)) >> ANY
    (answer,) = host.sent("client")
    assert type(answer) is (m.Failed if trace else m.StateMissing)
    client << e.RunRequested(install, None) >> ANY
    recovery = client.core.runs[run_of("r~1")].parts.get(Recovery)
    recovery.known, recovery.bases = {"o": {4: {"h3"}}}, dict.fromkeys("sot", 0)
    client << got("h2", answer) >> ANY
    began = [message.starts[1] for message in client.sent("h2") if isinstance(message, m.Install)]
    assert began == ([] if trace else [Start("o", 0)])


def test_the_client_tracks_a_bounded_number_of_replicas(make_book: Any, make_install: Any) -> None:
    client = make_book("client")
    client << e.RunRequested(lasting(make_install(), 0), None) >> ANY
    for index in range(1000):
        client << got("h1", m.CheckpointStored(R, "o", index + 1, ("h1",))) >> ANY
    assert len(client.core.runs[R].parts.get(Recovery).known["o"]) < 100


@pytest.mark.parametrize("where", ["begin", "follow", "plan"])
def test_a_run_with_a_defect_during_recovery_ends(
    make_book: Any, make_install: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    client, event = make_book("client"), e.PeerLost(R, "h2", "is gone")
    client << e.RunRequested(lasting(make_install(others=("h3",)), 0), None) >> ANY
    for host in ("h1", "h2", "h3"):
        client << got(host, m.Installed(R, host)) >> ANY

    def defect(*_: Any) -> None:
        raise AssertionError(where)

    monkeypatch.setattr(Recovery if where == "plan" else RunCore, where, defect)
    with pytest.raises(AssertionError, match=where):
        client.core.handle(event, 1.0)
    client.at(1.0) << e.RunBroken(client.core.at_fault(event), "a defect") >> ANY
    assert [failed.reason for failed in client.only(e.Fail)] == ["a defect"]
    assert not (client.core.runs or client.core.hosted.failover_runs.led or client.core.hosted.failover_runs.replicas)


@pytest.mark.parametrize(("done", "least"), [(None, 8), (5, 8), (10, 8), (11, 12), (17, 16), (30, 16)])
def test_replicas_are_kept_from_the_last_committed_partition_on(
    make_book: Any, make_install: Any, done: int | None, least: int
) -> None:
    """Delivered partitions do not count: a later client begins after the committed partitions.

    Of later replicas three are kept.
    """
    client = make_book("client")
    client << e.RunRequested(replace(make_install(), failover=Failover(every=4)), None, journaled=True) >> ANY
    for host in ("h1", "h2"):
        client << got(host, m.Installed(R, host)) >> ANY
    client.core.runs[R].flow.nodes["t"].index = 18  # as if 17 had been given to it
    if done is not None:
        client << e.OutputCommitted(R, "t", done) >> ANY
    told = 0
    for index in (20, 4, 8, 12, 16):  # one that is ahead of all is for later
        client << got("h1", m.CheckpointStored(R, "o", index, ("h1",))) >> ANY
        told = max(
            [
                told,
                *(
                    line.index
                    for message in client.sent("h1")
                    if isinstance(message, m.CheckpointsObsolete)
                    for line in message.lines
                ),
            ]
        )
    assert told == least


def test_an_operator_lost_with_the_latest_replica_restarts_from_the_replica_before(
    make_book: Any, make_install: Any
) -> None:
    """The earlier replica is kept as long as it is on another host, and no longer."""
    client = make_book("client")
    client << e.RunRequested(replace(make_install(others=("h3", "h4")), failover=Failover(every=4)), None) >> ANY
    for host in ("h1", "h2", "h3", "h4"):
        client << got(host, m.Installed(R, host)) >> ANY
    client.core.runs[R].flow.nodes["t"].index = 18  # as if 17 had been given to it
    lines = []
    for index, holder in ((4, "h3"), (8, "h4"), (12, "h3"), (16, "h3")):
        client << got(holder, m.CheckpointStored(R, "o", index, (holder, "h2"))) >> ANY
        lines += [
            line.index
            for message in client.sent("h2")
            if isinstance(message, m.CheckpointsObsolete)
            for line in message.lines
        ]
    assert lines == [4, 8, 16]
    client << got("h4", m.CheckpointStored(R, "o", 17, ("h4", "h2"))) >> ANY
    assert not [message for message in client.sent("h2") if isinstance(message, m.CheckpointsObsolete)]
    for host in ("h4", "h2"):
        client << e.PeerLost(R, host, "is gone") >> ANY
    (install,) = [message for message in client.sent("h3") if isinstance(message, m.Install)]
    assert [start for start in install.starts if start.node == "o"] == [Start("o", 16, "h3")]

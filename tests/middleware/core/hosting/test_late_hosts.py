"""Hosts of a run with failover and a liveness of one second: late hosts come back with their nodes and replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, Cut, Fault, FaultPlan, Stop
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.trial_code import Counting, content
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.view import links_between
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

HOSTS = ("h1", "h2", "h3", "h4", "client")
LATE = HOSTS[:3]  # with a source each; the operators are on h4
FLOW = Dataflow(
    (
        *[Node(f"s{number}", "source", (), Code("source"), f"h{number}") for number in (1, 2, 3)],
        Node("o0", "operator", ("s1", "s2"), Code("operator")),
        Node("o1", "operator", ("o0", "s3"), Code("operator")),
        Node("t", "sink", ("o1",), None, "client"),
    )
)
PARTITIONS = 60
LIMITS = CoreConfig(liveness_s=1.0)  # whoever is silent for so long is lost


def run(*faults: Fault, wait_s: float = 30.0) -> tuple[FaultyWorld, list[dict[str, Any]]]:
    """Run with ``faults``. Assert that all partitions come once, in order and right. Return the recoveries."""
    recoveries = list[dict[str, Any]]()

    def on_record(host: str, now: float, record: e.Record) -> None:
        if record.kind == "recovered":
            recoveries.append(record.fields["detail"])

    links = {link: BandwidthTrace(" ".join(link), np.array([0.0]), np.array([1e7])) for link in links_between(HOSTS)}
    world = FaultyWorld(
        HOSTS,
        links,
        partial(Counting, size_bytes=20_000, length=10**6, takes_s=0.05),
        FaultPlan(1, faults),
        WorldConfig(interface="independent", startup_s=0.002, core=LIMITS, validate=True),
        on_record=on_record,
    )
    known: dict[tuple[str, int], Any] = {}
    indices = list[int]()

    def on_delivered(partition: e.Deliver, now: float) -> None:
        assert partition.value == content(FLOW, "o1", partition.index, known)
        indices.append(partition.index)

    world.failover, world.on_delivered = m.Failover(every=4, wait_s=wait_s), on_delivered
    world.run(FLOW, {"s1": "h1", "s2": "h2", "s3": "h3", "o0": "h4", "o1": "h4", "t": "client"}, PARTITIONS)
    assert (world.failed, indices) == (None, list(range(PARTITIONS)))
    return world, recoveries


def test_idle_hosts_are_pinged_before_the_liveness_limit() -> None:
    assert run()[1] == []


@pytest.mark.parametrize(("since_s", "for_s"), [(0.0, 1.5), (-0.3, 1.25), (0.0, 4.0), (0.3, 1.5), (0.7, 2.0)])
def test_three_late_hosts_beside_a_dead_host_cause_few_recoveries(since_s: float, for_s: float) -> None:
    """The dead host must not count as alive because the late hosts come back."""
    _, recoveries = run(Crash("h4", 5.0), *[Stop(host, 5.0 + since_s, for_s) for host in LATE])
    assert len(recoveries) <= 3
    assert all(again <= 8 for recovery in recoveries for again in recovery["again"].values())  # twice ``every``


def test_repeatedly_late_hosts_do_not_end_a_run_that_waits_for_a_lost_host() -> None:
    stops = [Stop(host, 6.0 + 2.5 * number, 1.5) for number in range(20) for host in LATE[1:]]
    run(Crash("h1", 5.0, 55.0), *stops, wait_s=100.0)


def test_a_dead_host_is_lost_by_the_second_recovery_at_the_latest() -> None:
    """The dead host sends nothing. It is lost with the late hosts, or a moment later."""
    lost = [set(recovery["hosts"]) for recovery in run(Crash("h4", 5.0), Stop("h1", 5.0, 3.0))[1]]
    assert {"h4"} <= set.union(*lost[:2])


def told(book: Playbook) -> dict[str, dict[int, set[str]]]:
    (run,) = book.core.runs.values()
    return run.parts.get(Recovery).known


@pytest.mark.parametrize(("how", "kept"), [("silent", True), ("ended", False)])
def test_replicas_count_again_after_the_return_of_a_late_host_but_not_an_ended_host(
    make_book: Any, make_install: Any, how: str, kept: bool
) -> None:
    book = _begun(make_book, make_install)
    _lose(book, how)
    assert "h3" not in book.core.runs[R].directory.hosts
    assert told(book)["o"][4] == ({"h3", "h2"} if kept else {"h2"})
    _back(book, "1")
    assert told(book)["o"][4] == ({"h3", "h2"} if kept else {"h2"})


def test_a_host_restarted_while_considered_late_has_no_replicas(make_book: Any, make_install: Any) -> None:
    book = _begun(make_book, make_install)
    _lose(book, "silent")
    _back(book, "2")
    assert told(book)["o"][4] == {"h2"}


def _begun(make_book: Any, make_install: Any) -> Playbook:
    """Return the client of a run in which h3 holds no node and keeps a replica."""
    book: Playbook = make_book("client")
    install = make_install(others=("h3",))
    peers = [msgspec.structs.replace(peer, instance="1") for peer in install.peers]
    install = msgspec.structs.replace(msgspec.structs.replace(install, peers=tuple(peers)), failover=m.Failover())
    book << e.RunRequested(install) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    book.core.runs[R].flow.nodes["t"].index = 10
    book << got("h3", m.CheckpointStored(R, "o", 4, ("h3", "h2"))) >> ANY
    return book


def _lose(book: Playbook, how: str) -> None:
    if how == "ended":
        book << e.PeerLost(R, "h3", "is gone") >> ANY
        return
    limits = book.core.config
    for tick in range(1, 40):
        book.at(limits.ping_s * tick)
        for host in ("h1", "h2"):
            book << got(host, m.Pong(R)) >> ANY
        book << fired("ping r") >> ANY


def _back(book: Playbook, instance: str) -> None:
    book << e.PeerJoined(R, m.Peer("h3", "tcp://h3:1", "tcp://h3:2", instance)) >> ANY
    for host in ("client", "h1", "h2"):
        book << got(host, m.Detached(R, 1)) >> ANY
    book << got("h3", m.Installed(R, "h3", number=1)) >> ANY
    core: HostCore = book.core
    assert "h3" in core.runs[R].directory.hosts


def test_a_host_cut_off_for_longer_than_the_lease_rejoins_soon_after_the_cut() -> None:
    """The host holds nothing, so the run continues. Meanwhile the host has dropped the run."""
    joined = list[float]()

    def on_record(host: str, now: float, record: e.Record) -> None:
        if record.kind == "joined":
            joined.append(now)

    hosts = ("h1", "h2", "h3", "client")
    links = {link: BandwidthTrace(" ".join(link), np.array([0.0]), np.array([1e7])) for link in links_between(hosts)}
    nodes = [Node("s", "source", (), Code("source"), "h1"), Node("o", "operator", ("s",), Code("operator"))]
    flow = Dataflow((*nodes, Node("t", "sink", ("o",), None, "client")))
    world = FaultyWorld(
        hosts,
        links,
        partial(Counting, size_bytes=20_000, length=10**6, takes_s=0.5),
        FaultPlan(1, (Cut(("h3",), 5.0, 90.0),)),
        WorldConfig(interface="independent", startup_s=0.002, validate=True),
        on_record=on_record,
    )
    world.failover = m.Failover()
    world.run(flow, {"s": "h1", "o": "h2", "t": "client"}, 220)
    assert world.failed is None
    assert len(joined) == 1
    assert 95.0 < joined[0] < 100.0

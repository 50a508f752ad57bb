"""Reports of hosts about lost hosts and replicas. No host can restart a run with failover without end."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from playbook import ANY, Playbook, got
from run_ids import R, fired

from thalweg.emulation.virtual.faults import Crash, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.world import WorldConfig
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.generated_plans import code_of, draw_trial
from thalweg.middleware.core.failover.recovery import KNOWN, Recovery
from thalweg.middleware.core.failover.rejoin_policy import MOST_IN_VAIN, MOST_LACKING
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.messages import Start
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

HOSTS = ("h1", "h2", "h3", "h4")  # with ``s``, with ``o``, and two with nothing


class Client:
    """The client of a run, whose hosts install all of its generations."""

    def __init__(self, book: Playbook, install: m.Install) -> None:
        self.book = book
        book << e.RunRequested(replace(install, failover=m.Failover()), None) >> ANY
        self._answer()

    @property
    def run(self) -> RunId:
        return next(iter(self.book.core.runs), NO_RUN)

    @property
    def generation(self) -> int:
        return self.run.generation

    @property
    def recovery(self) -> Recovery:
        return self.book.core.runs[self.run].parts.get(Recovery)

    def hear(self, host: str, kind: Any, *fields: Any, **more: Any) -> None:
        before = self.run
        self.book << got(host, kind(before, *fields, **more)) >> ANY
        if self.run != before:
            self._answer()

    def pass_time(self, until_s: float) -> None:
        """Let time pass, while all hosts answer the client every second."""
        while self.book.now < until_s:
            self.book.at(min(until_s, self.book.now + 1.0))
            for host in sorted(self.book.core.runs[self.run].directory.hosts - {"client"}):
                self.book << got(host, m.Pong(self.run)) >> ANY

    def lose(self, host: str) -> None:
        before = self.run
        self.book << e.PeerLost(self.run, host, "is gone") >> ANY
        if self.run != before:
            self._answer()

    def _answer(self) -> None:
        for host in sorted(self.book.core.runs[self.run].directory.hosts):
            self.book << got(host, m.Installed(self.run, host)) >> ANY


@pytest.fixture
def client(make_book: Any, make_install: Any) -> Client:
    return Client(make_book("client"), make_install(others=("h3", "h4")))


def start_from_a_replica(client: Client, keeper: str, version: int) -> None:
    """Lose host ``h2``, so that the run restarts with the replica of ``o`` that ``keeper`` has."""
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 10
    client.hear(keeper, m.CheckpointStored, "o", version, (keeper, "h2"))
    client.lose("h2")
    assert Start("o", version, keeper) in client.recovery._context.install.starts


def lies(client: Client, liar: str) -> None:
    """Send every false report that may restart the run."""
    for lost in ("h9", "h4", "h2", "h1", "client", liar):
        client.hear(liar, m.Failed, "o", "it says", lost=lost)
    for index in (0, 1, 4):
        client.hear(liar, m.StateMissing, "o", index, "it says")
    client.hear(liar, m.Failed, "o", "it says")
    client.hear(liar, m.Located, (m.Location("o", "h4", 1000),))


def test_false_loss_reports_of_a_host_restart_the_run_a_few_times_at_most(client: Client) -> None:
    client.lose("h4")
    for second in range(3):  # as long as a host waits for another at least
        client.pass_time(float(second))
        lies(client, "h3")
    assert client.generation == 1  # for where o was said to be; and h4 had a part in the run then
    assert client.recovery.rejoin_policy.barred == set()
    for second in range(3, 1000):
        client.pass_time(float(second))
        lies(client, "h3")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (3, {"h2", "h3"})


def test_a_host_that_reports_a_second_silent_host_is_itself_excluded(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h4"})
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")  # nobody can have waited for so long
    assert client.generation == 1
    client.pass_time(120.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (2, {"h4", "h3"})
    assert client.book.core.runs[client.run].directory.hosts == {"client", "h1", "h2"}


def test_a_host_that_cannot_reach_the_client_is_excluded(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="client")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h2"})
    (entry,) = (location for location in client.recovery._context.install.locations if location.node == "o")
    assert entry.host != "h2"


def test_a_missed_output_of_a_lost_host_restarts_the_run_once_per_loss(client: Client) -> None:
    client.lose("h4")
    assert client.generation == 0
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, set())
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert client.generation == 1
    client.book << e.PeerJoined(client.run, m.Peer("h4", "tcp://h4:1", "tcp://h4:2", "2")) >> ANY
    client.hear("h4", m.Installed, "h4", number=1)
    client.lose("h4")
    client.hear("h2", m.Failed, "o", "its partition 9 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (2, set())


def test_a_returned_host_stays_in_the_run_though_an_earlier_output_is_missed(client: Client) -> None:
    client.lose("h4")
    client.book << e.PeerJoined(client.run, m.Peer("h4", "tcp://h4:1", "tcp://h4:2")) >> ANY
    for host in ("client", "h1", "h2", "h3"):
        client.hear(host, m.Detached, 1)
    client.hear("h4", m.Installed, "h4", number=1)
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, set())
    assert "h4" in client.book.core.runs[client.run].directory.hosts


@pytest.mark.parametrize("liar", ["h2", "h3"])
def test_false_reports_of_missing_replicas_restart_the_run_a_few_times_at_most(client: Client, liar: str) -> None:
    """``h2`` has ``o`` and reports failed restores. ``h3`` reports replicas that it does not have."""
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = (
        dict.fromkeys("sot", 0),
        10,
    )  # the application has had so many
    for keeper, index in (("h3", 4), ("h4", 4), ("h3", 5), ("h4", 6)):
        client.hear(keeper, m.CheckpointStored, "o", index, (keeper, "h2"))
    client.lose("h4")
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert Start("o", 6, "h2") in client.recovery._context.install.starts
    for _ in range(100):
        for index in range(12):
            client.hear(liar, m.CheckpointStored, "o", index, (liar,))
        for index in range(12):
            client.hear(liar, m.StateMissing, "o", index, "it says")
    assert client.generation < 8


def test_two_hosts_with_matching_false_reports_restart_the_run_a_few_times_at_most(client: Client) -> None:
    """``h2`` has ``o`` and claims to have sent replicas. ``h3`` claims to have them, and then reports them missing."""
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 10
    for index in range(1, 100):
        client.book.at(float(index))
        for sender in ("h3", "h2"):
            client.hear(sender, m.CheckpointStored, "o", index % 10, ("h3", "h2"))
        client.hear("h2", m.Located, (m.Location("o", "h3", index),))
        client.lose("h4") if index == 1 else None
        for sender, partition in (("h3", 0), ("h2", index % 10), ("h3", index % 10)):
            client.hear(sender, m.StateMissing, "o", partition, "it says")
    assert client.generation <= 2 * (MOST_LACKING + 2)


def test_a_host_that_reports_a_defect_is_lost_and_cannot_fail_nodes_of_other_hosts(client: Client) -> None:
    client.hear("h3", m.Failed, "o", "it says")
    assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.Failed, "s", "it says")
    assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.Failed, "", "a defect")
    assert client.generation == 0  # nothing was there
    assert "h3" not in client.book.core.runs[client.run].directory.hosts
    client.hear("h2", m.Failed, "o", "ZeroDivisionError")
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["node 'o' on host 'h2': ZeroDivisionError"]


def test_the_client_believes_two_hosts_that_report_a_foreign_leader_of_the_run(client: Client) -> None:
    client.hear("h2", m.Failed, "", "another leads it", led=64)
    assert (client.generation, client.book.only(e.Fail)) == (1, [])
    assert "h2" not in client.book.core.runs[client.run].directory.hosts
    client.hear("h2", m.Failed, "", "another leads it", led=64)
    assert client.book.only(e.Fail) == []
    client.hear("h4", m.Failed, "", "another leads it", led=64)
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["host 'h4': another leads it"]


def test_the_host_of_the_only_source_is_believed_about_a_foreign_leader_of_the_run(client: Client) -> None:
    client.hear("h1", m.Failed, "", "another leads it", led=64)
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["host 'h1': another leads it"]


def test_a_host_names_the_leading_process_to_a_second_process_of_the_client(make_book: Any, make_install: Any) -> None:
    """About an earlier generation of the same process, the host answers that it does not know the run."""
    host, first = make_book("h2"), replace(make_install(), failover=m.Failover())
    named = {"client": "ab process 7 on there"}
    peers = tuple([replace(peer, instance=named.get(peer.name, "")) for peer in first.peers])
    mine, later = R.taken_over(5), R.taken_over(6)
    host << got("client", replace(first, run=mine)) >> ANY
    host << got("client", replace(first, run=later, peers=peers)) >> ANY
    why = "client 'client' leads the run from another process, process 7 on there; take its partitions there"
    for asks in (m.Ping(mine), m.Ping(mine, ()), replace(first, run=mine.next_generation)):
        host << got("client", asks) >> ANY
        (failed,) = [message for message in host.sent("client") if isinstance(message, m.Failed)]
        assert failed == m.Failed(asks.run, "", why, led=later.generation)
    host << got("client", replace(first, run=later.next_generation, peers=peers)) >> ANY
    host << got("client", m.Ping(later)) >> ANY
    assert [message for message in host.sent("client") if isinstance(message, m.Pong)] == [m.Pong(later, False)]
    host << got("h1", m.Ping(mine)) >> ANY
    assert [message for message in host.sent("h1") if isinstance(message, m.Pong)] == [m.Pong(mine, False)]


def test_a_refused_hand_over_of_the_client_does_not_restart_the_run(client: Client) -> None:
    start_from_a_replica(client, "h3", 1)
    assert client.generation == 1
    client.hear("h3", m.Refuse, "o", 1, "no room")  # the version of its first hand-over
    assert client.generation == 1


def test_recovery_places_nothing_on_a_draining_host(client: Client) -> None:
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 4
    client.hear("h3", m.CheckpointStored, "o", 1, ("h3", "h2"))
    client.hear("h3", m.Leave, False)
    client.lose("h2")
    assert Start("o", 1, "h3") in client.recovery._context.install.starts
    (entry,) = (location for location in client.recovery._context.install.locations if location.node == "o")
    assert entry.host not in ("h2", "h3")


def test_a_lost_host_is_named_once(client: Client) -> None:
    """The host is not named again when a second host is lost while the first stays away."""
    named: list[list[str]] = []
    for _ in range(2):
        client.lose(
            next(location.host for location in client.recovery._context.install.locations if location.node == "o")
        )
        assert client.recovery._begun is not None
        named.append([*client.recovery._begun["hosts"]])
    assert (named[0], len(named[1])) == (["h2"], 1)
    assert named[0] != named[1]


@pytest.mark.parametrize(("speaks", "joins"), [((8, 8), False), ((9, 10), True), ((10, 11), False), ((7, 9), True)])
def test_a_returning_host_joins_only_with_the_protocol_version_of_the_run(
    make_book: Any, make_install: Any, speaks: m.Speaks, joins: bool
) -> None:
    book = make_book("client")
    install = replace(make_install(others=("h3",)), failover=m.Failover())
    book << e.RunRequested(msgspec.structs.replace(install, version=9)) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << e.PeerLost(R, "h3", "is gone") >> ANY
    kinds: list[str] = []
    asked: list[Any] = []
    for _ in range(3):
        book << got("h3", m.Welcome("h3", "tcp://h3:1", "tcp://h3:2", instance="2", speaks=speaks)) >> ANY
        kinds += book.recorded()
        asked += book.sent("h3")
    assert [type(message) for message in asked] == ([m.Install] if joins else [])
    assert kinds == ([] if joins else ["fault"])


def test_only_the_keeper_of_a_replica_can_report_the_replica(client: Client) -> None:
    for sender, hosts in (("h3", ("h1",)), ("h3", ()), ("h1", ("h2", "h3"))):
        client.hear(sender, m.CheckpointStored, "o", 4, hosts)
        assert (client.recovery.known, client.recovery.stateless) == ({}, [])
        assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.CheckpointStored, "o", 4, ("h3", "h2"))  # it came from h2, where o is
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h1"))
    assert client.recovery.known == {"o": {4: {"h2", "h3", "h4"}}}
    client.hear("h2", m.CheckpointStored, "o", 4)
    assert len(client.recovery.stateless) == 1


def test_replica_reports_of_a_lost_host_are_ignored(client: Client) -> None:
    """The host may still be there and send messages."""
    client.lose("h4")
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h2"))
    assert client.book.recorded() == ["unexpected"]
    assert client.recovery.known == {}


@pytest.mark.parametrize(("keeper", "reporter"), [("h4", "h4"), ("client", "client"), ("client", "h1")])
def test_a_missing_replica_counts_only_if_the_keeper_or_the_starting_host_reports_the_loss(
    client: Client, keeper: str, reporter: str
) -> None:
    """No operator is placed on the client, so host h1 starts with the replica that the client keeps."""
    start_from_a_replica(client, keeper, 4)
    starter = client.book.core.runs[client.run].directory.locations["o"].host
    assert starter == ("h4" if keeper == "h4" else "h1")
    for sender in sorted({"h1", "h3", "h4"} - {keeper, starter}):
        client.hear(sender, m.StateMissing, "o", 4, "it says")
        assert client.generation == 1
    client.hear(reporter, m.StateMissing, "o", 4, "it is gone")
    assert client.generation == 2


def test_reports_of_impossible_replicas_do_not_displace_real_replicas(client: Client) -> None:
    for index in range(1000):
        client.hear("h3", m.CheckpointStored, "o", 10**6 + index, ("h3",))
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h2"))
    assert client.recovery.known["o"][4] == {"h4", "h2"}
    assert len(client.recovery.known["o"]) <= KNOWN


@pytest.mark.parametrize("holds", ["o", "s"])
def test_a_process_that_keeps_crashing_restarts_the_run_a_few_times_at_most(holds: str) -> None:
    """A process with a source ends the run, with an error that says so. A process with an operator does not."""
    trial = draw_trial(1)
    sources = {node.pinned for node in trial.dataflow.nodes if node.kind == "source"}
    host = next(name for name in trial.hosts[:-1] if (name in sources) == (holds == "s"))
    world = FaultyWorld(
        trial.hosts,
        trial.links,
        partial(code_of, trial),
        FaultPlan(1, tuple([Crash(host, 3.0 + 0.2 * number, 0.1) for number in range(1200)])),
        WorldConfig(interface=trial.interface, core=LIMITS, validate=True),
    )
    indices: list[int] = []
    world.failover = m.Failover(every=4, wait_s=20.0)
    world.on_delivered = lambda partition, now: indices.append(partition.index)
    world.run(trial.dataflow, {**trial.placement, "o0": host}, trial.partitions)
    assert indices == list(range(len(indices)))
    if holds == "o":
        assert (world.failed, len(indices)) == (None, trial.partitions)
    else:
        assert f"host {host!r}, which holds s" in (world.failed or "")
        assert "th time in a row without a new partition in between" in (world.failed or "")
    assert max(world.left.values()) < 3 * MOST_IN_VAIN


def test_a_host_that_is_reported_silent_is_lost_only_if_silent_towards_the_client(client: Client) -> None:
    """The host was slow or stopped. Other hosts cannot tell, so the silent host is asked to take part again."""
    client.pass_time(60.0)
    client.book.at(63.0)
    for host in ("h1", "h2", "h4"):
        client.hear(host, m.Pong)
    client.hear("h2", m.Failed, "o", "no answer", lost="h3")
    client.hear("h3", m.Pong)  # it has woken up
    client.hear("h2", m.Failed, "o", "no answer", lost="h3")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (0, set())
    client.pass_time(69.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="h3")
    assert client.recovery.rejoin_policy.barred == {"h3"}


def test_a_host_that_cannot_reach_an_irreplaceable_source_is_excluded(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="h1")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h2"})
    (entry,) = (location for location in client.recovery._context.install.locations if location.node == "o")
    assert entry.host != "h2"


def _with_a_stand_in_at_the_client(make_book: Any, make_install: Any) -> Client:
    plain = make_install(others=("h3", "h4"))
    nodes = [replace(node, stand_ins=("client",) if node.kind == "source" else ()) for node in plain.dataflow.nodes]
    return Client(make_book("client"), replace(plain, dataflow=Dataflow(tuple(nodes))))


def test_a_host_that_waits_for_a_source_with_a_stand_in_at_the_client_stays(make_book: Any, make_install: Any) -> None:
    client = _with_a_stand_in_at_the_client(make_book, make_install)
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="h1")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h1"})
    where = {location.node: location.host for location in client.recovery._context.install.locations}
    assert (where["s"], where["o"]) == ("client", "h2")


def test_a_source_host_that_alone_reports_a_foreign_leader_is_lost_beside_a_stand_in(
    make_book: Any, make_install: Any
) -> None:
    client = _with_a_stand_in_at_the_client(make_book, make_install)
    client.hear("h1", m.Failed, "", "another leads it", led=64)
    assert (client.generation, client.book.only(e.Fail)) == (1, [])


def test_a_run_restarts_when_the_client_misses_an_output_of_a_silent_lost_host(client: Client) -> None:
    """The client waited until the host was lost. The run continues until the client needs the lost output."""
    before = client.book.now
    while "h4" in client.book.core.runs[client.run].directory.hosts:
        client.book.at(client.book.now + client.book.core.config.ping_s)
        for host in ("h1", "h2", "h3"):
            client.book << got(host, m.Pong(client.run)) >> ANY
        client.book << fired(f"ping {client.run}") >> ANY
        assert client.book.now < before + 60.0
    assert client.generation == 0
    client.hear("client", m.Failed, "t", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, set())

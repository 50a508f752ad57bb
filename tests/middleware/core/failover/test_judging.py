"""What hosts of a run that outlives them say of each other, and of replicas: no host has it begin anew for ever."""

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
        """All hosts answer the client every second meanwhile."""
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
    """Lose host ``h2``, so that the run begins anew with a replica of ``o`` that ``keeper`` has."""
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 10
    client.hear(keeper, m.CheckpointStored, "o", version, (keeper, "h2"))
    client.lose("h2")
    assert Start("o", version, keeper) in client.recovery._context.install.starts


def lies(client: Client, liar: str) -> None:
    """All that may have a run begin anew and is not so."""
    for lost in ("h9", "h4", "h2", "h1", "client", liar):
        client.hear(liar, m.Failed, "o", "it says", lost=lost)
    for index in (0, 1, 4):
        client.hear(liar, m.StateMissing, "o", index, "it says")
    client.hear(liar, m.Failed, "o", "it says")
    client.hear(liar, m.Located, (m.Location("o", "h4", 1000),))


def test_a_host_that_says_that_others_are_lost_has_the_run_begin_anew_a_few_times_at_most(client: Client) -> None:
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


def test_who_says_of_a_second_host_that_it_does_not_answer_is_it_itself(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h4"})
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")  # nobody can have waited for so long
    assert client.generation == 1
    client.pass_time(120.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (2, {"h4", "h3"})
    assert client.book.core.runs[client.run].directory.hosts == {"client", "h1", "h2"}


def test_who_does_not_reach_the_client_goes(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="client")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h2"})
    (entry,) = (each for each in client.recovery._context.install.locations if each.node == "o")
    assert entry.host != "h2"


def test_what_a_lost_host_had_may_be_missed_once(client: Client) -> None:
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


def test_who_is_back_is_not_given_up_for_what_it_had(client: Client) -> None:
    client.lose("h4")
    client.book << e.PeerJoined(client.run, m.Peer("h4", "tcp://h4:1", "tcp://h4:2")) >> ANY
    for host in ("client", "h1", "h2", "h3"):
        client.hear(host, m.Detached, 1)
    client.hear("h4", m.Installed, "h4", number=1)
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, set())
    assert "h4" in client.book.core.runs[client.run].directory.hosts


@pytest.mark.parametrize("liar", ["h2", "h3"])
def test_who_refuses_replicas_has_the_run_begin_anew_as_often_as_there_are_some(client: Client, liar: str) -> None:
    """``h2`` has ``o``, and says that it cannot be restored; ``h3`` has not what it said that it has."""
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


def test_two_that_say_the_same_have_no_part_in_the_run_after_a_while(client: Client) -> None:
    """``h2`` has ``o``, and says that it has left replicas; ``h3`` says that it has them, and then has not."""
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 10
    for index in range(1, 100):
        client.book.at(float(index))
        for sender in ("h3", "h2"):
            client.hear(sender, m.CheckpointStored, "o", index % 10, ("h3", "h2"))
        client.hear("h2", m.Located, (m.Location("o", "h3", index),))
        client.lose("h4") if index == 1 else None
        for sender, other in (("h3", 0), ("h2", index % 10), ("h3", index % 10)):
            client.hear(sender, m.StateMissing, "o", other, "it says")
    assert client.generation <= 2 * (MOST_LACKING + 2)


def test_who_says_that_it_cannot_go_on_is_lost_and_of_nodes_of_others_it_has_nothing_to_say(client: Client) -> None:
    client.hear("h3", m.Failed, "o", "it says")
    assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.Failed, "s", "it says")
    assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.Failed, "", "a defect")
    assert client.generation == 0  # nothing was there
    assert "h3" not in client.book.core.runs[client.run].directory.hosts
    client.hear("h2", m.Failed, "o", "ZeroDivisionError")
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["node 'o' on host 'h2': ZeroDivisionError"]


def test_that_another_process_leads_the_run_two_hosts_say_or_who_has_a_source(client: Client) -> None:
    client.hear("h2", m.Failed, "", "another leads it", led=64)
    assert (client.generation, client.book.only(e.Fail)) == (1, [])
    assert "h2" not in client.book.core.runs[client.run].directory.hosts
    client.hear("h2", m.Failed, "", "another leads it", led=64)
    assert client.book.only(e.Fail) == []
    client.hear("h4", m.Failed, "", "another leads it", led=64)
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["host 'h4': another leads it"]


def test_who_has_the_only_source_is_believed_that_another_process_leads_the_run(client: Client) -> None:
    client.hear("h1", m.Failed, "", "another leads it", led=64)
    assert [failed.reason for failed in client.book.only(e.Fail)] == ["host 'h1': another leads it"]


def test_a_host_names_the_process_that_leads_a_run_to_another_that_asks_after_it(
    make_book: Any, make_install: Any
) -> None:
    """Of a generation that the same process has left, it says that it does not know it."""
    host, first = make_book("h2"), replace(make_install(), failover=m.Failover())
    named = {"client": "ab process 7 on there"}
    peers = tuple([replace(peer, instance=named.get(peer.name, "")) for peer in first.peers])
    mine, other = R.taken_over(5), R.taken_over(6)
    host << got("client", replace(first, run=mine)) >> ANY
    host << got("client", replace(first, run=other, peers=peers)) >> ANY
    why = "client 'client' leads the run from another process, process 7 on there; take its partitions there"
    for asks in (m.Ping(mine), m.Ping(mine, ()), replace(first, run=mine.next_generation)):
        host << got("client", asks) >> ANY
        (failed,) = [each for each in host.sent("client") if isinstance(each, m.Failed)]
        assert failed == m.Failed(asks.run, "", why, led=other.generation)
    host << got("client", replace(first, run=other.next_generation, peers=peers)) >> ANY
    host << got("client", m.Ping(other)) >> ANY
    assert [each for each in host.sent("client") if isinstance(each, m.Pong)] == [m.Pong(other, False)]
    host << got("h1", m.Ping(mine)) >> ANY
    assert [each for each in host.sent("h1") if isinstance(each, m.Pong)] == [m.Pong(mine, False)]


def test_a_refused_hand_over_of_the_client_does_not_have_the_run_begin_anew(client: Client) -> None:
    start_from_a_replica(client, "h3", 1)
    assert client.generation == 1
    client.hear("h3", m.Refuse, "o", 1, "no room")  # the version of its first hand-over
    assert client.generation == 1


def test_nothing_is_put_on_a_host_that_is_drained(client: Client) -> None:
    run = client.book.core.runs[client.run]
    run.parts.get(Recovery).bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 4
    client.hear("h3", m.CheckpointStored, "o", 1, ("h3", "h2"))
    client.hear("h3", m.Leave, False)
    client.lose("h2")
    assert Start("o", 1, "h3") in client.recovery._context.install.starts
    (entry,) = (each for each in client.recovery._context.install.locations if each.node == "o")
    assert entry.host not in ("h2", "h3")


def test_a_lost_host_is_named_once(client: Client) -> None:
    """Not again when another is lost while it stays away."""
    named: list[list[str]] = []
    for _ in range(2):
        client.lose(next(each.host for each in client.recovery._context.install.locations if each.node == "o"))
        assert client.recovery._begun is not None
        named.append([*client.recovery._begun["hosts"]])
    assert (named[0], len(named[1])) == (["h2"], 1)
    assert named[0] != named[1]


@pytest.mark.parametrize(("speaks", "joins"), [((8, 8), False), ((9, 10), True), ((10, 11), False), ((7, 9), True)])
def test_a_host_that_comes_back_speaks_the_version_of_the_run(
    make_book: Any, make_install: Any, speaks: m.Speaks, joins: bool
) -> None:
    book = make_book("client")
    install = replace(make_install(others=("h3",)), failover=m.Failover())
    book << e.RunRequested(msgspec.structs.replace(install, version=9)) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << e.PeerLost(R, "h3", "is gone") >> ANY
    told: list[str] = []
    asked: list[Any] = []
    for _ in range(3):
        book << got("h3", m.Welcome("h3", "tcp://h3:1", "tcp://h3:2", instance="2", speaks=speaks)) >> ANY
        told += book.recorded()
        asked += book.sent("h3")
    assert [type(each) for each in asked] == ([m.Install] if joins else [])
    assert told == ([] if joins else ["fault"])


def test_who_has_a_replica_says_so_itself(client: Client) -> None:
    for sender, hosts in (("h3", ("h1",)), ("h3", ()), ("h1", ("h2", "h3"))):
        client.hear(sender, m.CheckpointStored, "o", 4, hosts)
        assert (client.recovery.known, client.recovery.stateless) == ({}, [])
        assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.CheckpointStored, "o", 4, ("h3", "h2"))  # it came from h2, where o is
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h1"))
    assert client.recovery.known == {"o": {4: {"h2", "h3", "h4"}}}
    client.hear("h2", m.CheckpointStored, "o", 4)
    assert len(client.recovery.stateless) == 1


def test_a_host_that_is_lost_has_no_replicas_whatever_it_says(client: Client) -> None:
    """It may still be there, and its messages come."""
    client.lose("h4")
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h2"))
    assert client.book.recorded() == ["unexpected"]
    assert client.recovery.known == {}


def test_a_replica_is_lacking_by_the_word_of_who_keeps_it_or_starts_with_it_alone(client: Client) -> None:
    start_from_a_replica(client, "h4", 4)
    for sender in ("h1", "h3"):
        client.hear(sender, m.StateMissing, "o", 4, "it says")
        assert client.generation == 1
    client.hear("h4", m.StateMissing, "o", 4, "it is gone")
    assert client.generation == 2


def test_replicas_of_what_has_not_been_made_keep_no_account_from_those_of_what_has(client: Client) -> None:
    for index in range(1000):
        client.hear("h3", m.CheckpointStored, "o", 10**6 + index, ("h3",))
    client.hear("h4", m.CheckpointStored, "o", 4, ("h4", "h2"))
    assert client.recovery.known["o"][4] == {"h4", "h2"}
    assert len(client.recovery.known["o"]) <= KNOWN


@pytest.mark.parametrize("holds", ["o", "s"])
def test_a_process_that_ends_again_and_again_has_the_run_begin_anew_a_few_times_at_most(holds: str) -> None:
    """One with a source ends the run, in a line that says so; without what another had the run goes on."""
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
        assert "th time in a row before anything more came" in (world.failed or "")
    assert max(world.left.values()) < 3 * MOST_IN_VAIN


def test_a_host_that_the_client_does_not_hear_itself_is_judged_by_its_silence(client: Client) -> None:
    """It is late, or was stopped: who waits for it cannot know, and it is asked to take part again."""
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


def test_who_waits_for_a_source_that_no_other_host_has_goes_and_not_the_source(client: Client) -> None:
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="h1")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h2"})
    (entry,) = (each for each in client.recovery._context.install.locations if each.node == "o")
    assert entry.host != "h2"


def _with_a_stand_in_at_the_client(make_book: Any, make_install: Any) -> Client:
    plain = make_install(others=("h3", "h4"))
    nodes = [replace(each, stand_ins=("client",) if each.kind == "source" else ()) for each in plain.dataflow.nodes]
    return Client(make_book("client"), replace(plain, dataflow=Dataflow(tuple(nodes))))


def test_a_host_that_waits_for_a_source_with_a_stand_in_at_the_client_stays(make_book: Any, make_install: Any) -> None:
    client = _with_a_stand_in_at_the_client(make_book, make_install)
    client.pass_time(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="h1")
    assert (client.generation, client.recovery.rejoin_policy.barred) == (1, {"h1"})
    where = {each.node: each.host for each in client.recovery._context.install.locations}
    assert (where["s"], where["o"]) == ("client", "h2")


def test_a_source_s_host_that_alone_says_who_leads_is_lost_if_the_client_has_a_stand_in(
    make_book: Any, make_install: Any
) -> None:
    client = _with_a_stand_in_at_the_client(make_book, make_install)
    client.hear("h1", m.Failed, "", "another leads it", led=64)
    assert (client.generation, client.book.only(e.Fail)) == (1, [])


def test_a_run_begins_anew_as_its_client_misses_an_output_of_a_host_that_it_has_lost_as_silent(client: Client) -> None:
    """It waited for an answer until the host was lost. The run goes on without that host, until it needs the output."""
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

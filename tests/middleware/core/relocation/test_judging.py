"""What hosts of a run that outlives them say of each other, and of replicas: no host has it begin anew for ever."""

from __future__ import annotations

from typing import Any

import pytest
from playbook import ANY, Playbook, got

from thalweg.middleware.core.relocation.recovery import KNOWN, Recovery
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.generations import generation_of
from thalweg.middleware.protocol.messages import Start

HOSTS = ("h1", "h2", "h3", "h4")  # with ``s``, with ``o``, and two with nothing


class Client:
    """The client of a run, whose hosts install all of its generations."""

    def __init__(self, book: Playbook, install: m.Install) -> None:
        self.book = book
        book << e.RunRequested(m.Lasting.of(install, m.Failover()), None) >> ANY
        self._answer()

    @property
    def run(self) -> str:
        return next(iter(self.book.core.runs), "")

    @property
    def generation(self) -> int:
        return generation_of(self.run)

    @property
    def recovery(self) -> Recovery:
        return self.book.core.runs[self.run].recovery

    def hear(self, host: str, kind: Any, *fields: Any, **more: Any) -> None:
        before = self.run
        self.book << got(host, kind(before, *fields, **more)) >> ANY
        if self.run != before:
            self._answer()

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


def lies(client: Client, liar: str) -> None:
    """All that may have a run begin anew and is not so."""
    for lost in ("h9", "h4", "h2", "h1", "client", liar):
        client.hear(liar, m.Failed, "o", "it says", lost=lost)
    for version in (0, 1, 4):
        client.hear(liar, m.Refuse, "o", version, "it says")
    client.hear(liar, m.Located, (m.Location("o", "h4", 1000),))


def test_a_host_that_says_that_others_are_lost_has_the_run_begin_anew_a_few_times_at_most(client: Client) -> None:
    client.lose("h4")
    for second in range(60):  # as long as a host waits for another
        client.book.at(float(second))
        lies(client, "h3")
    assert client.generation == 1  # for where o was said to be; and h4 had a part in the run then
    assert client.recovery.barred == set()
    for second in range(60, 1000):
        client.book.at(float(second))
        lies(client, "h3")
    assert (client.generation, client.recovery.barred) == (3, {"h2", "h3"})


def test_who_says_of_a_second_host_that_it_does_not_answer_is_it_itself(client: Client) -> None:
    client.book.at(60.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h4")
    assert (client.generation, client.recovery.barred) == (1, {"h4"})
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")  # nobody can have waited for so long
    assert client.generation == 1
    client.book.at(120.0)
    client.hear("h3", m.Failed, "o", "no answer", lost="h2")
    assert (client.generation, client.recovery.barred) == (2, {"h4", "h3"})
    assert client.book.core.runs[client.run].directory.hosts == {"client", "h1", "h2"}


def test_who_does_not_reach_the_client_goes(client: Client) -> None:
    client.book.at(60.0)
    client.hear("h2", m.Failed, "o", "no answer", lost="client")
    assert (client.generation, client.recovery.barred) == (1, {"h2"})
    (entry,) = (each for each in client.recovery._setting.install.locations if each.node == "o")
    assert entry.host != "h2"


def test_what_a_lost_host_had_may_be_missed_once(client: Client) -> None:
    client.lose("h4")
    assert client.generation == 0
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.barred) == (1, set())
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert client.generation == 1
    client.book << e.PeerJoined(client.run, m.Peer("h4", "tcp://h4:1", "tcp://h4:2", "2")) >> ANY
    client.hear("h4", m.Installed, "h4", number=1)
    client.lose("h4")
    client.hear("h2", m.Failed, "o", "its partition 9 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.barred) == (2, set())


def test_who_is_back_is_not_given_up_for_what_it_had(client: Client) -> None:
    client.lose("h4")
    client.book << e.PeerJoined(client.run, m.Peer("h4", "tcp://h4:1", "tcp://h4:2")) >> ANY
    for host in ("client", "h1", "h2", "h3"):
        client.hear(host, m.Detached, 1)
    client.hear("h4", m.Installed, "h4", number=1)
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert (client.generation, client.recovery.barred) == (1, set())
    assert "h4" in client.book.core.runs[client.run].directory.hosts


@pytest.mark.parametrize("liar", ["h2", "h3"])
def test_who_refuses_replicas_has_the_run_begin_anew_as_often_as_there_are_some(client: Client, liar: str) -> None:
    """``h2`` has ``o``, and says that it cannot be restored; ``h3`` has not what it said that it has."""
    run = client.book.core.runs[client.run]
    run.recovery.bases, run.flow.nodes["t"].index = dict.fromkeys("sot", 0), 10  # the application has had so many
    for keeper, index in (("h3", 4), ("h4", 4), ("h3", 5), ("h4", 6)):
        client.hear(keeper, m.Stable, "o", index, (keeper, "h2"))
    client.lose("h4")
    client.hear("h2", m.Failed, "o", "its partition 4 was on host 'h4', which went away", lost="h4")
    assert Start("o", 6, "h2") in client.recovery._setting.lasting.starts
    for _ in range(100):
        for index in range(12):
            client.hear(liar, m.Stable, "o", index, (liar,))
        for index in range(12):
            client.hear(liar, m.Refuse, "o", index, "it says")
    assert client.generation < 8


def test_who_has_a_replica_says_so_itself(client: Client) -> None:
    for sender, hosts in (("h3", ("h1",)), ("h3", ()), ("h1", ("h2", "h3"))):
        client.hear(sender, m.Stable, "o", 4, hosts)
        assert (client.recovery.known, client.recovery.stateless) == ({}, [])
        assert client.book.recorded() == ["unexpected"]
    client.hear("h3", m.Stable, "o", 4, ("h3", "h2"))  # it came from h2, where o is
    client.hear("h4", m.Stable, "o", 4, ("h4", "h1"))
    assert client.recovery.known == {"o": {4: {"h2", "h3", "h4"}}}
    client.hear("h2", m.Stable, "o", 4)
    assert len(client.recovery.stateless) == 1


def test_replicas_of_what_has_not_been_made_keep_no_account_from_those_of_what_has(client: Client) -> None:
    for index in range(1000):
        client.hear("h3", m.Stable, "o", 10**6 + index, ("h3",))
    client.hear("h4", m.Stable, "o", 4, ("h4", "h2"))
    assert client.recovery.known["o"][4] == {"h4", "h2"}
    assert len(client.recovery.known["o"]) <= KNOWN

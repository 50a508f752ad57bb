"""Hosts that join, drain, are killed, restart or are absent while a client has runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec
import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, assert_reference, blocks

from thalweg import Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.membership.drain import drain
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import HostAbsentError, MoveRefused, RunError, UsageError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol.limits import CoreConfig

FLOW = chain(blocks()["h1"], Code("running"))


@pytest.fixture
def own() -> Iterator[LocalCluster]:
    with LocalCluster(2, allow=ALLOW) as cluster:
        yield cluster


def moved(run: Run, node: str, host: str) -> list[object]:
    """Request a move until it is carried out. Return the values that came until the node is on ``host``.

    Other hosts learn of a new host a moment after the client, and refuse the move until then.
    """
    came, stop_s = list[object](), time.monotonic() + patience(30)
    while time.monotonic() < stop_s:
        handle = run.move({node: host})
        while not handle.done():
            came.append(next(run).value)
        try:
            handle.result(0)
        except MoveRefused:
            continue
        return came if run.placement[node] == host else came + until_on(run, node, host)
    raise AssertionError(run.placement)


def until_on(run: Run, node: str, host: str) -> list[object]:
    """Return the values that come until ``node`` is on ``host``. Take at most 5,000 partitions, which last seconds."""
    came = []
    for partition in islice(run, 5000):
        came.append(partition.value)
        if run.placement[node] == host:
            return came
    raise AssertionError(run.placement)


def test_hosts_join_a_run_that_goes_on_and_operators_move_there(own: LocalCluster) -> None:
    with Client(own, allow=ALLOW) as client, client.run(FLOW, {"o": "h2"}) as run:
        came = [next(run).value]
        client.add_host("h3", own.start("h3"))
        assert client.hosts == ("h1", "h2", "h3", "client")
        came += moved(run, "o", "h3")
        own.kill("h2")  # where nothing is any more
        client.add_host("h2", own.start("h2"))
        came += moved(run, "o", "h2")
        came += [partition.value for partition in islice(run, 3)]
        assert_reference(came, FLOW, len(came))


def test_a_drained_host_ends_when_the_last_operator_has_moved_away(own: LocalCluster) -> None:
    own.start("h3")
    with Client(own, allow=ALLOW) as client, client.run(FLOW, {"o": "h2"}) as run, ThreadPoolExecutor(1) as pool:
        came = [next(run).value]
        only = "host 'h1' is not drained: host 'h1' is the only host that may hold source 's'; end the run first"
        with pytest.raises(RunError, match=f"^{only}$"):
            drain("h1", own.addresses["h1"])
        for leaves in (lambda: own.drain("h2"), lambda: drain("h3", own.addresses["h3"], timeout_s=20)):
            ending = pool.submit(leaves)
            while not ending.done():
                came.append(next(run).value)
            assert not ending.result(), "it ends with status 0"
        while client.hosts != ("h1", "client"):
            came.append(next(run).value)
        assert run.placement["o"] in ("h1", "client")
        assert_reference(came, FLOW, len(came))
    assert own.poll() == {"h2": 0, "h3": 0}


def test_a_host_that_cannot_be_drained_stays_unless_the_supervisor_ends_the_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    flow = chain(blocks()["h1"], Code("running"), Code("running"))
    full = CoreConfig(max_operators=0)
    with (
        LocalCluster(2, allow=ALLOW, limits={"max_operators": 1}) as own,
        Client(own, allow=ALLOW, limits=full) as client,
        client.run(flow, {"o": "h1", "p": "h2"}, failover=Failover()) as run,
        ThreadPoolExecutor(1) as pool,
    ):
        came = [next(run).value]
        ending = pool.submit(drain, "h2", own.addresses["h2"], timeout_s=20)
        while not ending.done():
            came.append(next(run).value)
        why = "no other host takes the operators of host 'h2': host 'h1': "
        with pytest.raises(RunError, match=f"host 'h2' is not drained: {why}.*; host 'client': .*$"):
            ending.result()
        ending = pool.submit(own.drain, "h2")  # as its supervisor does, which does not ask
        while not ending.done():
            came.append(next(run).value)
        assert ending.result() == 0
        came += [partition.value for partition in islice(run, 3)]
        assert_reference(came, flow, len(came))
    assert f"WARNING h2: the host ends before its nodes have moved away: {why}" in capfd.readouterr().err


def test_hosts_are_replaced_one_by_one_under_load(own: LocalCluster) -> None:
    """A rolling upgrade: the new hosts speak the next version of the protocol, and the present version as well.

    The run goes on in the present version. The host of the source is replaced, too, as the source has stand-ins.
    """
    own.start("h3")
    nodes = [msgspec.structs.replace(n, stand_ins=("h3", "h2") if n.kind == "source" else ()) for n in FLOW.nodes]
    flow, came = Dataflow(tuple(nodes)), list[object]()
    (oldest, newest), before = frames.SPEAKS, dict(own.pids)
    with Client(own, allow=ALLOW) as client, client.run(flow, {"o": "h2"}, failover=Failover(4)) as run:
        for name in ("h1", "h2", "h3"):
            with ThreadPoolExecutor(1) as pool:
                ending = pool.submit(own.drain, name)
                while not ending.done():
                    came.append(next(run).value)
                assert ending.result() == 0
            if name == "h1":
                address = own.start(name, f"--protocol={newest + 1}")
                why = (
                    f"'client' speaks version {newest} of the protocol, and 'h1' version {newest + 1}; upgrade 'client'"
                )
                with pytest.raises(UsageError, match=f"^{why}$"):
                    client.add_host(name, address)
                own.kill(name)
            client.add_host(name, own.start(name, f"--protocol={oldest}-{newest + 1}"))
            assert own.pids[name] != before[name]
            came += [partition.value for partition in islice(run, 10)]
        assert client.hosts == ("h1", "h2", "h3", "client")
        assert_reference(came, flow, len(came))
    drain("h3", own.addresses["h3"])


def test_a_host_that_announces_itself_takes_part_in_a_run(own: LocalCluster) -> None:
    with Client(own, allow=ALLOW, joins=True) as client, client.run(FLOW, {"o": "h2"}) as run:
        own.start("h3", "--join", client.endpoint)
        came = [next(run).value]
        while "h3" not in client.hosts:
            came.append(next(run).value)
        came += moved(run, "o", "h3")
        assert_reference(came, FLOW, len(came))


def test_a_host_that_was_down_when_the_client_started_can_be_added_later(own: LocalCluster) -> None:
    own.kill("h2")
    hosts = dict(own.addresses)
    with Client(hosts, listen=f"ipc://{own.addresses['h1'].removeprefix('ipc://')}-client", allow=ALLOW) as client:
        assert client.hosts == ("h1", "client")
        with pytest.raises(HostAbsentError, match=r"host 'h2', where 'o' is to be, does not answer: nothing listens"):
            client.run(FLOW, {"o": "h2"})
        with pytest.raises(HostAbsentError, match=r"host 'h2' at .* does not answer: nothing listens there"):
            client.add_host("h2")
        with pytest.raises(UsageError, match="the endpoint of host 'h9' is unknown; give it"):
            client.add_host("h9")
        client.add_host("h2", own.start("h2"))
        assert len(list(client.run(FLOW, {"o": "h2"}, partitions=3))) == 3


def test_a_run_with_failover_starts_while_hosts_are_absent(own: LocalCluster) -> None:
    with Client(own, allow=ALLOW) as client:
        for name in ("h1", "h2"):  # the host of the source, for which the run waits, and a host without a source
            own.kill(name)
            while name in client.hosts:
                time.sleep(0.01)
        with pytest.raises(HostAbsentError, match="host 'h1', where 's' is to be, "):
            client.run(FLOW, {"o": "h2"}, partitions=20)
        with client.run(FLOW, {"o": "h2"}, partitions=20, failover=Failover(4)) as run:
            client.add_host("h1", own.start("h1"))
            came = [partition.value for partition in run]
        assert run.placement["o"] != "h2"
    assert_reference(came, FLOW, 20)

"""Runs with failover that begin before the host of a source is up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from flows import chain

from thalweg.middleware.client.client import Client
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import HostAbsentError, HostLostError
from thalweg.middleware.protocol.failover import Failover
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.endpoints import UNIX, SocketFolder
from thalweg.middleware.shell.shell import Shell, ShellConfig

PARTITIONS = 6
FLOW = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, name: str, listen: str, bulk_port: int | None = None) -> Shell:
    shell = Shell(ShellConfig(name, listen=listen, bulk_port=bulk_port, insecure=True))
    stack.callback(shell.close)
    return shell


def ends(stack: ExitStack, transport: str) -> tuple[str, str]:
    """Return an endpoint at which no process listens, and an endpoint for a second host."""
    if transport == "ipc":
        folder = stack.enter_context(SocketFolder())
        return f"{UNIX}{folder}/h1", f"{UNIX}{folder}/h2"
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}", "tcp://127.0.0.1:*"


@pytest.mark.parametrize(("transport", "bulk_port"), [("ipc", None), ("tcp", None), ("tcp", 0)])
def test_a_run_with_failover_waits_for_the_host_of_a_source(
    stack: ExitStack, transport: str, bulk_port: int | None
) -> None:
    """The run also waits if the host receives bulk on a port that the client does not expect."""
    absent, listen = ends(stack, transport)
    second = start(stack, "h2", listen)
    client = stack.enter_context(Client({"h1": absent, "h2": second.me.control}, insecure=True))
    assert client.hosts == ("h2", "client")
    run = client.run(FLOW, {"o": "h2"}, failover=Failover(), partitions=PARTITIONS)
    start(stack, "h1", absent, bulk_port)
    assert [partition.index for partition in run] == [*range(PARTITIONS)]


def test_a_run_with_failover_fails_if_the_host_of_a_source_does_not_come(stack: ExitStack) -> None:
    absent, listen = ends(stack, "tcp")
    second = start(stack, "h2", listen)
    limits = CoreConfig(liveness_s=1.0, lease_s=4.0)
    client = stack.enter_context(Client({"h1": absent, "h2": second.me.control}, insecure=True, limits=limits))
    with pytest.raises(HostLostError, match="host 'h1', which holds s, did not install the run within 1 s"):
        list(client.run(FLOW, {"o": "h2"}, failover=Failover(wait_s=0.5)))


def test_a_run_without_failover_or_with_an_operator_on_an_absent_host_is_refused(stack: ExitStack) -> None:
    absent, listen = ends(stack, "tcp")
    second = start(stack, "h2", listen)
    client = stack.enter_context(Client({"h1": absent, "h2": second.me.control}, insecure=True))
    with pytest.raises(HostAbsentError, match="host 'h1', where 's' is to be, does not answer: nothing listens there"):
        client.run(FLOW, {"o": "h2"})
    elsewhere = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"), host="h2")
    with pytest.raises(HostAbsentError, match="host 'h1', where 'o' is to be, does not answer"):
        client.run(elsewhere, {"o": "h1"}, failover=Failover())

"""Hosts and clients over IPv6: endpoints in brackets, all addresses at once, and names of both families."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flows import chain
from patience import patience

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.membership.drain import drain
from thalweg.middleware.client.membership.reachability import reach
from thalweg.middleware.dataflow import Code
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell import endpoints
from thalweg.middleware.shell.endpoints import advertised, is_ipv6, resolve_endpoint
from thalweg.middleware.shell.security import MEMBERS, Keys, Role, new_certificate, write_certificate
from thalweg.middleware.shell.shell import Shell, ShellConfig

FLOW = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"))
PARTITIONS = 5


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="loopback has no IPv6 here")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def keys_of(folder: Path, name: str, role: Role = "host") -> Path:
    made, _, secret = new_certificate(name, role, folder)
    write_certificate(folder / MEMBERS / f"{name}.key", made.text())
    return secret


def port_of(shell: Shell) -> str:
    return shell.me.control.rpartition(":")[2]


def both_families(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have the name ``both.example`` stand for these addresses."""
    known = socket.getaddrinfo

    def found(host: str, *words: Any, **more: Any) -> Any:
        if host != "both.example":
            return known(host, *words, **more)
        return [answer for address in addresses for answer in known(address, *words, **more)]

    monkeypatch.setattr(endpoints.socket, "getaddrinfo", found)


@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize(
    ("listen", "dialled"),
    [
        ("tcp://[::1]:*", ("[::1]", "[::1]")),
        ("tcp://*:*", ("[::1]", "127.0.0.1")),
        ("tcp://[::]:*", ("127.0.0.1", "[::1]")),
    ],
)
def test_hosts_run_over_ipv6_and_over_both_families(
    stack: ExitStack, listen: str, dialled: tuple[str, str], with_keys: bool, tmp_path: Path
) -> None:
    hosts = {}
    for name, address in zip(("h1", "h2"), dialled, strict=True):
        keys = Keys.load(keys_of(tmp_path, name)) if with_keys else None
        shell = Shell(ShellConfig(name, listen=listen, insecure=not with_keys), keys=keys)
        stack.callback(shell.close)
        hosts[name] = f"tcp://{address}:{port_of(shell)}"
    client_keys = keys_of(tmp_path, "alice", "client") if with_keys else None
    own = "tcp://[::1]:*" if "[::1]" in dialled[0] else None
    client = stack.enter_context(Client(hosts, listen=own, keys=client_keys, insecure=not with_keys))
    assert [each.index for each in client.run(FLOW, {"o": "h2"}, partitions=PARTITIONS)] == [*range(PARTITIONS)]
    run = client.run(FLOW, {"o": "h1"}, partitions=PARTITIONS)
    assert len(list(run)) == PARTITIONS


@pytest.mark.parametrize("listens", ["127.0.0.1", "[::1]"])
def test_a_name_of_both_families_is_dialled_where_the_host_listens(
    stack: ExitStack, listens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_families(monkeypatch, "::1", "127.0.0.1")
    shell = Shell(ShellConfig("h1", listen=f"tcp://{listens}:*", insecure=True))
    stack.callback(shell.close)
    named = f"tcp://both.example:{port_of(shell)}"
    with Client({"h1": named}, insecure=True) as client:
        assert len(list(client.run(FLOW, {"o": "h1"}, partitions=PARTITIONS))) == PARTITIONS
    assert all(found.passes for found in reach(named, "h1", None, patience(5.0)))


def test_a_host_at_an_address_of_ipv6_is_drained(stack: ExitStack, tmp_path: Path) -> None:
    finished = threading.Event()  # the host answers before it reports the end to its own program

    def tell(command: e.Command) -> None:
        if isinstance(command, e.DrainFinished):
            finished.set()

    secret, client = keys_of(tmp_path, "h1"), keys_of(tmp_path, "alice", "client")
    shell = Shell(ShellConfig("h1", listen="tcp://[::1]:*"), tell, keys=Keys.load(secret))
    stack.callback(shell.close)
    drain("h1", shell.me.control, Keys.load(client), patience(10.0))
    assert finished.wait(patience(10.0))


@pytest.mark.parametrize(
    ("addresses", "taken"),
    [(("::1", "127.0.0.1"), "tcp://127.0.0.1:9"), (("::1",), "tcp://[::1]:9"), (("127.0.0.1",), "tcp://127.0.0.1:9")],
)
def test_a_name_without_a_listener_is_resolved_to_ipv4_if_possible(
    addresses: tuple[str, ...], taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_families(monkeypatch, *addresses)
    assert resolve_endpoint("tcp://both.example:9") == resolve_endpoint("tcp://both.example:9", 0) == taken


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://127.0.0.1:9", "tcp://[::1]:9", "tcp://*:*", "tcp://localhost:*", "ipc:///tmp/x/h1", "tcp://no.invalid:9"],
)
def test_an_endpoint_without_a_name_to_resolve_stays_unchanged(endpoint: str) -> None:
    assert resolve_endpoint(endpoint) == endpoint


def test_endpoints_in_brackets_or_for_all_addresses_are_ipv6() -> None:
    assert all(map(is_ipv6, ("tcp://[::1]:1", "tcp://[fe80::1%eth0]:1", "tcp://*:1")))
    assert not any(map(is_ipv6, ("tcp://0.0.0.0:1", "tcp://h1.example:1", "tcp://127.0.0.1:1", "ipc:///tmp/[x]")))


@pytest.mark.parametrize("address", ["fd00::7", "[fd00::7]"])
def test_an_address_of_ipv6_is_advertised_in_brackets(address: str) -> None:
    assert advertised("tcp://*:7800", address) == "tcp://[fd00::7]:7800"


def test_the_progress_of_a_route_over_ipv6_is_measured(stack: ExitStack) -> None:
    shell = Shell(ShellConfig("h1", listen="tcp://*:*", insecure=True))
    stack.callback(shell.close)
    with Client({"h1": f"tcp://[::1]:{port_of(shell)}"}, listen="tcp://[::1]:*", insecure=True) as client:
        run = client.run(FLOW, {"o": "h1"}, partitions=PARTITIONS)
        assert len(list(run)) == PARTITIONS
        guard = client.shell._sockets.guard
        assert guard is not None
        assert guard.outflow(client._registry.peers["h1"].bulk) is not None

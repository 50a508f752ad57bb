"""Errors for hosts that do not answer: one line for each cause, as soon as the cause is known."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq
from patience import patience
from zmq.utils.monitor import recv_monitor_message

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.membership import hello
from thalweg.middleware.client.membership.hello import identify_hosts
from thalweg.middleware.errors import HostAbsentError, HostLostError, UsageError
from thalweg.middleware.shell import endpoints
from thalweg.middleware.shell.endpoints import listen_among
from thalweg.middleware.shell.security import MEMBERS, PUBLIC, Keys, Role, new_certificate, write_certificate
from thalweg.middleware.shell.shell import Shell, ShellConfig

KNOWN_S = 3.0


@contextmanager
def listening(says: bytes, *, hangs_up: bool = False) -> Iterator[str]:
    """Run a foreign program at an endpoint. It sends bytes at once, or closes a connection after a received byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    kept.append(connection)
                    if hangs_up:
                        connection.recv(1)
                        connection.close()
                    connection.sendall(says)
                except OSError:
                    if server.fileno() < 0:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
            thread.join()
            for connection in kept:
                connection.close()


def refused(name: str, address: str, keys: Keys | None = None) -> str:
    begun_s = time.monotonic()
    with pytest.raises((HostAbsentError, UsageError)) as caught:
        identify_hosts({name: address}, keys)
    assert time.monotonic() - begun_s < patience(KNOWN_S)
    return str(caught.value).replace(address, "ADDRESS")


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_an_endpoint_without_a_listener_is_reported_with_the_cause(tmp_path: Path) -> None:
    down = "host 'h1' at ADDRESS does not answer: nothing listens there; is thalweg host running?"
    assert refused("h1", free()) == down
    assert refused("h1", f"ipc://{tmp_path}/none") == down
    assert "does not answer: its address cannot be found" in refused("h1", "tcp://no.such.host.invalid:7800")


@pytest.mark.parametrize(("says", "hangs_up"), [(b"SSH-2.0-OpenSSH_9.6\r\n", False), (b"", True)], ids=["ssh", "http"])
def test_a_foreign_program_at_an_endpoint_is_recognised(says: bytes, hangs_up: bool) -> None:
    with listening(says, hangs_up=hangs_up) as address:
        said = refused("h1", address)
    assert said.endswith("does not answer: something else than a Thalweg host listens there; is the port right?")


def test_a_host_with_a_different_name_and_a_bulk_port_are_reported() -> None:
    shell = Shell(ShellConfig("h1", insecure=True))
    try:
        assert refused("h2", shell.me.control) == "the host at ADDRESS is called 'h1', not 'h2'"
        with pytest.raises(
            HostLostError, match=r"within 0\.3 s; it is connected: .* or is this its port for bulk"
        ) as caught:
            identify_hosts({"h1": shell.me.bulk}, timeout_s=0.3)
        assert caught.value.host == "h1"
    finally:
        shell.close()


def made(folder: Path, name: str, role: Role, *, member: bool = True) -> Keys:
    certificate, _, secret = new_certificate(name, role, folder)
    (folder / MEMBERS).mkdir(exist_ok=True)
    if member:
        write_certificate(folder / MEMBERS / f"{name}{PUBLIC}", certificate.text())
    return Keys.load(secret)


@pytest.mark.timeout(60)
def test_a_missing_certificate_is_reported_although_a_further_host_is_down(tmp_path: Path) -> None:
    alice = made(tmp_path, "alice", "client")
    made(tmp_path, "h1", "host")
    made(tmp_path, "h2", "host", member=False)
    with pytest.raises(UsageError, match="h2"):  # and the question to h1, which nothing receives, is dropped
        identify_hosts({"h1": free(), "h2": free()}, alice)


NO_KEYS = "has no keys, and this client has keys; start the host with --keys, or give this client no keys"
OTHERS = "does not hold the certificate that this client has for 'h2'"


def test_keys_that_do_not_match_are_reported_with_the_cause(tmp_path: Path) -> None:
    host, alice = made(tmp_path, "h1", "host"), made(tmp_path, "alice", "client")
    bob = made(tmp_path, "bob", "client", member=False)
    made(tmp_path, "h2", "host")
    secure, open_to_all = Shell(ShellConfig("h1"), keys=host), Shell(ShellConfig("h1", insecure=True))
    try:
        assert list(identify_hosts({"h1": secure.me.control}, alice)) == ["h1"]
        said = [
            refused("h1", secure.me.control),
            refused("h1", secure.me.control, bob),
            refused("h2", secure.me.control, alice),
            refused("h1", open_to_all.me.control, alice),
        ]
    finally:
        secure.close()
        open_to_all.close()
    assert said == [
        "host 'h1' at ADDRESS asks for a certificate, and none was given; give keys",
        "host 'h1' at ADDRESS does not admit the certificate of 'bob'; is the certificate among the members of the"
        " host, and not expired?",
        f"host 'h2' at ADDRESS {OTHERS}; is that host running there, with its own key, and is this its control port?",
        f"host 'h1' at ADDRESS {NO_KEYS}",
    ]


@pytest.mark.parametrize("with_keys", [True, False])
def test_an_error_names_the_host_with_a_bulk_port_at_the_endpoint(with_keys: bool, tmp_path: Path) -> None:
    """The endpoint of ``h2`` is one port above the endpoint of ``h1``, at which ``h1`` receives partitions."""
    keys = made(tmp_path, "h1", "host") if with_keys else None
    alice = made(tmp_path, "alice", "client") if with_keys else None
    if with_keys:
        made(tmp_path, "h2", "host")
    (control, bulk), limit_s = next_to_each_other(), patience(1.0)
    first = Shell(ShellConfig("h1", listen=control, insecure=True), keys=keys)
    try:
        assert first.me.bulk == bulk
        with pytest.raises(HostAbsentError) as caught:
            identify_hosts({"h1": control, "h2": bulk}, alice, limit_s)
    finally:
        first.close()
    port = bulk.rpartition(":")[2]
    what = OTHERS if with_keys else f"did not answer within {limit_s:g} s"
    cure = f"is {port} the port for partitions of host 'h1'? give either host another (--bulk-port)"
    assert str(caught.value) == f"host 'h2' at {bulk} {what}; {cure}"


def next_to_each_other() -> tuple[str, str]:
    """Return two free endpoints, one port apart."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"


def test_a_handshake_that_fails_without_detail_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_word(monitor: zmq.Socket[bytes]) -> dict[str, object]:
        return dict(recv_monitor_message(monitor)) | {"event": zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}

    monkeypatch.setattr(hello, "recv_monitor_message", without_a_word)
    made(tmp_path, "h1", "host")
    keys = made(tmp_path, "alice", "client")
    open_to_all = Shell(ShellConfig("h1", insecure=True))
    try:
        said = refused("h1", open_to_all.me.control, keys)
    finally:
        open_to_all.close()
    assert said == f"host 'h1' at ADDRESS {NO_KEYS}"


def test_a_client_listens_at_an_address_that_the_hosts_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listen_among(["tcp://127.0.0.1:7800", "tcp://localhost:7802"], None) == "tcp://127.0.0.1:*"
    ways = {
        "tcp://a:1": ("10.0.0.2", "10.0.0.9"),
        "tcp://b:1": ("127.0.0.1", "127.0.0.1"),
        "tcp://c:1": ("[fd00::2]", "[fd00::9]"),
        "tcp://own:1": ("10.0.0.2", "10.0.0.2"),
    }
    monkeypatch.setattr(endpoints, "_way_to", ways.__getitem__)
    assert listen_among(["tcp://b:1", "tcp://a:1"], None) == "tcp://10.0.0.2:*"
    assert listen_among(["tcp://c:1"], None) == "tcp://[fd00::2]:*"
    loopback = "tcp://127.0.0.1:*"
    with pytest.raises(UsageError) as caught:
        Client({"a": "tcp://a:1"}, listen=loopback)
    assert str(caught.value) == (
        "the host at tcp://a:1 cannot reach a client that listens on loopback, at tcp://127.0.0.1:*; leave listen out,"
        " or listen at tcp://10.0.0.2:*"
    )
    assert listen_among(["tcp://a:1"], loopback, "gate.example") == loopback  # it is forwarded there
    assert listen_among(["tcp://b:1"], loopback) == loopback
    assert listen_among(["tcp://own:1"], loopback) == loopback  # this machine's own address
    assert listen_among(["tcp://a:1"], "tcp://0.0.0.0:*") == "tcp://0.0.0.0:*"

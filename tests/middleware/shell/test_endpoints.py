"""Unix sockets: only their user dials them, no file of them is left, and they do not mix with TCP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from flows import chain
from run_ids import R

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, host_command
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import UNIX, SocketFolder, beside
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.sockets import Listening, Sockets

FLOW = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"))
DIAL = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("connected")
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def folder() -> Iterator[str]:
    with SocketFolder() as made:
        yield made


def test_a_different_local_user_cannot_dial_a_local_cluster() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("only root can become another user")
    with LocalCluster(2) as cluster, Client(cluster) as client:
        peers = client._registry.peers.values()
        paths = [end.removeprefix(UNIX) for peer in peers for end in (peer.control, peer.bulk)]
        done = subprocess.run([python, "-c", DIAL, *paths], capture_output=True, text=True, check=True, cwd="/")
        assert done.stdout.splitlines() == ["Permission denied"] * 6


def test_a_cluster_and_a_client_leave_no_files() -> None:
    cluster = LocalCluster(2)
    folder = Path(cluster.addresses["h1"].removeprefix(UNIX)).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with Client(cluster) as client:
        assert [each.index for each in client.run(FLOW, {"o": "h2"}, partitions=3)] == [0, 1, 2]
        assert len(list(folder.iterdir())) == 6
    assert len(list(folder.iterdir())) == 4  # the client has removed its own sockets
    cluster.kill("h1")
    cluster.close()
    assert not folder.exists()


def test_a_folder_that_other_users_may_enter_is_refused(tmp_path: Path) -> None:
    for mode in (0o750, 0o701, 0o777):
        tmp_path.chmod(mode)
        with pytest.raises(UsageError, match=f"others may enter {tmp_path}, and so dial .*; listen in a folder made"):
            Shell(ShellConfig("h1", listen=f"ipc://{tmp_path}/h1"))
    with pytest.raises(UsageError, match="no socket can be made in /nowhere: No such file"):
        Shell(ShellConfig("h1", listen="ipc:///nowhere/h1"))


@pytest.mark.parametrize(
    ("endpoint", "bulk_port", "found"),
    [
        ("tcp://127.0.0.1:7800", None, "tcp://127.0.0.1:7801"),
        ("tcp://127.0.0.1:7800", 7900, "tcp://127.0.0.1:7900"),
        ("tcp://127.0.0.1:7800", 0, "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:*", None, "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:*", 7900, "tcp://127.0.0.1:7900"),
        ("tcp://[::1]:65535", 65534, "tcp://[::1]:65534"),
    ],
)
def test_partitions_arrive_on_the_next_port_or_on_the_bulk_port(
    endpoint: str, bulk_port: int | None, found: str
) -> None:
    assert beside(endpoint, bulk_port) == found


@pytest.mark.parametrize(
    ("endpoint", "bulk_port", "says"),
    [
        (
            "tcp://127.0.0.1:7800",
            7800,
            "control messages and partitions cannot share port 7800; give another --bulk-port",
        ),
        ("tcp://127.0.0.1:7800", -1, "the port for partitions is -1; give one between 1 and 65535, or 0 for any"),
        ("tcp://127.0.0.1:7800", 65536, "the port for partitions is 65536; give one between 1 and 65535"),
        ("tcp://127.0.0.1:65535", None, "leaves no port above it for partitions; give one with --bulk-port"),
        ("tcp://127.0.0.1:65536", 7900, "has no port between 1 and 65535"),
        (
            "ipc:///tmp/x/h1",
            7900,
            "is a Unix socket, and partitions have a second socket beside it; leave --bulk-port out",
        ),
    ],
)
def test_an_invalid_port_for_partitions_is_refused(endpoint: str, bulk_port: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        beside(endpoint, bulk_port)


def test_a_client_and_a_host_receive_partitions_on_free_ports() -> None:
    """The kernel chooses a free port, as a port that a test chooses may be in use by then."""
    host = Shell(ShellConfig("h1", listen="tcp://127.0.0.1:*", bulk_port=0, insecure=True))
    try:
        with Client({"h1": host.me.control}, bulk_port=0, insecure=True) as client:
            assert len(list(client.run(FLOW, {"o": "h1"}, partitions=3))) == 3
            assert client.shell.me.bulk != client.shell.me.control
    finally:
        host.close()


def test_a_socket_in_use_is_refused_and_a_socket_left_behind_is_replaced(folder: str) -> None:
    listen = f"ipc://{folder}/h1"
    with pytest.raises(UsageError, match="is a Unix socket, which has no other address; leave --advertise out"):
        Shell(ShellConfig("h1", listen=listen, advertise="gate.example"))
    host = Shell(ShellConfig("h1", listen=listen))
    with pytest.raises(UsageError, match=f"{listen} is already in use; choose another name with --listen"):
        Shell(ShellConfig("h2", listen=listen))
    host.close()
    assert os.listdir(folder) == []
    command = host_command("h1", listen)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert sorted(os.listdir(folder)) == ["h1", "h1.bulk"]
    Shell(ShellConfig("h1", listen=listen)).close()


def test_a_client_refuses_mutually_unreachable_hosts(folder: str) -> None:
    one, other = f"ipc://{folder}/h1", "tcp://127.0.0.1:7800"
    for addresses, listen in (
        ({"h1": one, "h2": other}, None),
        ({"h1": one}, "tcp://127.0.0.1:*"),
        ({"h1": one, "h2": "ipc:///elsewhere/h2"}, None),
    ):
        with pytest.raises(UsageError, match="cannot talk; all must listen over TCP, or all on Unix sockets in one"):
            Client(addresses, listen=listen)


def test_no_message_makes_a_host_dial_the_socket_of_a_foreign_program(folder: str) -> None:
    with SocketFolder() as other, zmq.Context() as context, context.socket(zmq.ROUTER) as foreign:
        foreign.bind(f"ipc://{other}/theirs")
        for listen, may in ((f"ipc://{folder}/a", False), ("tcp://127.0.0.1:*", False), (f"ipc://{other}/a", True)):
            sockets = Sockets("a", Listening(listen, insecure=True), None)
            try:
                sockets.meet(R, [m.Peer("x", f"ipc://{other}/theirs", f"ipc://{other}/theirs")])
                assert (sockets.watch_process(R, "x") is not None) is may
                sockets.post(R, "x", m.Hello())
                assert (foreign.poll(2000 if may else 200) != 0) is may
            finally:
                sockets.destroy(0)

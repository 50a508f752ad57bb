"""Certificates: only members are admitted, under their own names, and no host listens over TCP without keys."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import zmq
import zmq.auth
from flows import chain
from patience import patience
from run_ids import R, run_of

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.membership import hello
from thalweg.middleware.client.membership.hello import identify_hosts
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import HostLostError, ProtocolError, RunError, UsageError
from thalweg.middleware.platform import trust
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell import security
from thalweg.middleware.shell import shell as shell_module
from thalweg.middleware.shell.security import (
    MEMBERS,
    TICK_S,
    Keys,
    Members,
    Role,
    check_leader,
    new_certificate,
    read_certificate,
    read_members,
    secure_dealer,
    write_certificate,
)
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.sockets import Listening, Sockets, new_identity

FLOW = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"))
SOON_S = 10.0


def make(folder: Path, name: str, role: Role = "host", *, days: float | None = None, member: bool = True) -> Path:
    """Make a certificate and return its secret file. The public one is in the members folder unless a stranger's."""
    made, _, secret = new_certificate(name, role, folder, days)
    (folder / MEMBERS).mkdir(exist_ok=True)
    if member:
        write_certificate(folder / MEMBERS / f"{name}.key", made.text())
    return secret


@contextmanager
def host(folder: Path, name: str) -> Iterator[Shell]:
    secret = folder / f"{name}.key_secret"
    shell = Shell(ShellConfig(name), keys=Keys.load(secret if secret.exists() else make(folder, name)))
    try:
        yield shell
        assert shell.alive
    finally:
        shell.close()


@contextmanager
def dialled(keys: Keys, to: str, endpoint: str, identity: bytes) -> Iterator[zmq.Socket[bytes]]:
    """Connect a socket by hand, under any identity."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, round(patience(5) * 1000))
        socket.setsockopt(zmq.ROUTING_ID, identity)
        secure_dealer(socket, keys, to)
        socket.connect(endpoint)
        yield socket


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(SOON_S)
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- files ------------------------------------------------------------------------------------------


def test_certificates_have_the_format_of_pyzmq_and_are_never_overwritten(tmp_path: Path) -> None:
    member, public, secret = new_certificate("h-1.example", "host", tmp_path / "there", 30)
    assert (public.name, secret.name) == ("h-1.example.key", "h-1.example.key_secret")
    assert (public.stat().st_mode & 0o777, secret.stat().st_mode & 0o777) == (0o644, 0o600)
    known, none = zmq.auth.load_certificate(public)
    both = zmq.auth.load_certificate(secret)
    assert (known.decode(), none) == (member.public, None)
    assert both[1] is not None
    assert both == (known, read_certificate(secret)[1].encode())
    assert zmq.curve_public(both[1]) == known
    assert read_certificate(public) == (member, "")
    assert member.expires is not None
    assert 29.9 < (member.expires - datetime.now(UTC)).total_seconds() / 86400 < 30.1
    before = secret.read_bytes()
    with pytest.raises(UsageError, match=r"h-1\.example\.key_secret exists; a certificate is never overwritten"):
        new_certificate("h-1.example", "client", tmp_path / "there")
    assert secret.read_bytes() == before
    for name in ("", "../x", "a/b", ".hidden", "a b", "x" * 129):
        with pytest.raises(UsageError, match="is no name of a certificate"):
            new_certificate(name, "host", tmp_path)


def test_a_certificate_of_pyzmq_without_metadata_is_refused(tmp_path: Path) -> None:
    public, secret = zmq.auth.create_certificates(tmp_path, "h1", {"name": "h1", "role": "host", "site": "Pisa"})
    assert read_certificate(Path(secret))[0].name == "h1"
    with pytest.raises(UsageError, match=r"h1\.key is not a certificate with name, role and expiry.*`name`"):
        read_certificate(Path(public))  # pyzmq writes the metadata into the secret one only


def test_an_unusable_secret_certificate_is_refused_with_a_single_line_error(tmp_path: Path) -> None:
    good, other, old = make(tmp_path, "h1"), make(tmp_path, "h2"), make(tmp_path, "old", days=-1)
    mixed = tmp_path / "mixed.key_secret"
    write_certificate(mixed, read_certificate(good)[0].text(read_certificate(other)[1]), 0o600)
    private_no_more = make(tmp_path, "h3")
    private_no_more.chmod(0o640)
    public = tmp_path / "h1.key"
    public.chmod(0o600)
    nothing = tmp_path / "nothing"
    nothing.write_text("-----BEGIN KEY-----")
    for path, says in (
        (private_no_more, "others may read the secret certificate .*h3.key_secret; chmod 600 "),
        (public, "is a public certificate; give the secret one, h1.key_secret"),
        (mixed, "does not hold a key pair"),
        (old, "expired on 20.* UTC; make one with"),
        (nothing, "is not a certificate with name, role and expiry: it has no public key"),
        (tmp_path / "absent", "the certificate .* cannot be read: No such file"),
        (tmp_path, "the certificate .* cannot be read: Is a directory"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            Keys.load(path, role="host")
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="is the certificate of a host; make one with thalweg keys new --role client"):
        Client({}, keys=good)
    with pytest.raises(UsageError, match="'h9' cannot use the certificate of 'h1'; a name is that of its certificate"):
        Shell(ShellConfig("h9"), keys=Keys.load(good))
    with pytest.raises(UsageError, match=r"there is no members folder .*/x; name another with --members, or make it"):
        Keys.load(good, tmp_path / "x")
    (tmp_path / MEMBERS).chmod(0o777)
    with pytest.raises(UsageError, match=r"others may write to the members folder .*; chmod go-w "):
        Keys.load(good)


def test_a_certificate_that_other_users_could_change_is_refused_and_admits_no_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = make(tmp_path, "h1")
    make(tmp_path, "h2")
    files = {name: tmp_path / MEMBERS / f"{name}.key" for name in ("h1", "h2")}
    members = Keys.load(good).members
    keys = {name: members.public_of(name) for name in files}
    monkeypatch.setattr(trust, "grp", SimpleNamespace(getgrgid=no_group))  # that is its owner's alone
    for unsafe, harmless in ((0o666, 0o644), (0o646, 0o444), (0o664, 0o600)):
        files["h2"].chmod(unsafe)
        with pytest.raises(UsageError, match=r"others may write to the certificate .*h2\.key; chmod go-w "):
            Keys.load(good)
        members.refresh()
        assert (members.public_of("h1"), members.public_of("h2")) == (keys["h1"], "")
        assert not members.admits(keys["h2"])
        assert [line.partition(" the certificate ")[0] for line in members.wrong] == ["others may write to"]
        files["h2"].chmod(harmless)
        members.refresh()
        assert (members.public_of("h2"), members.wrong) == (keys["h2"], [])
    tmp_path.chmod(0o777)
    (tmp_path / MEMBERS / "h3.key").write_text("so that the folder is read again")
    assert not members.admits(keys["h1"])
    with pytest.raises(UsageError, match=r"others may write to the folder .*, and so could replace the secret certif"):
        Keys.load(good)


def no_group(number: int) -> NoReturn:
    raise KeyError(number)


def test_two_names_for_the_same_key_are_refused(tmp_path: Path) -> None:
    good = make(tmp_path, "h1")
    make(tmp_path, "h2")
    (tmp_path / MEMBERS / "h3.key").write_text((tmp_path / "h2.key").read_text().replace("name = h2", "name = h3"))
    says = r"h2\.key and h3\.key in .* hold the same key, which proves one name only; remove all but one"
    with pytest.raises(UsageError, match=says):
        Keys.load(good)
    found, wrong = read_members(tmp_path / MEMBERS)
    assert ([member.name for member in found], len(wrong)) == (["h1"], 1)
    for name in ("h1", "h2"):
        (tmp_path / MEMBERS / f"{name}.key").unlink()
    own = (tmp_path / "h1.key").read_text()
    (tmp_path / MEMBERS / "h4.key").write_text(own.replace("name = h1", "name = h4"))
    with pytest.raises(UsageError, match=r"h4\.key in .* holds the key of 'h1', which proves one name only; remove"):
        Keys.load(good)


def test_a_change_of_a_certificate_with_the_same_size_and_date_is_noticed(tmp_path: Path) -> None:
    good = make(tmp_path, "h1")
    path = tmp_path / MEMBERS / "h2.key"
    make(tmp_path, "h2")
    members = Keys.load(good).members
    before, found = members.public_of("h2"), path.stat()
    other, _, _ = new_certificate("h2", "host", tmp_path / "other")
    time.sleep(2 * TICK_S)  # the first one is old by then
    members.refresh()
    path.write_text(other.text())
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)
    members.refresh()
    assert members.public_of("h2") == other.public != before


def test_a_change_of_a_certificate_within_the_tick_of_a_check_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamps are equal, as if the kernel had dated both files alike."""
    good = make(tmp_path, "h1")
    make(tmp_path, "h2")
    members = Keys.load(good).members
    other, _, _ = new_certificate("h2", "host", tmp_path / "other")
    monkeypatch.setattr(security, "_stamp", lambda _: (1, 2, time.time_ns(), 4))
    members.refresh()
    (tmp_path / MEMBERS / "h2.key").write_text(other.text())
    members.refresh()
    assert members.public_of("h2") == other.public


def test_the_members_follow_the_changes_of_the_folder(tmp_path: Path) -> None:
    make(tmp_path, "h1")
    make(tmp_path, "old", days=-1)
    folder = tmp_path / MEMBERS
    (folder / "notes.txt").write_text("no certificate")
    members = Members(folder)
    key = members.key_of("h1")
    assert members.admits(key)
    for name in ("old", "h2"):
        with pytest.raises(UsageError, match=f"no valid certificate of '{name}' in .*; thalweg keys allow {name}.key"):
            members.key_of(name)
    make(tmp_path, "h2")
    assert members.refresh() == members.version == 2
    assert members.admits(members.key_of("h2"))
    (folder / "h1.key").unlink()
    assert not members.admits(key)
    (folder / "h2.key").write_text("garbled")  # in place: the folder itself stays unchanged
    members.refresh()
    assert members.public_of("h2") == ""
    (folder / "h2.key").write_text(read_certificate(make(tmp_path, "h3"))[0].text())
    with pytest.raises(UsageError, match=r"h2\.key is the certificate of 'h3'; name the file h3\.key"):
        Members(folder)
    make(tmp_path, "brief", days=0.3 / 86400)
    members.refresh()
    brief = members.public_of("brief")
    until(lambda: not members.admits(brief))


# --- who gets in ------------------------------------------------------------------------------------


def test_members_run_together_and_strangers_are_not_admitted(tmp_path: Path) -> None:
    client = make(tmp_path, "alice", "client")
    stranger = make(tmp_path, "bob", "client", member=False)
    with host(tmp_path, "h1") as first, host(tmp_path, "h2") as second:
        addresses = {"h1": first.me.control, "h2": second.me.control}
        for keys, says in ((Keys.load(stranger), "does not admit the certificate of 'bob'"), (None, "asks for a cert")):
            with pytest.raises(HostLostError, match=says):
                identify_hosts(addresses, keys, timeout_s=3.0)
        with pytest.raises(
            UsageError, match=r"there is no valid certificate of 'h9' in .*; thalweg keys allow h9\.key"
        ):
            identify_hosts({"h9": first.me.control}, Keys.load(client))
        with Client(addresses, keys=client) as alice:
            assert alice.name == "alice"
            assert [each.index for each in alice.run(FLOW, {"o": "h2"}, partitions=3)] == [0, 1, 2]
        assert (first.frames_rejected, second.frames_rejected) == (0, 0)


def test_a_stranger_with_a_late_question_gets_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake has already failed when the question is sent, so there is no connection for it."""
    make(tmp_path, "alice", "client")
    keys = Keys.load(make(tmp_path, "bob", "client", member=False))
    said: list[str] = []
    with host(tmp_path, "h1") as first:

        def ask() -> None:
            with pytest.raises(HostLostError, match="does not admit") as told:
                identify_hosts({"h1": first.me.control}, keys, timeout_s=5.0)
            said.append(str(told.value))

        def late(message: m.Hello) -> bytes:
            monkeypatch.setattr(hello, "frames", frames)
            ask()  # a second question is refused meanwhile
            return frames.encode(message)

        monkeypatch.setattr(hello, "frames", SimpleNamespace(encode=late, SPEAKS=frames.SPEAKS))
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(patience(20))
        assert len(said) == 2


def test_a_client_does_not_talk_to_a_host_with_a_different_certificate(tmp_path: Path) -> None:
    client = make(tmp_path, "alice", "client")
    make(tmp_path, "h2")
    with host(tmp_path, "h1") as first, pytest.raises(HostLostError):
        identify_hosts({"h2": first.me.control}, Keys.load(client), timeout_s=0.3)


def test_a_member_cannot_speak_in_the_name_of_a_second_member(tmp_path: Path) -> None:
    alice, bob = make(tmp_path, "alice", "client"), make(tmp_path, "bob", "client")
    with host(tmp_path, "h1") as first, Client({"h1": first.me.control}, keys=alice) as client:
        run = client.run(FLOW, {"o": "h1"})
        next(run)
        with dialled(Keys.load(bob), "h1", first.me.control, new_identity("alice")) as forged:
            forged.send(frames.encode(m.Remove(RunId(run.id))))
            forged.send(frames.encode(m.Hello()))
            until(lambda: first.frames_rejected == 2)
            assert forged.poll(100) == 0
        assert [next(run).index for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_host_leads_no_runs(tmp_path: Path, make_install: Callable[..., m.Install]) -> None:
    alice = make(tmp_path, "alice", "client")
    other = Keys.load(make(tmp_path, "h2"))
    with host(tmp_path, "h1") as first, Client({"h1": first.me.control}, keys=alice) as client:
        run = client.run(FLOW, {"o": "h1"})
        next(run)
        with dialled(other, "h1", first.me.control, new_identity("h2")) as socket:
            socket.send(frames.encode(make_install()))
            socket.send(frames.encode(m.Remove(RunId(run.id))))
            socket.send(frames.encode(m.Hello()))
            while not isinstance(frames.decode_control(socket.recv()), m.Welcome):
                continue
        assert first.frames_rejected == 2
        assert list(first.core.runs) == [RunId(run.id)]


def test_a_host_is_drained_only_by_a_client_or_by_the_certificate_of_the_host(tmp_path: Path) -> None:
    for name, role in (("h1", "host"), ("h2", "host"), ("alice", "client")):
        make(tmp_path, name, role)
    sockets = Sockets("h1", Listening("tcp://127.0.0.1:*"), Keys.load(tmp_path / "h1.key_secret"))
    try:
        for name in ("h1", "alice", "h2"):
            frame: Any = SimpleNamespace(get={"User-Id": read_certificate(tmp_path / f"{name}.key")[0].public}.get)
            refused = pytest.raises(ProtocolError, match=r"^'h2' has the certificate of a host, which drains no other$")
            with refused if name == "h2" else nullcontext():
                sockets.check_drain(new_identity(name), frame)
    finally:
        sockets.destroy(0)


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:*", "ipc://"])
def test_a_host_without_keys_is_drained_only_through_a_socket_in_the_private_folder(
    tmp_path: Path, listen: str
) -> None:
    tmp_path.chmod(0o700)
    folder = f"{tmp_path}/h1" if listen == "ipc://" else ""
    sockets = Sockets("h1", Listening(listen + folder, insecure=True), None)
    frame: Any = SimpleNamespace(get={}.get)
    try:
        with nullcontext() if folder else pytest.raises(ProtocolError, match="send its process SIGTERM"):
            sockets.check_drain(new_identity("h2"), frame)
    finally:
        sockets.destroy(0)


def test_a_client_takes_no_part_in_the_run_of_a_second_client(
    tmp_path: Path, make_install: Callable[..., m.Install]
) -> None:
    alice = make(tmp_path, "alice", "client")
    bob = Keys.load(make(tmp_path, "bob", "client"))
    with host(tmp_path, "h1") as first, Client({"h1": first.me.control}, keys=alice) as client:
        with dialled(bob, "alice", client.shell.me.control, new_identity("bob")) as socket:
            socket.send(frames.encode(make_install()))
            until(lambda: client.shell.frames_rejected == 1)
        assert client.shell.core.runs == {}
        assert len(list(client.run(FLOW, {"o": "alice"}, partitions=3))) == 3


def test_a_host_without_the_certificate_of_a_second_host_fails_the_run_with_the_reason(tmp_path: Path) -> None:
    alice = make(tmp_path, "alice", "client")
    with ExitStack() as stack:
        shells = [stack.enter_context(host(tmp_path, name)) for name in ("h1", "h2")]
        kept = (tmp_path / MEMBERS / "h2.key").rename(tmp_path / "kept")
        everyone = tmp_path / "everyone"
        everyone.mkdir()
        for name in ("alice", "h1", "h2"):
            write_certificate(everyone / f"{name}.key", (tmp_path / f"{name}.key").read_text())
        addresses = {shell.me.name: shell.me.control for shell in shells}
        client = stack.enter_context(Client(addresses, keys=alice, members=everyone))
        with pytest.raises(RunError, match=r"no valid certificate of 'h2' in .*; thalweg keys allow h2\.key --members"):
            list(client.run(FLOW, {"o": "h2"}, partitions=3))
        kept.rename(tmp_path / MEMBERS / "h2.key")
        assert len(list(client.run(FLOW, {"o": "h2"}, partitions=3))) == 3


def test_a_host_refuses_a_run_with_a_member_of_unknown_certificate(
    tmp_path: Path, make_install: Callable[..., m.Install]
) -> None:
    """The client may name an unknown host at the start or later, as a host or as a guest."""
    for name, role in (("h1", "host"), ("h2", "host"), ("client", "client")):
        make(tmp_path, name, role)
    keys = Keys.load(tmp_path / "h1.key_secret")
    leader = read_certificate(tmp_path / "client.key")[0]
    stranger, member = (m.Peer(name, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2") for name in ("h9", "h2"))
    check_leader(keys, leader, m.AddMember(R, 1, member))
    check_leader(keys, leader, make_install())
    for message in (
        m.AddMember(R, 1, stranger),
        m.AddMember(R, 1, stranger, host=True),
        make_install(others=("h9",)),
    ):
        with pytest.raises(ProtocolError, match=r"there is no valid certificate of 'h9' in .*; thalweg keys allow h9"):
            check_leader(keys, leader, message)


def test_a_revoked_member_is_refused_within_seconds_and_other_runs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_module, "HOUSEKEEPING_S", 0.2)
    alice, bob = make(tmp_path, "alice", "client"), make(tmp_path, "bob", "client")
    with host(tmp_path, "h1") as first, Client({"h1": first.me.control}, keys=alice) as client:
        run = client.run(FLOW, {"o": "h1"})
        keys = Keys.load(bob)
        with dialled(keys, "h1", first.me.control, new_identity("bob")) as socket:
            socket.send(frames.encode(m.Hello()))
            assert isinstance(frames.decode_control(socket.recv()), m.Welcome)
            (tmp_path / MEMBERS / "bob.key").unlink()
            deadline = time.monotonic() + patience(SOON_S)
            guard = first._sockets.guard
            assert guard is not None
            while first.frames_rejected == 0:  # the connection is open still
                socket.send(frames.encode(m.Hello()))
                next(run)
                assert time.monotonic() < deadline
            until(lambda: guard.cut == 1)  # and is not for long
        with pytest.raises(HostLostError):
            identify_hosts({"h1": first.me.control}, keys, timeout_s=0.3)
        before = next(run).index
        assert [next(run).index for _ in range(5)] == list(range(before + 1, before + 6))


@pytest.mark.parametrize(
    ("who", "says"),
    [
        (
            "h2",
            "host 'h2', which holds '?o'?, has a certificate that expired on 20.* UTC; make one with thalweg keys new",
        ),
        ("alice", "this client, 'alice', has a certificate that expired on 20.* UTC; make one with thalweg keys new"),
    ],
)
def test_the_expiry_of_a_certificate_ends_the_run_with_the_name_and_the_date(
    who: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shell_module, "HOUSEKEEPING_S", 0.1)
    soon = patience(1.0) / 86400
    alice = make(tmp_path, "alice", "client", days=soon if who == "alice" else None)
    make(tmp_path, "h2", days=soon if who == "h2" else None)
    with ExitStack() as stack:
        shells = [stack.enter_context(host(tmp_path, name)) for name in ("h1", "h2")]
        client = stack.enter_context(Client({shell.me.name: shell.me.control for shell in shells}, keys=alice))
        run = client.run(FLOW, {"o": "h2"})
        assert next(run).index == 0
        members = Members(tmp_path / MEMBERS)
        until(lambda: members.public_of(who) == "" or not members.admits(members.public_of(who)))
        with pytest.raises(RunError, match=says):
            list(run)
    warned = [record for record in caplog.records if getattr(record, "event", "") == "certificate-expires"]
    assert {(record.peer, record.levelname) for record in warned} == {(who, "WARNING")}


def test_a_host_with_a_new_key_is_dialled_again_and_other_connections_stay(tmp_path: Path) -> None:
    make(tmp_path, "h2")
    make(tmp_path, "h3")
    sockets = Sockets("h1", Listening("tcp://127.0.0.1:*"), Keys.load(make(tmp_path, "h1")))
    with host(tmp_path, "h2") as before, host(tmp_path, "h3") as third:
        try:
            sockets.meet(R, [before.me, third.me])
            for name in ("h2", "h3"):
                sockets.post(R, name, m.Ping(R))
            dealers = dict(sockets.dealers)
            (tmp_path / MEMBERS / "h2.key").unlink()
            other, _, _ = new_certificate("h2", "host", tmp_path / "other")
            write_certificate(tmp_path / MEMBERS / "h2.key", other.text())
            sockets.check_members()
            assert {end: dealer for end, dealer in dealers.items() if end[1] == "h3"} == sockets.dealers
            sockets.post(R, "h2", m.Ping(R))
            assert {key for end, key in sockets._dialled.items() if end[1] == "h2"} == {other.public}
        finally:
            sockets.destroy(0)


# --- without keys -----------------------------------------------------------------------------------


def test_a_client_with_keys_does_not_talk_to_a_host_without_keys(tmp_path: Path) -> None:
    plain = Shell(ShellConfig("h1", insecure=True))
    make(tmp_path, "h1")
    try:
        with pytest.raises(HostLostError):
            identify_hosts({"h1": plain.me.control}, Keys.load(make(tmp_path, "alice", "client")), timeout_s=0.3)
        assert list(identify_hosts({"h1": plain.me.control})) == ["h1"]
    finally:
        plain.close()


def test_identities_of_connections_are_unrelated_to_the_instances_of_hosts() -> None:
    seen: set[bytes] = set()
    shell = Shell(ShellConfig("h1", insecure=True))
    take = shell._sockets.take

    def spy(socket: zmq.Socket[bytes], parts: int) -> tuple[str, bytes, list[zmq.Frame]] | None:
        taken = take(socket, parts)
        if taken is not None:
            seen.add(taken[1])
        return taken

    shell._sockets.take = spy  # type: ignore[method-assign]
    try:
        with Client({"h1": shell.me.control}, insecure=True) as client:
            assert len(list(client.run(FLOW, {"o": "client"}, partitions=3))) == 3
            known = (client.shell.me.instance, shell.me.instance)
        assert {identity.partition(b"/")[0] for identity in seen} == {b"hello", b"client"}
        assert all(len(identity.partition(b"/")[2]) == 16 for identity in seen)
        assert not any(word.encode() in identity for identity in seen for word in known)
    finally:
        shell.close()


def test_an_answer_goes_only_to_the_connection_that_asked() -> None:
    shell = Shell(ShellConfig("h1", insecure=True))
    with zmq.Context() as context, context.socket(zmq.DEALER) as true, context.socket(zmq.DEALER) as stranger:
        for socket, identity in ((true, b"h2/true"), (stranger, b"h2/stranger")):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, round(patience(5) * 1000))
            socket.setsockopt(zmq.ROUTING_ID, identity)
            socket.connect(shell.me.control)
        stranger.send(frames.encode(m.Hello()))
        assert isinstance(frames.decode_control(stranger.recv()), m.Welcome)
        for run in ("a", "b", "c"):  # answers meant for the true one
            true.send(frames.encode(m.Ping(run_of(run))))
            assert frames.decode_control(true.recv()) == m.Pong(run_of(run), False)
        assert stranger.poll(0) == 0
    shell.close()


@pytest.mark.parametrize(
    ("listen", "who"),
    [
        *((f"tcp://{address}:*", "all who reach it") for address in ("0.0.0.0", "*", "[::]", "192.0.2.1")),
        *((f"tcp://{address}:*", "every user of this machine") for address in ("127.0.0.1", "localhost", "[::1]")),
    ],
)
def test_a_host_over_tcp_needs_a_key(listen: str, who: str) -> None:
    with pytest.raises(UsageError, match=rf"without keys .* is open to {who}; give --keys FILE, .* or say --insecure"):
        Shell(ShellConfig("h1", listen=listen))


def test_a_client_over_tcp_without_keys_is_refused_before_a_host_is_asked() -> None:
    with pytest.raises(
        UsageError, match=r"without keys tcp://.* is open to (all who reach it|every user of this machine)"
    ):
        Client({"h1": "tcp://192.0.2.1:7800"})


def test_a_host_listens_over_tcp_with_a_key_or_on_request(tmp_path: Path) -> None:
    for shell in (
        Shell(ShellConfig("h1", listen="tcp://0.0.0.0:*"), keys=Keys.load(make(tmp_path, "h1"))),
        Shell(ShellConfig("h1", listen="tcp://0.0.0.0:*", insecure=True)),
    ):
        assert shell.me.control.startswith("tcp://0.0.0.0:")
        shell.close()


def test_a_message_with_a_key_or_a_name_of_no_member_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "h1")
    members = Members(tmp_path / MEMBERS)
    assert members.sender(b"h1/x", members.public_of("h1")).name == "h1"
    for identity, key in ((b"h1/x", "0" * 40), (b"h2/x", members.public_of("h1")), (b"h1", "")):
        with pytest.raises(ProtocolError, match="a message of 'h1'"):
            members.sender(identity, key)

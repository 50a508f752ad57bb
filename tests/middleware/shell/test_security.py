"""Keys: who holds the cluster's gets in, and nobody else; nothing listens off loopback without one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from flows import chain

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.hello import say_hello
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import HostLostError, UsageError
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.security import Keys
from thalweg.middleware.shell.shell import Shell, ShellConfig


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    Keys.make().save(path)
    return path


def test_the_clusters_key_lets_a_run_pass_and_any_other_does_not(key_file: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.key"
    Keys.make().save(stranger)
    host = Shell(ShellConfig("h1"), keys=Keys.load(key_file))
    try:
        addresses = {"h1": host.me.control}
        for keys in (Keys.load(stranger), None):
            with pytest.raises(HostLostError, match=r"did not answer within 0\.3 s.*with the same keys"):
                say_hello(addresses, keys, timeout_s=0.3)
        with Client(addresses, keys=key_file) as client:
            flow = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}))
            assert len(list(client.run(flow, {}, partitions=3))) == 3
        assert host.frames_rejected == 0
    finally:
        host.close()


def test_a_host_with_a_key_is_not_answered_by_one_without() -> None:
    host = Shell(ShellConfig("h1"))
    try:
        with pytest.raises(HostLostError):
            say_hello({"h1": host.me.control}, Keys.make(), timeout_s=0.3)
        assert list(say_hello({"h1": host.me.control})) == ["h1"]
    finally:
        host.close()


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:*", "tcp://*:*", "tcp://[::]:*", "tcp://192.0.2.1:7800"])
def test_off_loopback_a_key_is_needed(listen: str) -> None:
    with pytest.raises(UsageError, match="is not loopback, and no key was given; use --keys FILE, or --insecure"):
        Shell(ShellConfig("h1", listen=listen))


def test_off_loopback_with_a_key_or_on_request(key_file: Path) -> None:
    for shell in (
        Shell(ShellConfig("h1", listen="tcp://0.0.0.0:*"), keys=Keys.load(key_file)),
        Shell(ShellConfig("h1", listen="tcp://0.0.0.0:*", insecure=True)),
    ):
        assert m.Peer is type(shell.me)
        assert shell.me.control.startswith("tcp://0.0.0.0:")
        shell.close()


def test_a_key_file_is_its_owners_and_never_overwritten(key_file: Path) -> None:
    assert key_file.stat().st_mode & 0o777 == 0o600
    before = key_file.read_bytes()
    with pytest.raises(UsageError, match="never overwritten"):
        Keys.make().save(key_file)
    assert key_file.read_bytes() == before


def test_what_is_no_key_file_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="cannot read the key file"):
        Keys.load(path)
    one, other = Keys.make(), Keys.make()
    mixed = Keys(one.public, other.secret)
    for content, says in (
        (b"-----BEGIN KEY-----", "is not a key file"),
        (b'{"public": "x"}', "is not a key file"),
        (b'{"public": "x", "secret": "y"}', "does not hold a key pair"),
        (msgspec.json.encode(mixed), "does not hold a key pair"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=says):
            Keys.load(path)

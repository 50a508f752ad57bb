"""Checks of ``thalweg doctor --to`` for a host with keys, a host without keys, and an absent host."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg import UsageError
from thalweg.middleware.client.membership.reachability import reach
from thalweg.middleware.shell.security import MEMBERS, Keys, Role, new_certificate, write_certificate
from thalweg.middleware.shell.shell import Shell, ShellConfig

WHAT = ["control", "large control", "partitions", "large partitions"]


def certificate(folder: Path, name: str, role: Role) -> Path:
    made, _, secret = new_certificate(name, role, folder)
    write_certificate(folder / MEMBERS / f"{name}.key", made.text())
    return secret


def test_every_port_of_a_host_is_checked_in_further_networks_too() -> None:
    shell = Shell(ShellConfig("h1", insecure=True, networks={"fast": "tcp://127.0.0.1:*"}))
    try:
        found = list(reach(shell.me.control, None, None))
    finally:
        shell.close()
    further = ["partitions over network 'fast'", "large partitions over network 'fast'"]
    assert [(each.what, each.passes) for each in found] == [(what, True) for what in (*WHAT, *further)]
    assert [each.endpoint for each in found[2::2]] == [*shell.me.ends.values()]
    assert shell.frames_rejected == 0


def test_a_member_that_names_the_host_can_check_a_host_with_keys(tmp_path: Path) -> None:
    (tmp_path / MEMBERS).mkdir()
    own, alice = certificate(tmp_path, "h1", "host"), Keys.load(certificate(tmp_path, "alice", "client"))
    shell = Shell(ShellConfig("h1"), keys=Keys.load(own))
    try:
        found = list(reach(shell.me.control, "h1", alice))
    finally:
        shell.close()
    assert [(each.what, each.passes) for each in found] == [(what, True) for what in WHAT]
    with pytest.raises(UsageError, match="give --to NAME=ENDPOINT"):
        list(reach(shell.me.control, None, alice))


def test_the_check_of_an_absent_host_fails_with_the_cause() -> None:
    shell = Shell(ShellConfig("h1", insecure=True))
    shell.close()
    (found,) = reach(shell.me.control, None, None, wait_s=2.0)
    assert (found.what, found.passes) == ("control", False)
    assert found.detail == "does not answer: nothing listens there; is thalweg host running?"

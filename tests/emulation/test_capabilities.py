"""The capability probe: its findings are true, and it names remedies."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_apt import fake_apt, write_program
from patience import patience

from thalweg.emulation import capabilities
from thalweg.emulation.supervisor import client as supervisor_client
from thalweg.emulation.supervisor import requests
from thalweg.middleware.errors import CapabilityError


def test_the_probe_is_quick_and_names_a_remedy_for_every_missing_capability() -> None:
    started = time.monotonic()
    capabilities_ = capabilities.probe()
    assert time.monotonic() - started < patience(5)
    assert capabilities_.cpus >= 1
    assert capabilities_.memory_bytes > 1 << 28
    for capability in capabilities_.listed():
        assert capability.detail
        assert "\n" not in capability.detail
        if not capability.works:
            assert any(
                word in capability.detail for word in ("install", "load", "allow", "run as root", "use ", "start ")
            ), capability


def test_a_missing_unshare_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(CapabilityError, match="install util-linux"):
        supervisor_client.start_isolated("x")
    capabilities_ = capabilities.probe()
    assert not capabilities_.netns.works
    assert not capabilities_.netem.works


def test_a_missing_proc_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(CapabilityError, match="/proc is not mounted here; mount it"):
        supervisor_client.start_isolated("x")


def test_a_system_that_is_not_linux_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CapabilityError, match="need Linux, and this is macOS; simulate with --testbed sim"):
        supervisor_client.start_isolated("x")


def test_an_engine_that_refuses_the_user_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: float) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(capabilities.engine, "dial", refused)
    docker = capabilities._docker()
    assert not docker.works
    assert docker.detail.startswith("no permission to use the Docker engine at ")
    assert "join the group docker (usermod -aG docker USER, then log in again)" in docker.detail


def test_a_missing_permission_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(unshare))
    with pytest.raises(CapabilityError, match=r"no permission .*Operation not permitted.*run as root"):
        supervisor_client.start_isolated("x")


def test_a_missing_engine_is_reported_with_the_package_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(capabilities, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Docker, start Docker, join the group docker" in capabilities._docker().detail
    fake_apt(tmp_path, real=["docker.io"])
    assert "apt-get install docker.io`, start Docker, join" in capabilities._docker().detail
    write_program(tmp_path / "dockerd", "#!/bin/sh\n")
    assert "); start Docker, join the group docker" in capabilities._docker().detail


def test_a_missing_netem_is_reported_with_the_package_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(capabilities, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-31-generic")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "for delays install modprobe, load sch_netem" in capabilities._no_netem()
    write_program(tmp_path / "modprobe", "#!/bin/sh\n")
    fake_apt(tmp_path, real=["kmod"])
    assert "for delays load sch_netem (modprobe sch_netem), or run" in capabilities._no_netem()
    ubuntu = tmp_path / "ubuntu"
    ubuntu.mkdir()
    fake_apt(ubuntu, real=["linux-modules-extra-6.8.0-31-generic"])
    monkeypatch.setenv("PATH", f"{ubuntu}:{tmp_path}")
    assert "apt-get install linux-modules-extra-6.8.0-31-generic`, load sch_netem" in capabilities._no_netem()


def test_a_docker_engine_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(os.fspath(path))
        engine.listen()

        def answer() -> None:
            with engine.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"Version": "28.1"}')

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        docker = capabilities._docker()
        thread.join()
    assert docker.works
    assert "28.1" in docker.detail
    assert not capabilities._docker().works  # nobody listens any more


# --- what a program on a host may do ------------------------------------------------------------------


@pytest.mark.netns
@pytest.mark.parametrize("as_user", [False, True])
def test_the_netns_row_states_the_rights_of_a_program_on_a_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_user: bool
) -> None:
    """The test checks the row against the capabilities and the user namespace of a program on a host."""
    if as_user and not capabilities._user_namespaces().works:
        pytest.skip("needs user namespaces")
    start = supervisor_client.start_isolated
    monkeypatch.setattr(capabilities, "start_isolated", lambda name: start(name, as_user=as_user))
    netns, *_ = capabilities._kernel()
    started = start("rights", as_user=as_user)
    try:
        started.client.call(requests.Build({"a": "10.9.0.1"}, 24, 3))
        output = tmp_path / "said"
        with output.open("wb") as out:
            words = ["/bin/sh", "-c", "grep CapEff /proc/self/status; readlink /proc/self/ns/user"]
            command = supervisor_client.Command(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            assert started.client.spawn("a", command).wait(patience(20)) == 0
    finally:
        started.close()
    capabilities_, users = output.read_text().split("\n")[:2]
    own = os.readlink("/proc/self/ns/user")
    is_root = os.geteuid() == 0 and not as_user
    assert (users == own) == is_root
    assert int(capabilities_.split()[1], 16) >> 21 & 1  # CAP_SYS_ADMIN, of its own user namespace
    assert ("a program on a host is root on this machine, with all its files" in netns.detail) == is_root
    assert "run code that you do not trust with" in netns.detail
    assert "docker" in netns.detail


def test_the_docker_row_states_the_rights_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    local, remote = socket.socketpair()
    remote.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"Version": "99"}')
    remote.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(capabilities.engine, "dial", lambda _: local)
    monkeypatch.setattr(capabilities, "find_spec", lambda _: True)
    with remote:
        docker = capabilities._docker()
    assert docker.works
    assert "hosts have no capabilities and none of this machine's files" in docker.detail


@pytest.mark.uml
def test_the_user_mode_linux_row_states_the_rights_of_a_program() -> None:
    assert "cannot reach this machine's kernel, but can reach all files that you can" in capabilities._uml().detail

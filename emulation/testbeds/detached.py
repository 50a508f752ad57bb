"""Testbeds that outlive their launcher: ``thalweg testbed up``, and how the other verbs find them again.

Each leaves a state file and a socket in the user's run folder (``$XDG_RUNTIME_DIR/thalweg``, else
``/tmp/thalweg-<uid>``), named by its id. The supervisor's process number counts only together with its start time,
so that a number used again never makes us end somebody else's process. Containers are found by their labels too, so
that those of a launcher and supervisor that were both killed are removed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from thalweg.emulation.containers import engine
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.emulation.supervisor.processes import start_ticks, wait_ended
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.files import whole

END_S = 10.0
ANSWER_S = 2.0


class TestbedState(msgspec.Struct, frozen=True):
    """What stands in a state file. ``pid`` and ``start_ticks`` identify the process whose end ends the testbed."""

    __test__ = False

    id: str
    backend: str
    pid: int
    start_ticks: int
    hosts: tuple[str, ...]
    subnet: str
    layer: int
    created_s: float

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def run_folder() -> Path:
    """The user's folder for sockets and state files, made if missing; TestbedError if somebody else owns it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base, "thalweg") if base else Path(tempfile.gettempdir(), f"thalweg-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise TestbedError(
            f"cannot make {folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise TestbedError(f"{folder} is not a private folder of yours; remove it, or set XDG_RUNTIME_DIR to one")
    return folder


def _files(identity: str) -> tuple[Path, Path]:
    return run_folder() / f"{identity}.json", run_folder() / f"{identity}.sock"


def listen(listener: socket.socket, identity: str) -> Path:
    """Listen where other verbs look for a testbed; the socket's file."""
    socket_file = _files(identity)[1]
    try:
        listener.bind(str(socket_file))
    except OSError as error:
        raise TestbedError(f"cannot listen on {socket_file}: {error.strerror or error}") from None
    listener.listen()
    return socket_file


def publish(state: TestbedState) -> None:
    """Make a testbed known, by a file that is there whole or not at all."""
    state_file = _files(state.id)[0]
    with whole(state_file, "free space there", error=TestbedError) as fresh:
        fresh.write_bytes(msgspec.json.encode(state))


def launch(testbed: Testbed, prepare: Callable[[Testbed], None]) -> TestbedState:
    """Bring ``testbed`` up detached; it stays when this process ends. ``prepare`` shapes its links first.

    Until the last step it is attached: a launcher that is killed on the way leaves nothing running.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listen(listener, testbed.run_id)
        testbed.up(listener)
        supervisor = testbed.supervisor
        assert supervisor is not None
        prepare(testbed)
        pid = supervisor.process.pid
        state = TestbedState(
            id=testbed.run_id,
            backend=testbed.backend,
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
            hosts=tuple(testbed.hosts),
            subnet=testbed.subnet,
            layer=testbed.layer,
            created_s=time.time(),
        )
        publish(state)
        supervisor.client.call(requests.Detach())
        supervisor.leave()
        return state
    except BaseException:
        testbed.down()
        for file in _files(testbed.run_id):
            file.unlink(missing_ok=True)
        raise
    finally:
        listener.close()


def known_testbeds() -> list[TestbedState]:
    """All state files of this user, oldest first; whether they are alive is for the caller to ask."""
    found = []
    for file in run_folder().glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            found.append(msgspec.json.decode(file.read_bytes(), type=TestbedState))
    return sorted(found, key=lambda state: state.created_s)


def choose(identity: str | None) -> TestbedState:
    """The testbed with this id, or the only one that is up. UsageError says what there is instead."""
    up = [state for state in known_testbeds() if state.alive and identity in (None, state.id)]
    if len(up) == 1:
        return up[0]
    if not up:
        which = f"no testbed {identity!r} is up" if identity else "no testbed is up"
        raise UsageError(f"{which}; start one with: thalweg testbed up --hosts 9 --rate 10mbit")
    raise UsageError(f"{len(up)} testbeds are up, say which with --id: {', '.join(state.id for state in up)}")


def connect(state: TestbedState) -> SupervisorClient:
    """A connection to a testbed that is up; TestbedError when it does not answer."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(_files(state.id)[1]))
    except OSError as error:
        sock.close()
        raise TestbedError(
            f"testbed {state.id} does not answer ({error.strerror}); remove it with: thalweg testbed down {state.id}"
        ) from None
    return SupervisorClient(sock)


def attach(state: TestbedState) -> Testbed:
    """The testbed as an object, for shaping, proving and running processes; its ``down`` only hangs up."""
    client = connect(state)
    try:
        if state.backend == "docker":
            from thalweg.emulation.testbeds.docker import DockerTestbed

            containers = DockerTestbed(state.hosts, state.id, subnet=state.subnet, layer=state.layer)
            containers.find()
            testbed: Testbed = containers
        else:
            testbed = NetnsTestbed(state.hosts, state.id, subnet=state.subnet, layer=state.layer)
        testbed.attach(client)
        testbed.status()
    except BaseException:
        client.close()
        raise
    return testbed


def take_down(identity: str | None = None) -> list[str]:
    """End one testbed or all of this user's, alive or crashed, and remove their files; the ids removed.

    Idempotent: nothing to remove is not an error.
    """
    removed, failed = [], list[TestbedError]()
    for state in known_testbeds():
        if identity in (None, state.id):
            try:
                _end(state)
                if state.backend == "docker":
                    engine.remove(state.id)
            except TestbedError as error:  # the others are taken down all the same
                failed.append(error)
                continue
            except CapabilityError as error:
                failed.append(TestbedError(f"testbed {state.id} is still there: {error}"))
                continue
            removed.append(state.id)
            for file in _files(state.id):
                file.unlink(missing_ok=True)
    if identity is None:
        _sweep({state.id for state in known_testbeds()})
    if engine.engine_may_have_ours():
        with suppress(CapabilityError):  # no engine answers; it has nothing of ours that runs
            removed += _remove_leftovers(identity)
    if failed:
        raise failed[0]
    return removed


def _remove_leftovers(identity: str | None) -> list[str]:
    """Containers and networks whose launcher and supervisor are gone, or whose supervisor is going."""
    removed = []
    for left, supervisor in engine.leftovers().items():
        if identity not in (None, left):
            continue
        if supervisor is not None:
            wait_ended(supervisor, END_S)
        engine.remove(left)
        removed.append(left)
    return removed


def _end(state: TestbedState) -> None:
    if not state.alive:
        return
    handle = os.pidfd_open(state.pid)
    try:
        if not state.alive:  # the number was given away between the look and the handle
            return
        with suppress(TestbedError):
            client = connect(state)
            try:
                client.call(requests.Down(), timeout_s=ANSWER_S)
            finally:
                client.close()
            if _ended(handle, END_S):
                return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not _ended(handle, END_S):
            raise TestbedError(f"testbed {state.id} (process {state.pid}) does not end, not even when killed")
    finally:
        os.close(handle)


def _ended(handle: int, timeout_s: float) -> bool:
    return bool(select.select([handle], [], [], timeout_s)[0])


def _sweep(kept: set[str]) -> None:
    """Sockets and half-written states of launchers that were killed while starting (nothing of theirs runs)."""
    for file in run_folder().iterdir():
        if file.suffix in (".sock", ".new", ".json") and file.stem not in kept and not _listening(file):
            file.unlink(missing_ok=True)


def _listening(file: Path) -> bool:
    if file.suffix != ".sock":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(file)) == 0

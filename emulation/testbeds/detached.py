"""Testbeds that outlive their launcher: ``thalweg testbed up``, attaching to them, and taking them down.

``known`` says where they are found. Containers are found by their labels too, so that those of a launcher and
supervisor that were both killed are removed.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from thalweg.emulation.containers import engine
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.processes import start_ticks, wait_ended
from thalweg.emulation.testbeds.known import TestbedState, connect, files, known_testbeds, logs, named, run_folder
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.files.writing import whole

END_S = 10.0
ANSWER_S = 2.0
NAME = re.compile(r"[A-Za-z0-9]([\w.-]{0,38}[A-Za-z0-9])?", re.ASCII)


def check_name(name: str) -> None:
    """Raise UsageError for what cannot name a testbed, or names one that is up; clear away one that crashed."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name; it has letters, digits and - _ . between them, at most 40")
    for state in known_testbeds():
        if state.id == name and state.alive:
            raise UsageError(f"testbed {name!r} is up already; take it down with: thalweg testbed down {name}")
        if state.id == name:
            take_down(name)


def listen(identity: str) -> socket.socket:
    """Listen where other verbs look for a testbed. Raises TestbedError where it cannot."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(files(identity)[1]))
        listener.listen()
    except OSError as error:
        listener.close()
        raise TestbedError(f"cannot listen on {files(identity)[1]}: {error.strerror or error}") from None
    return listener


def publish(state: TestbedState) -> None:
    """Make a testbed known, by a file that is there whole or not at all."""
    state_file = files(state.id)[0]
    with whole(state_file, "free space there", error=TestbedError) as fresh:
        fresh.write_bytes(msgspec.json.encode(state))


def launch(testbed: Testbed, prepare: Callable[[Testbed], None]) -> TestbedState:
    """Bring ``testbed`` up detached; it stays when this process ends. ``prepare`` shapes its links first.

    Until the last step it is attached: a launcher that is killed on the way leaves nothing running.
    """
    listener = listen(testbed.run_id)
    try:
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
            networks=testbed.subnets,
        )
        publish(state)
        supervisor.client.call(requests.Detach(str(logs(state.id))))
        supervisor.leave()
        return state
    except BaseException:
        testbed.down()
        _remove_files(testbed.run_id)
        raise
    finally:
        listener.close()


def attach(state: TestbedState) -> Testbed:
    """The testbed as an object, for shaping, proving and running processes; its ``down`` only hangs up."""
    client = connect(state)
    try:
        if state.backend == "docker":
            from thalweg.emulation.testbeds.docker import DockerTestbed

            containers = DockerTestbed(
                state.hosts, state.id, subnet=state.subnet, layer=state.layer, networks=list(state.networks)
            )
            containers.find(state.networks)
            testbed: Testbed = containers
        else:
            testbed = NetnsTestbed(
                state.hosts, state.id, subnet=state.subnet, layer=state.layer, networks=list(state.networks)
            )
        testbed.attach(client)
    except BaseException:
        client.close()
        raise
    return testbed


def take_down(asked: str | None = None) -> list[str]:
    """End one testbed or all of this user's, alive or crashed, and remove their files; the ids removed.

    ``asked``: its id, or what only that begins with; TestbedError when there is none. Nothing to remove at all is no
    error.
    """
    known = known_testbeds()
    chosen = None if asked is None else _meant(asked, [state.id for state in known])
    removed, failed = [], list[TestbedError]()
    for state in known:
        if chosen in (None, state.id):
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
            _remove_files(state.id)
    if asked is None:
        _sweep({state.id for state in known_testbeds()})
    for identity, supervisor in _left().items():
        if chosen in (None, identity):
            if supervisor is not None:
                wait_ended(supervisor, END_S)
            engine.remove(identity)
            removed.append(identity)
    if failed:
        raise failed[0]
    return removed


def _meant(asked: str, known: Sequence[str]) -> str:
    there = known if asked in known else [*dict.fromkeys((*known, *_left()))]
    found = named(asked, there)
    if len(found) != 1:
        which = f"{asked!r} may be any of" if found else f"there is no testbed {asked!r}; there is"
        raise TestbedError(f"{which} {', '.join(found or there) or 'none'}")
    return found[0]


def _left() -> dict[str, int | None]:
    """Testbeds whose launcher and supervisor are gone, or whose supervisor is going, though the engine has them."""
    if engine.engine_may_have_ours():
        with suppress(CapabilityError):  # no engine answers; it has nothing of ours that runs
            return engine.leftovers()
    return {}


def _remove_files(identity: str) -> None:
    for file in files(identity):
        file.unlink(missing_ok=True)
    shutil.rmtree(logs(identity), ignore_errors=True)


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
        elif file.suffix == ".logs" and file.stem not in kept:
            shutil.rmtree(file, ignore_errors=True)


def _listening(file: Path) -> bool:
    if file.suffix != ".sock":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(file)) == 0

"""Testbeds that outlive their launcher: start (``thalweg testbed up``), attachment and removal.

``known`` finds testbeds by state files. Containers are also found by labels, and are therefore removed even if launcher
and supervisor were both killed.
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
    """Raise UsageError if ``name`` is invalid or a running testbed has it. Remove a crashed testbed of that name."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name; it has letters, digits and - _ . between them, at most 40")
    for state in known_testbeds():
        if state.id == name and state.alive:
            raise UsageError(f"testbed {name!r} is up already; take it down with: thalweg testbed down {name}")
        if state.id == name:
            take_down(name)


def listen(identity: str) -> socket.socket:
    """Listen on the socket at which clients look for a testbed. Raises TestbedError on failure."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(files(identity)[1]))
        listener.listen()
    except OSError as error:
        listener.close()
        raise TestbedError(f"cannot listen on {files(identity)[1]}: {error.strerror or error}") from None
    return listener


def publish(state: TestbedState) -> None:
    """Write a testbed's state file. The file appears as a whole or not at all."""
    state_file = files(state.id)[0]
    with whole(state_file, "free space there", error=TestbedError) as fresh:
        fresh.write_bytes(msgspec.json.encode(state))


def launch(testbed: Testbed, prepare: Callable[[Testbed], None]) -> TestbedState:
    """Start ``testbed`` detached. It stays when this process ends. ``prepare`` shapes the links first.

    The testbed is attached until the last step. If the launcher is killed earlier, nothing stays.
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
    """Return a running testbed as an object, for shaping, proving and processes. Its ``down`` only disconnects."""
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
    """End one testbed, or every testbed of this user, alive or crashed. Remove the files and return the ids.

    ``asked``: the id, or an unambiguous beginning of the id. Raises TestbedError if no testbed matches. With ``asked``
    None and nothing to remove, no error is raised.
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
            except TestbedError as error:  # the remaining testbeds are still taken down
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
    candidates = known if asked in known else [*dict.fromkeys((*known, *_left()))]
    matching = named(asked, candidates)
    if len(matching) != 1:
        problem = f"{asked!r} may be any of" if matching else f"there is no testbed {asked!r}; there is"
        raise TestbedError(f"{problem} {', '.join(matching or candidates) or 'none'}")
    return matching[0]


def _left() -> dict[str, int | None]:
    """Return the abandoned testbeds that the engine still has, with the number of a supervisor that is ending."""
    if engine.engine_may_have_ours():
        with suppress(CapabilityError):  # without an engine no container of a testbed runs
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
        if not state.alive:  # the number was reused before pidfd_open
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
    """Remove the sockets, partial state files and logs of launchers killed during the start.

    No process of these launchers runs.
    """
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

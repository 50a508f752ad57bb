"""Testbeds of this user that stay up, and connections to their supervisors.

Every testbed has a state file and a socket in the user's run folder (``$XDG_RUNTIME_DIR/thalweg``, else
``/tmp/thalweg-<uid>``), named by the testbed's id. The supervisor's process number counts only with its start time, so
that a reused number never ends an unrelated process.

``testbed exec`` imports this module and must start quickly. Nothing larger than a supervisor's client is imported here.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.emulation.supervisor.processes import start_ticks
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.files.reading import read_bounded
from thalweg.middleware.platform.files import of_another_user, others_may, user


class TestbedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a state file. The testbed ends with the process that ``pid`` and ``start_ticks`` identify.

    ``networks``: subnets of the further networks.
    """

    __test__ = False

    id: str
    backend: str
    pid: int
    start_ticks: int
    hosts: tuple[str, ...]
    subnet: str
    layer: int
    created_s: float
    networks: dict[str, str] = {}

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def run_folder() -> Path:
    """Return the user's folder for sockets and state files. Create it if missing.

    Raises TestbedError if the folder is not private to the user.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base, "thalweg") if base else Path(tempfile.gettempdir(), f"thalweg-{user()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise TestbedError(
            f"cannot make {folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or of_another_user(status) or others_may(status, 0o077):
        raise TestbedError(f"{folder} is not a private folder of yours; remove it, or set XDG_RUNTIME_DIR to one")
    return folder


def files(identity: str) -> tuple[Path, Path]:
    """Return the paths of a testbed's state file and socket."""
    return run_folder() / f"{identity}.json", run_folder() / f"{identity}.sock"


def logs(identity: str) -> Path:
    """Return the folder for the output of processes launched on a testbed's hosts."""
    return run_folder() / f"{identity}.logs"


def known_testbeds() -> list[TestbedState]:
    """Return the content of this user's state files, oldest first. Testbeds that crashed are included."""
    states = []
    for file in run_folder().glob("*.json"):
        with suppress(OSError, UsageError, msgspec.DecodeError):
            states.append(msgspec.json.decode(read_bounded(file), type=TestbedState))
    return sorted(states, key=lambda state: state.created_s)


def named(asked: str, known: Sequence[str]) -> list[str]:
    """Return the id that equals ``asked``. If there is none, return the ids that begin with it."""
    return [asked] if asked in known else [identity for identity in known if identity.startswith(asked)]


def choose(asked: str | None) -> TestbedState:
    """Return the running testbed with this id, or with the only id that begins so. None: the only running testbed.

    Raises UsageError, which lists the running testbeds.
    """
    known = known_testbeds()
    up = {state.id: state for state in known if state.alive}
    matching = [*up] if asked is None else named(asked, [*up])
    if len(matching) == 1:
        return up[matching[0]]
    if matching:
        raise UsageError(f"{len(matching)} testbeds are up, say which with --id: {', '.join(matching)}")
    if asked and (crashed := named(asked, [state.id for state in known])):
        remedy = f"remove it with: thalweg testbed down {crashed[0]}"
        raise UsageError(f"testbed {crashed[0]} has crashed, and its record is lost; {remedy}")
    problem = f"no testbed {asked!r} is up" if asked else "no testbed is up"
    advice = f"there is {', '.join(up)}" if up else "start one with: thalweg testbed up --hosts 9 --rate 10mbit"
    raise UsageError(f"{problem}; {advice}")


def connect(state: TestbedState) -> SupervisorClient:
    """Return a connection to a running testbed. Raises TestbedError if the testbed does not answer."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(files(state.id)[1]))
    except OSError as error:
        sock.close()
        raise TestbedError(
            f"testbed {state.id} does not answer ({error.strerror}); remove it with: thalweg testbed down {state.id}"
        ) from None
    return SupervisorClient(sock)

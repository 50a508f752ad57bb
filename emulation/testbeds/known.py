"""The testbeds of this user that stay up, and the way to their supervisors.

Each leaves a state file and a socket in the user's run folder (``$XDG_RUNTIME_DIR/thalweg``, else
``/tmp/thalweg-<uid>``), named by its id. The supervisor's process number counts only together with its start time,
so that a number used again never makes us end somebody else's process.

Imported by ``testbed exec``, which is to start at once: nothing here imports more than a supervisor's client.
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
    """What stands in a state file. ``pid`` and ``start_ticks`` identify the process whose end ends the testbed.

    ``networks``: the subnets of those besides the one that all share.
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
    """The user's folder for sockets and state files, made if missing; TestbedError if somebody else owns it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base, "thalweg") if base else Path(tempfile.gettempdir(), f"thalweg-{user()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise TestbedError(
            f"cannot make {folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or of_another_user(found) or others_may(found, 0o077):
        raise TestbedError(f"{folder} is not a private folder of yours; remove it, or set XDG_RUNTIME_DIR to one")
    return folder


def files(identity: str) -> tuple[Path, Path]:
    """A testbed's state file and its socket."""
    return run_folder() / f"{identity}.json", run_folder() / f"{identity}.sock"


def logs(identity: str) -> Path:
    """The folder for what processes write that were launched on its hosts."""
    return run_folder() / f"{identity}.logs"


def known_testbeds() -> list[TestbedState]:
    """All state files of this user, oldest first; whether they are alive is for the caller to ask."""
    found = []
    for file in run_folder().glob("*.json"):
        with suppress(OSError, UsageError, msgspec.DecodeError):
            found.append(msgspec.json.decode(read_bounded(file), type=TestbedState))
    return sorted(found, key=lambda state: state.created_s)


def named(asked: str, known: Sequence[str]) -> list[str]:
    """The ids that may be meant: the one that is ``asked``, or else those that begin so."""
    return [asked] if asked in known else [one for one in known if one.startswith(asked)]


def choose(asked: str | None) -> TestbedState:
    """The testbed with this id, or with the only one that begins so, or the only one that is up.

    UsageError says what there is instead.
    """
    known = known_testbeds()
    up = {state.id: state for state in known if state.alive}
    found = [*up] if asked is None else named(asked, [*up])
    if len(found) == 1:
        return up[found[0]]
    if found:
        raise UsageError(f"{len(found)} testbeds are up, say which with --id: {', '.join(found)}")
    if asked and (crashed := named(asked, [state.id for state in known])):
        remedy = f"remove it with: thalweg testbed down {crashed[0]}"
        raise UsageError(f"testbed {crashed[0]} has crashed, and its record is lost; {remedy}")
    which = f"no testbed {asked!r} is up" if asked else "no testbed is up"
    there = f"there is {', '.join(up)}" if up else "start one with: thalweg testbed up --hosts 9 --rate 10mbit"
    raise UsageError(f"{which}; {there}")


def connect(state: TestbedState) -> SupervisorClient:
    """A connection to a testbed that is up; TestbedError when it does not answer."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(files(state.id)[1]))
    except OSError as error:
        sock.close()
        raise TestbedError(
            f"testbed {state.id} does not answer ({error.strerror}); remove it with: thalweg testbed down {state.id}"
        ) from None
    return SupervisorClient(sock)

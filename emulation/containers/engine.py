"""The Docker engine: reaching it, what of ours it has, and removing that.

Everything made here carries labels: which testbed it belongs to, whose that is, and which process holds it (the
testbed's supervisor). What has no such label is never touched, nor what a process still holds. A process is named by
its number, its start time and the kernel's boot, so that a number used again is not taken for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from thalweg.emulation.supervisor import processes
from thalweg.emulation.supervisor.processes import KEPT
from thalweg.middleware.errors import CapabilityError, TestbedError, ThalwegError, one_line
from thalweg.middleware.platform.files import user
from thalweg.middleware.platform.waiting import unix_socket

LABEL = "io.thalweg"
RUN, USER, HOST = f"{LABEL}.testbed", f"{LABEL}.user", f"{LABEL}.host"
HOLDER, LAUNCHER = f"{LABEL}.holder", f"{LABEL}.launcher"
ENGINE_S = 60
REMOVAL_S, ROUND_S = 30.0, 0.1
"""How long removing is tried: a container that was being made while its maker died may appear after the first round,
and one that another process is removing takes its time."""


def endpoint() -> str:
    """Where the engine is to be found, as a URL."""
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def dial(timeout_s: float = ENGINE_S) -> socket.socket:
    """A connection to the engine, without its SDK. Raises OSError when nobody answers."""
    url = urlsplit(endpoint())
    if url.scheme != "unix":
        return socket.create_connection((url.hostname or "localhost", url.port or 2375), timeout_s)
    connection = unix_socket()
    try:
        connection.settimeout(timeout_s)
        connection.connect(url.path)
    except OSError:
        connection.close()
        raise
    return connection


def sdk() -> tuple[Any, Any]:
    """The ``docker`` package and a client of the engine; CapabilityError says what is missing."""
    try:
        import docker  # a third of a second, which only those pay who use containers
    except ModuleNotFoundError as error:
        raise CapabilityError(one_line(error)) from None
    return docker, _client()


def failures() -> tuple[type[Exception], ...]:
    """What the SDK raises, and the transport below it."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    return DockerException, RequestException


@contextmanager
def talking(doing: str) -> Iterator[None]:
    """Errors of the engine and on the way to it become ours, of one line; ``doing`` says at what."""
    try:
        yield
    except failures() as error:
        raise explained(error, doing) from None


@cache
def _client() -> Any:
    import docker

    with talking("reaching the engine"):
        if endpoint().startswith("unix:"):  # the SDK never closes the socket of a connection that fails
            try:
                dial().close()
            except OSError as error:
                raise docker.errors.DockerException(f"Error while fetching server API version: {error}") from None
        client = docker.from_env(timeout=ENGINE_S, max_pool_size=16)
        client.ping()
    return client


def explained(error: Exception, doing: str) -> ThalwegError:
    """What an error of the SDK means to the user."""
    text = one_line(getattr(error, "explanation", None) or error)
    where = endpoint()
    if "Permission denied" in text or "PermissionError" in text:
        return CapabilityError(not_permitted())
    if "Error while fetching server API version" in text or "Connection refused" in text:
        return CapabilityError(
            f"no Docker engine answers at {where}; start it (systemctl start docker, or dockerd),"
            " set DOCKER_HOST, or use netns instead of docker"
        )
    return TestbedError(f"{doing}: the Docker engine says: {text}")


def not_permitted() -> str:
    """What an engine that refuses this user comes to, and what to do."""
    return (
        f"no permission to use the Docker engine at {endpoint()}; run as root, join the group docker"
        " (usermod -aG docker USER, then log in again), or use netns instead of docker, which needs neither"
    )


def engine_may_have_ours() -> bool:
    """Whether there is an engine to be asked for leftovers at all."""
    where = endpoint()
    return not where.startswith("unix://") or os.access(where.removeprefix("unix://"), os.R_OK | os.W_OK)


def labels(run_id: str, holder: int) -> dict[str, str]:
    """The labels of everything that this process makes for a testbed; ``holder``: its supervisor's number."""
    return {
        RUN: run_id,
        USER: str(user()),
        HOLDER: processes.identity(holder),
        LAUNCHER: processes.identity(os.getpid()),
    }


def is_held(marks: dict[str, str]) -> bool:
    """Whether something belongs to a testbed that lives: one that was kept, or whose launcher still runs."""
    if processes.elsewhere(marks.get(HOLDER, "")):
        return True  # as far as can be told here
    holder = processes.living(marks.get(HOLDER, ""))
    return holder is not None and (
        processes.living(marks.get(LAUNCHER, "")) is not None or processes.name(holder) == KEPT
    )


def remove(run_id: str) -> bool:
    """Remove the containers and networks of a testbed, and its devices and rules. Idempotent.

    Return whether the engine had any. Raises TestbedError when the engine does not let them go.
    """
    from thalweg.emulation.containers import machine  # which imports what Linux alone has

    machine.remove(run_id)
    _, client = sdk()
    wanted = {"label": [f"{RUN}={run_id}"]}
    found, stop = False, time.monotonic() + REMOVAL_S
    with talking(f"removing testbed {run_id}"):
        while True:
            containers = client.api.containers(all=True, quiet=True, filters=wanted)
            networks = client.api.networks(filters=wanted)
            if not containers and not networks:
                return found
            found = True
            refused = _each((one["Id"] for one in containers), client.api.remove_container, v=True, force=True)
            refused = _each((one["Id"] for one in networks), client.api.remove_network) or refused
            if time.monotonic() > stop:
                raise explained(refused or RuntimeError("it goes on listing them"), f"removing testbed {run_id}")
            if refused is not None:
                time.sleep(ROUND_S)  # the engine tells nobody when a removal that another began is through


def _each(identities: Iterable[str], call: Any, **how: Any) -> Exception | None:
    """Remove things at once; those gone already are fine. The last refusal, if any."""
    from concurrent.futures import ThreadPoolExecutor

    docker, _ = sdk()

    def one(identity: str) -> Exception | None:
        try:
            call(identity, **how)
        except docker.errors.NotFound:
            return None
        except failures() as error:  # being removed by another, or still in use
            return error
        return None

    with ThreadPoolExecutor(8) as pool:
        return next((error for error in pool.map(one, list(identities)) if error is not None), None)


def leftovers() -> dict[str, int | None]:
    """Testbeds of this user of which the engine has something though nobody holds them any more.

    With the number of the supervisor, where that is still about to remove them.
    """
    _, client = sdk()
    wanted = {"label": [RUN, f"{USER}={user()}"]}
    with talking("looking for what was left"):
        things = [*client.api.containers(all=True, filters=wanted), *client.api.networks(filters=wanted)]
    marks = [one["Labels"] for one in things if not is_held(one["Labels"])]
    return {one[RUN]: processes.living(one.get(HOLDER, "")) for one in marks}


def last_lines(container: Any) -> str:
    """The last lines that a container's own process wrote, in one; empty when it wrote none."""
    try:
        said = container.logs(tail=3).decode(errors="replace").split("\n")
    except failures():  # a logging driver that cannot be read, or it has been removed
        return ""
    return " / ".join(line.strip() for line in said if line.strip())


def containers_of(run_id: str) -> dict[str, Any]:
    """The containers of a testbed by host, running or not."""
    _, client = sdk()
    with talking(f"looking for testbed {run_id}"):
        found = client.containers.list(all=True, filters={"label": [f"{RUN}={run_id}"]}, ignore_removed=True)
    return {one.labels[HOST]: one for one in found}


def wait_ended(container: Any, timeout_s: int) -> None:
    """Wait until a container no longer runs, so long at most."""
    _, client = sdk()
    with suppress(*failures()):
        client.api.wait(container.id, timeout=timeout_s, condition="not-running")


def ended(container: Any) -> str:
    """Why a container no longer runs, in a few words; empty while it runs."""
    docker, _ = sdk()
    try:
        container.reload()
    except docker.errors.NotFound:
        return "removed by somebody else"
    except failures() as error:
        raise explained(error, "looking after a host") from None
    state = container.attrs["State"]
    if state["Running"]:
        return ""
    said = last_lines(container)
    parts = (
        f"status {state['ExitCode']}",
        "out of memory" if state.get("OOMKilled") else "",
        state.get("Error", ""),
        f"last lines: {said}" if said else "",
    )
    return ", ".join(part for part in parts if part)


def own_container_pid(container: Any) -> int:
    """The number of a running container's first process on this machine.

    Raises CapabilityError where it is not a process of this machine that we may enter.
    """
    pid = int(container.attrs["State"]["Pid"])
    try:
        same = os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except PermissionError:
        raise CapabilityError(
            "shaping the links of containers needs root on the engine's machine: run as root (sudo), or use netns"
            " instead of docker, which needs none"
        ) from None
    except FileNotFoundError:
        same = True
    if same:  # some other process has this number here
        raise CapabilityError(
            "the Docker engine is not on this machine (its containers' processes are not here), so their links cannot"
            " be shaped; run thalweg where the engine runs"
        )
    return pid

"""Docker engine: connections, and the containers and networks of Thalweg in the engine, with their removal.

Everything created here carries labels: the testbed, the testbed's user, and the process that holds it (the supervisor).
Objects without these labels are never touched, and neither are objects that a process still holds. A process is named
by number, start time and the kernel's boot, so that a reused number is not mistaken.
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
"""How long removal is tried. A container may appear after the first round, if its creator died during the creation. A
removal by another process also takes time."""


def endpoint() -> str:
    """Return the URL of the engine."""
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def dial(timeout_s: float = ENGINE_S) -> socket.socket:
    """Return a connection to the engine, without the SDK. Raises OSError if no engine answers."""
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
    """Return the ``docker`` package and a client of the engine. Raises CapabilityError, which names a missing part."""
    try:
        import docker  # takes 0.3 s, so only testbeds of containers import it
    except ModuleNotFoundError as error:
        raise CapabilityError(one_line(error)) from None
    return docker, _client()


def failures() -> tuple[type[Exception], ...]:
    """Return the exception classes of the SDK and of its transport."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    return DockerException, RequestException


@contextmanager
def talking(doing: str) -> Iterator[None]:
    """Convert errors of the engine and its transport in the body to one-line errors. ``doing`` names the action."""
    try:
        yield
    except failures() as error:
        raise explained(error, doing) from None


@cache
def _client() -> Any:
    import docker

    with talking("reaching the engine"):
        if endpoint().startswith("unix:"):  # the SDK leaves the socket of a failed connection open
            try:
                dial().close()
            except OSError as error:
                raise docker.errors.DockerException(f"Error while fetching server API version: {error}") from None
        client = docker.from_env(timeout=ENGINE_S, max_pool_size=16)
        client.ping()
    return client


def explained(error: Exception, doing: str) -> ThalwegError:
    """Return an error of Thalweg that explains an error of the SDK to the user."""
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
    """Return the message for a user without permission to use the engine, with a remedy."""
    return (
        f"no permission to use the Docker engine at {endpoint()}; run as root, join the group docker"
        " (usermod -aG docker USER, then log in again), or use netns instead of docker, which needs neither"
    )


def engine_may_have_ours() -> bool:
    """Return whether an engine may be asked for leftovers."""
    where = endpoint()
    return not where.startswith("unix://") or os.access(where.removeprefix("unix://"), os.R_OK | os.W_OK)


def labels(run_id: str, holder: int) -> dict[str, str]:
    """Return the labels for objects of a testbed that this process creates. ``holder``: the supervisor's number."""
    return {
        RUN: run_id,
        USER: str(user()),
        HOLDER: processes.identity(holder),
        LAUNCHER: processes.identity(os.getpid()),
    }


def is_held(marks: dict[str, str]) -> bool:
    """Return whether labels belong to a living testbed, which was detached or whose launcher still runs."""
    if processes.elsewhere(marks.get(HOLDER, "")):
        return True  # its processes cannot be seen from here
    holder = processes.living(marks.get(HOLDER, ""))
    return holder is not None and (
        processes.living(marks.get(LAUNCHER, "")) is not None or processes.name(holder) == KEPT
    )


def remove(run_id: str) -> bool:
    """Remove a testbed's containers, networks, devices and rules. Idempotent. Return whether the engine had any.

    Raises TestbedError if the engine keeps some of them.
    """
    from thalweg.emulation.containers import machine  # imports modules that only Linux has

    machine.remove(run_id)
    _, client = sdk()
    wanted = {"label": [f"{RUN}={run_id}"]}
    had_objects, stop = False, time.monotonic() + REMOVAL_S
    with talking(f"removing testbed {run_id}"):
        while True:
            containers = client.api.containers(all=True, quiet=True, filters=wanted)
            networks = client.api.networks(filters=wanted)
            if not containers and not networks:
                return had_objects
            had_objects = True
            refused = _each((entry["Id"] for entry in containers), client.api.remove_container, v=True, force=True)
            refused = _each((entry["Id"] for entry in networks), client.api.remove_network) or refused
            if time.monotonic() > stop:
                raise explained(
                    refused or RuntimeError("the removed objects are still listed"), f"removing testbed {run_id}"
                )
            if refused is not None:
                time.sleep(ROUND_S)  # the engine sends no event at the end of a removal that another client began


def _each(identities: Iterable[str], call: Any, **how: Any) -> Exception | None:
    """Remove objects in parallel. An object that is already gone is no error. Return one refusal, or None."""
    from concurrent.futures import ThreadPoolExecutor

    docker, _ = sdk()

    def one(identity: str) -> Exception | None:
        try:
            call(identity, **how)
        except docker.errors.NotFound:
            return None
        except failures() as error:  # another client is removing it, or it is in use
            return error
        return None

    with ThreadPoolExecutor(8) as pool:
        return next((error for error in pool.map(one, list(identities)) if error is not None), None)


def leftovers() -> dict[str, int | None]:
    """Return this user's testbeds that no process holds, but of which the engine still has objects.

    The values are the numbers of supervisors that are still about to remove the objects, else None.
    """
    _, client = sdk()
    wanted = {"label": [RUN, f"{USER}={user()}"]}
    with talking("looking for what was left"):
        things = [*client.api.containers(all=True, filters=wanted), *client.api.networks(filters=wanted)]
    marks = [thing["Labels"] for thing in things if not is_held(thing["Labels"])]
    return {mark[RUN]: processes.living(mark.get(HOLDER, "")) for mark in marks}


def last_lines(container: Any) -> str:
    """Return the last lines of output of a container's own process, joined. Empty: the process wrote none."""
    try:
        lines = container.logs(tail=3).decode(errors="replace").split("\n")
    except failures():  # the logging driver cannot be read, or the container has been removed
        return ""
    return " / ".join(line.strip() for line in lines if line.strip())


def containers_of(run_id: str) -> dict[str, Any]:
    """Return a testbed's containers by host, running or not."""
    _, client = sdk()
    with talking(f"looking for testbed {run_id}"):
        containers = client.containers.list(all=True, filters={"label": [f"{RUN}={run_id}"]}, ignore_removed=True)
    return {container.labels[HOST]: container for container in containers}


def wait_ended(container: Any, timeout_s: int) -> None:
    """Wait until a container no longer runs, for at most ``timeout_s``."""
    _, client = sdk()
    with suppress(*failures()):
        client.api.wait(container.id, timeout=timeout_s, condition="not-running")


def ended(container: Any) -> str:
    """Return briefly why a container no longer runs. Empty: the container runs."""
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
    lines = last_lines(container)
    parts = (
        f"status {state['ExitCode']}",
        "out of memory" if state.get("OOMKilled") else "",
        state.get("Error", ""),
        f"last lines: {lines}" if lines else "",
    )
    return ", ".join(part for part in parts if part)


def own_container_pid(container: Any) -> int:
    """Return the number of a running container's first process on this machine.

    Raises CapabilityError if the process is on a different machine, or if its namespace may not be entered.
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
    if same:  # an unrelated process has this number here
        raise CapabilityError(
            "the Docker engine is not on this machine (its containers' processes are not here), so their links cannot"
            " be shaped; run thalweg where the engine runs"
        )
    return pid
